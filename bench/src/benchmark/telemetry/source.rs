//! Finds the source files of functions in the program of the proxy, by its line tables.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::segments::Segments;
use crate::testbed::DIRECTORY;

/// Parts of the paths of this project's source files.
const PROJECT: [&str; 5] = [
    "mesh-proxy/src/",
    "mesh-http2/src/",
    "mesh-core/src/",
    "mesh-api/src/",
    "mesh-runtime/src/",
];
/// Parts of the paths of the source files of telemetry.
const TELEMETRY: [&str; 6] = [
    "mesh-proxy/src/telemetry",
    "mesh-proxy/src/tap",
    "mesh-proxy/src/trace",
    "mesh-proxy/src/access_log",
    "mesh-runtime/src/metrics",
    "mesh-core/src/tap",
];

/// The source files by the offset of an instruction in the file of the program.
pub(super) struct SourceFiles {
    program: PathBuf,
    segments: Segments,
    /// The innermost file of this project, if any inlined frame belongs to this project.
    files: HashMap<u64, Option<String>>,
}

impl SourceFiles {
    pub(super) fn new(program: &Path, segments: Segments) -> Self {
        Self {
            program: program.to_owned(),
            segments,
            files: HashMap::new(),
        }
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the file of the innermost function of this project at an offset.
    pub(super) fn innermost(&self, offset: u64) -> Option<&str> {
        self.files.get(&offset)?.as_deref()
    }

    /// Looks up the offsets that are not known yet with `addr2line`, a command without arguments.
    pub(super) fn find(
        &mut self,
        mut addr2line: Command,
        offsets: impl Iterator<Item = u64>,
    ) -> anyhow::Result<()> {
        let new: BTreeSet<u64> = offsets
            .filter(|offset| !self.files.contains_key(offset))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let addresses: Vec<(u64, u64)> = new
            .into_iter()
            .filter_map(|offset| Some((offset, self.segments.address(offset)?)))
            .collect();
        let list = Path::new(DIRECTORY).join("addresses");
        let lines: String = addresses
            .iter()
            .map(|(_, address)| format!("{address:#x}\n"))
            .collect();
        fs::write(&list, lines)?;
        let output = addr2line
            .args(["--addresses", "--inlines", "--exe"])
            .arg(&self.program)
            .stdin(File::open(&list)?)
            .stderr(Stdio::inherit())
            .output()
            .context("addr2line; Debian's package is binutils")?;
        if !output.status.success() {
            bail!("addr2line: {}", output.status);
        }
        self.add(&addresses, &String::from_utf8_lossy(&output.stdout));
        Ok(())
    }

    /// Adds the output of addr2line: for each address, in order, a line with the address, then one
    /// line for each function, `FILE:LINE`, the innermost first.
    fn add(&mut self, addresses: &[(u64, u64)], output: &str) {
        let mut offsets = addresses.iter().map(|(offset, _)| *offset);
        let mut current = None;
        for line in output.lines() {
            if line.starts_with("0x") {
                current = offsets.next();
                if let Some(offset) = current {
                    self.files.insert(offset, None);
                }
                continue;
            }
            let is_project = PROJECT.iter().any(|part| line.contains(part));
            let entry = current.and_then(|offset| self.files.get_mut(&offset));
            if let Some(file @ None) = entry
                && is_project
            {
                *file = Some(line.to_owned());
            }
        }
    }

    #[cfg(test)]
    pub(super) fn insert(&mut self, offset: u64, file: Option<String>) {
        self.files.insert(offset, file);
    }
}

/// Returns whether a source file is one of telemetry.
pub(super) fn is_telemetry(file: &str) -> bool {
    TELEMETRY.iter().any(|part| file.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_project_file_of_each_offset_is_kept() {
        let mut files = SourceFiles::new(Path::new("/x/mesh-proxy"), Segments::default());
        files.add(
            &[(1, 0x10), (2, 0x20)],
            "0x0000000000000010
/rustc/library/core/src/ptr/mod.rs:1
/src/mesh-runtime/src/metrics/cell.rs:12
/src/mesh-proxy/src/http/body.rs:3
0x0000000000000020
??:?
",
        );
        let file = files.innermost(1).expect("a file");
        assert!(is_telemetry(file), "{file}");
        assert_eq!(files.innermost(2), None);
        assert_eq!(files.files.len(), 2);
        assert!(!is_telemetry("/src/mesh-proxy/src/http/body.rs:3"));
    }
}
