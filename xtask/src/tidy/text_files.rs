//! House rules about every text file.

use super::Finding;
use super::tree::{File, Tree};

/// This file, which contains the patterns.
const THIS_FILE: &str = "xtask/src/tidy/text_files.rs";

/// Prefixes of paths that exist only on one machine.
const MACHINE_PATHS: [&str; 3] = ["/home/", "/Users/", "/root/"];

/// Space for a lockfile and a picture, and not for raw measurements; a repository keeps everything
/// it ever held.
const MOST_BYTES: u64 = 160 * 1024;

/// Documents, code and configuration work on every machine, so they contain no path of one.
pub(crate) fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let meant = |file: &File| file.path != THIS_FILE;
    tree.each_line("machine-paths", meant, |line| {
        let path = machine_path(line)?;
        Some(format!(
            "`{path}` is a path of one machine; make it relative or a placeholder"
        ))
    })
}

/// The path in the line that begins with one of `MACHINE_PATHS`; `/proc/self/root/` contains but
/// does not begin one.
fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_PATHS.into_iter().find(|path| {
        line.match_indices(path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            !before.is_some_and(|c| {
                c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '}' | ')' | '~' | '$')
            })
        })
    })
}

/// No large files, and no binaries by accident.
pub(crate) fn size(tree: &Tree) -> Vec<Finding> {
    let large = tree.files.iter().filter(|file| file.bytes > MOST_BYTES);
    let finding = |file: &File| {
        let (size, most) = (file.bytes / 1024, MOST_BYTES / 1024);
        let advice = format!("{size} KiB, at most {most}: keep it elsewhere");
        file.finding(1, "file-size", advice)
    };
    large.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn machine_specific_paths_are_reported() {
        let tree = Tree::of(&[
            ("a.md", "see `/home/me/mesh`\n\nand /Users/x\n"),
            (
                "b.rs",
                "open(\"/proc/1/root/etc\"); // https://example.com/home/x and target/Users/y and crates/root/z\n",
            ),
        ]);
        assert_eq!(places(&machine_paths(&tree)), [("a.md", 1), ("a.md", 3)]);
    }

    #[test]
    fn large_files_are_reported() {
        let large = "x".repeat(161 * 1024);
        let findings = size(&Tree::of(&[("a", &large), ("b", "x")]));
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].advice,
            "161 KiB, at most 160: keep it elsewhere"
        );
    }
}
