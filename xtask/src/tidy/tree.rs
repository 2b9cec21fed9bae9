//! The text files of the checkout, read once, for every rule about files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::Finding;
use super::source::{self, Line};

/// The build results of all workspaces.
const BUILD_DIRECTORIES: [&str; 3] = ["target", "mesh-ebpf/target", "models/target"];

/// The names of other directories without source files: npm's packages and git's objects.
const SKIPPED_DIRECTORIES: [&str; 2] = ["node_modules", ".git"];

pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

pub(crate) struct File {
    /// Relative to the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) bytes: u64,
    /// For Rust files: each line without comments and literals.
    pub(crate) code: Vec<Line>,
}

impl Tree {
    /// Reads all files below `root`. It does not ask git, so that a file counts before it is added
    /// and so that an unpacked archive can be checked too.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            let listing = fs::read_dir(root.join(&directory))
                .with_context(|| format!("list {}", directory.display()))?;
            for entry in listing {
                let entry = entry.with_context(|| format!("list {}", directory.display()))?;
                let path = directory.join(entry.file_name());
                let kind = entry
                    .file_type()
                    .with_context(|| format!("look at {}", path.display()))?;
                if kind.is_dir() {
                    directories.extend((!is_skipped(&path)).then_some(path));
                } else if kind.is_file() {
                    let content = fs::read(root.join(&path))
                        .with_context(|| format!("read {}", path.display()))?;
                    files.push(File::new(&path.to_string_lossy(), &content));
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }

    /// A tree of literals, for the tests of the rules.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Self {
            files: files
                .iter()
                .map(|(path, text)| File::new(path, text.as_bytes()))
                .collect(),
        }
    }

    pub(crate) fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }

    /// One finding for each line where `find` returns advice, in the files that `applies` accepts.
    pub(crate) fn each_line(
        &self,
        rule: &'static str,
        applies: impl Fn(&File) -> bool,
        find: impl Fn(&str) -> Option<String>,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for file in self.files.iter().filter(|file| applies(file)) {
            for (index, line) in file.text.lines().enumerate() {
                findings.extend(find(line).map(|advice| file.finding(index + 1, rule, advice)));
            }
        }
        findings
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// Whether a directory, relative to the root, has no source files.
fn is_skipped(path: &Path) -> bool {
    let has_name = |name: &&str| path.file_name().is_some_and(|it| it == *name);
    BUILD_DIRECTORIES.iter().any(|it| path == Path::new(it))
        || SKIPPED_DIRECTORIES.iter().any(has_name)
}

impl File {
    fn new(path: &str, content: &[u8]) -> Self {
        let bytes = content.len() as u64;
        // Not text: nothing to look at but its size.
        let text = str::from_utf8(content).unwrap_or_default().to_owned();
        let code = if path.ends_with(".rs") {
            source::lines(&text)
        } else {
            Vec::new()
        };
        Self {
            path: path.to_owned(),
            text,
            bytes,
            code,
        }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs") && !self.is_generated()
    }

    /// Whether a program wrote it, which a test compares with its source.
    fn is_generated(&self) -> bool {
        self.path.contains("/src/generated/")
    }

    /// Whether all of it is test code: below a `tests` directory, or the `tests.rs` beside the
    /// code.
    pub(crate) fn is_test(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
    }

    pub(crate) fn is_below(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    /// Whether it is the module of that name, or below it.
    pub(crate) fn is_module(&self, name: &str) -> bool {
        self.path
            .split('/')
            .any(|part| part.strip_suffix(".rs").unwrap_or(part) == name)
    }

    /// Lines of code that are not test code, counted from one.
    pub(crate) fn production_code(&self) -> impl Iterator<Item = (usize, &str)> {
        let all_test = self.is_test();
        let numbered = self.code.iter().enumerate();
        numbered
            .filter(move |(_, line)| !all_test && !line.test)
            .map(|(index, line)| (index + 1, line.code.as_str()))
    }

    pub(crate) fn finding(
        &self,
        line: usize,
        rule: &'static str,
        advice: impl Into<String>,
    ) -> Finding {
        Finding {
            file: self.path.clone(),
            line,
            rule,
            advice: advice.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_build_directories_of_the_workspaces_are_skipped() {
        for (path, expected) in [
            ("target", true),
            ("mesh-ebpf/target", true),
            ("mesh-proxy/src/target", false),
            ("mesh-proxy/target", false),
            ("viz/web/node_modules", true),
            (".git", true),
        ] {
            assert_eq!(is_skipped(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn test_code_is_recognised_by_path() {
        let tree = Tree::of(&[
            ("tests/it/main.rs", ""),
            ("a/src/b/tests.rs", ""),
            ("a/tests/c.rs", ""),
            ("a/src/b.rs", ""),
        ]);
        assert_eq!(
            tree.files.iter().map(File::is_test).collect::<Vec<_>>(),
            [true, true, true, false]
        );
    }

    #[test]
    fn checkout_can_be_read() {
        let tree = Tree::read(&crate::workspace::root().expect("a checkout"))
            .expect("a readable checkout");
        assert!(tree.file("xtask/src/tidy/tree.rs").is_some());
        assert!(
            tree.files
                .iter()
                .all(|file| !file.path.starts_with("target/"))
        );
    }
}
