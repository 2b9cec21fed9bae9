//! The files that the rules look at, read once.

use std::fs;
use std::path::Path;

/// Dashboards and rules, their documents, and the sources that register metrics.
const DIRECTORIES: [&str; 8] = [
    "control-plane/src",
    "docs/operations",
    "helm/linkerd-viz",
    "mesh-agent/src",
    "mesh-cluster/src",
    "mesh-proxy/src",
    "mesh-runtime/src",
    "viz/src",
];

pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

pub(crate) struct File {
    /// Relative to the root of the checkout.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A place that breaks a rule, and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) file: String,
    /// Counted from one.
    pub(crate) line: usize,
    pub(crate) advice: String,
}

impl Tree {
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = Vec::new();
        for directory in DIRECTORIES {
            read_directory(&root, directory, &mut files);
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files }
    }

    /// A tree of literals, for the tests of the rules.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        Self {
            files: files.iter().map(file).collect(),
        }
    }

    pub(crate) fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

fn read_directory(root: &Path, directory: &str, files: &mut Vec<File>) {
    for entry in fs::read_dir(root.join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            read_directory(root, &path, files);
        } else {
            let content = fs::read(entry.path()).unwrap();
            let text = String::from_utf8_lossy(&content).into_owned();
            files.push(File { path, text });
        }
    }
}

impl File {
    /// Whether all of it is test code: below a `tests` directory, or the `tests.rs` beside the
    /// code.
    pub(crate) fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    pub(crate) fn is_below(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    pub(crate) fn finding(&self, line: usize, advice: impl Into<String>) -> Finding {
        Finding {
            file: self.path.clone(),
            line,
            advice: advice.into(),
        }
    }
}
