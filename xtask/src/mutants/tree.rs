//! Copies of the checkout, where the code is changed. They stay, so that the next run compiles only
//! what has changed, and an interrupted run leaves no mutant in the checkout.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use anyhow::{Context, bail};

/// Makes a directory below the root equal to the files of the checkout that git does not ignore,
/// and returns it.
pub(super) fn copy(root: &Path, directory: &str) -> anyhow::Result<PathBuf> {
    let copy = root.join(directory);
    fs::create_dir_all(&copy)?;
    let wanted = tracked(root)?;
    for file in &wanted {
        copy_changed(&root.join(file), &copy.join(file))
            .with_context(|| format!("copy {}", file.display()))?;
    }
    for file in files(&copy, Path::new(""))? {
        if !wanted.contains(&file) {
            fs::remove_file(copy.join(&file))
                .with_context(|| format!("remove {}", file.display()))?;
        }
    }
    Ok(copy)
}

/// The files of the checkout, relative to it. A file that is deleted and not yet committed is
/// none.
fn tracked(root: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let output = git.output().context("start git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", output.status);
    }
    let names = String::from_utf8(output.stdout).context("read the output of git")?;
    let names = names.split('\0').filter(|name| !name.is_empty());
    Ok(names
        .map(PathBuf::from)
        .filter(|file| root.join(file).is_file())
        .collect())
}

/// Copies a file unless the copy is equal, so that cargo sees no change.
fn copy_changed(from: &Path, to: &Path) -> io::Result<()> {
    if fs::read(to).is_ok_and(|found| fs::read(from).is_ok_and(|wanted| wanted == found)) {
        return Ok(());
    }
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::copy(from, to).map(drop)
}

/// The files below `at`, relative to `root`.
fn files(root: &Path, at: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(at))? {
        let entry = entry?;
        let path = at.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            found.extend(files(root, &path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(root: &Path, arguments: &[&str]) {
        let status = Command::new("git")
            .current_dir(root)
            .args(arguments)
            .status();
        assert!(status.expect("git runs").success());
    }

    #[test]
    fn copy_has_the_files_of_the_checkout_and_no_mutant_of_an_earlier_run() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        git(root, &["init", "--quiet"]);
        fs::create_dir(root.join("src")).expect("a directory");
        for (file, text) in [
            (".gitignore", "/target\n"),
            ("src/a.rs", "fn a() {}\n"),
            ("src/b.rs", "fn b() {}\n"),
        ] {
            fs::write(root.join(file), text).expect("write");
        }
        let copied = copy(root, "target/copy").expect("a copy");
        let listed = |copied: &Path| {
            let mut files = files(copied, Path::new("")).expect("list");
            files.sort();
            files
        };
        assert_eq!(
            listed(&copied),
            [".gitignore", "src/a.rs", "src/b.rs"].map(PathBuf::from)
        );
        let unchanged = |copied: &Path| {
            let file = copied.join("src/b.rs");
            file.metadata().and_then(|it| it.modified()).expect("time")
        };
        let before = unchanged(&copied);
        fs::write(copied.join("src/a.rs"), "fn mutant() {}\n").expect("write");
        fs::write(copied.join("src/c.rs"), "fn c() {}\n").expect("write");
        let copied = copy(root, "target/copy").expect("a copy");
        let text = fs::read_to_string(copied.join("src/a.rs")).expect("read");
        assert_eq!(text, "fn a() {}\n");
        assert_eq!(
            listed(&copied),
            [".gitignore", "src/a.rs", "src/b.rs"].map(PathBuf::from)
        );
        assert_eq!(unchanged(&copied), before);
    }
}
