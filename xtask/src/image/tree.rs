//! The files of an image, by path. Files added in any order come out sorted, directories included.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Tree {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Directory,
    File {
        content: Vec<u8>,
        mode: Mode,
    },
    /// The target of a symbolic link.
    Link(String),
}

/// The permissions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Execute,
    /// As a program that is permitted these capabilities, a bit for each by its number in
    /// linux/capability.h. Permitted only: it makes the ones effective that it needs, and can be
    /// started where the container was given none.
    Privileged(u32),
}

impl Tree {
    /// Paths have no leading slash, as in a tar.
    pub(crate) fn add_program(&mut self, path: &str, content: Vec<u8>) {
        self.add_with_mode(path, content, Mode::Execute);
    }

    pub(crate) fn add_file(&mut self, path: &str, content: Vec<u8>) {
        self.add_with_mode(path, content, Mode::Read);
    }

    pub(crate) fn add_with_mode(&mut self, path: &str, content: Vec<u8>, mode: Mode) {
        self.add(path, Entry::File { content, mode });
    }

    pub(crate) fn add_link(&mut self, path: &str, target: &str) {
        self.add(path, Entry::Link(target.to_owned()));
    }

    /// Entries by path, directories before their contents.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries
            .iter()
            .map(|(path, entry)| (path.as_str(), entry))
    }

    pub(crate) fn content(&self, path: &str) -> Option<&[u8]> {
        match self.entries.get(path)? {
            Entry::File { content, .. } => Some(content),
            Entry::Directory | Entry::Link(_) => None,
        }
    }

    fn add(&mut self, path: &str, entry: Entry) {
        for (slash, _) in path.match_indices('/') {
            self.entries
                .entry(path[..slash].to_owned())
                .or_insert(Entry::Directory);
        }
        self.entries.insert(path.to_owned(), entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_precede_their_entries() {
        let mut tree = Tree::default();
        tree.add_file("usr/lib/b", vec![1]);
        tree.add_link("usr/lib/a", "b");
        tree.add_program("agent", vec![2]);
        let paths: Vec<&str> = tree.entries().map(|(path, _)| path).collect();
        assert_eq!(paths, ["agent", "usr", "usr/lib", "usr/lib/a", "usr/lib/b"]);
        assert_eq!(tree.content("usr/lib/b"), Some(&[1][..]));
        assert_eq!(tree.content("usr/lib"), None);
    }
}
