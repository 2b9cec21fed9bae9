//! The licence texts that go with a program: the project's, and the texts of every crate or Go
//! module that is linked into it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context;

use super::go::Module;
use super::sbom::Crate;

/// Prefixes of the names of licence files in crates, in capitals.
const NAMES: [&str; 6] = [
    "LICENSE",
    "LICENCE",
    "COPYING",
    "COPYRIGHT",
    "NOTICE",
    "UNLICENSE",
];

/// Returns the licences of the project and of the kernel programs.
const OURS: [&str; 3] = [
    "LICENSE",
    "mesh-ebpf/LICENSE-MIT",
    "mesh-ebpf/LICENSE-GPL-2.0",
];

pub(crate) fn ours(root: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    for path in OURS {
        let file = root.join(path);
        let content = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        text.extend_from_slice(format!("==== {path}\n\n").as_bytes());
        text.extend_from_slice(&content);
        text.push(b'\n');
    }
    Ok(text)
}

/// Every text once, headed by the crates and modules that it is from.
pub(crate) fn third_parties(crates: &[&Crate], modules: &[Module]) -> anyhow::Result<Vec<u8>> {
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for one in crates.iter().filter(|one| !one.ours) {
        let name = format!("{} {}", one.name, one.version);
        for text in texts_in(&one.directory)? {
            texts.entry(text).or_default().insert(name.clone());
        }
        let declared = one.licence.as_deref().unwrap_or("not stated");
        texts
            .entry(format!("Licence stated by the authors: {declared}\n"))
            .or_default()
            .insert(name);
    }
    for module in modules {
        let name = format!("{} {}", module.path, module.version);
        for text in texts_in(&module.directory)? {
            texts.entry(text).or_default().insert(name.clone());
        }
    }
    let mut sections: Vec<(BTreeSet<String>, String)> = texts
        .into_iter()
        .map(|(text, crates)| (crates, text))
        .collect();
    sections.sort();
    let mut document = String::new();
    for (crates, text) in sections {
        document.push_str("==== ");
        document.push_str(&Vec::from_iter(crates).join(", "));
        document.push_str("\n\n");
        document.push_str(text.trim_end());
        document.push_str("\n\n");
    }
    Ok(document.into_bytes())
}

fn texts_in(directory: &Path) -> anyhow::Result<Vec<String>> {
    let mut texts = Vec::new();
    let files = fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))?;
    for file in files {
        let file = file
            .with_context(|| format!("list {}", directory.display()))?
            .path();
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_uppercase();
        if file.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            let text = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
            texts.push(String::from_utf8_lossy(&text).replace("\r\n", "\n"));
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_include_kernel_programs() {
        let root = crate::workspace::root().expect("a checkout");
        let text = String::from_utf8(ours(&root).expect("licences")).expect("text");
        for part in [
            "Apache License",
            "==== mesh-ebpf/LICENSE-MIT",
            "GNU GENERAL PUBLIC LICENSE",
        ] {
            assert!(text.contains(part), "{part}");
        }
    }

    #[test]
    fn equal_licence_texts_are_printed_once() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        fs::write(directory.path().join("LICENSE-MIT"), "the terms\n").expect("a file");
        fs::write(directory.path().join("README.md"), "no terms\n").expect("a file");
        let one = |name: &str| Crate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: Some("MIT".to_owned()),
            checksum: None,
            directory: directory.path().to_owned(),
            ours: false,
            needs: Vec::new(),
        };
        let (first, second) = (one("a"), one("b"));
        let text = third_parties(&[&second, &first], &[]).expect("a document");
        assert_eq!(
            String::from_utf8(text).expect("text"),
            "==== a 1.0.0, b 1.0.0\n\nLicence stated by the authors: MIT\n\n==== a 1.0.0, b 1.0.0\n\nthe terms\n\n"
        );
    }
}
