//! A directory: its changed files, and the last objects of each file.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use mesh_objects::model::{Key, Kind, Object};

use crate::source::manifest::{self, Document, InvalidDocument};

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    kinds: Arc<[Kind]>,
    files: BTreeMap<PathBuf, File>,
    /// The last poll could not list the directory, which is logged once.
    unreadable: bool,
    read: bool,
}

#[derive(Debug, Default)]
struct File {
    /// The version that was read.
    read: Option<FileStamp>,
    /// The version that the last poll found; the file is read when two polls find the same.
    seen: Option<FileStamp>,
    objects: BTreeMap<Key, Object>,
    /// The number of invalid documents.
    invalid: usize,
}

/// Identifies a version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Directory {
    pub(super) fn new(path: PathBuf, kinds: Arc<[Kind]>) -> Self {
        Self {
            path,
            kinds,
            files: BTreeMap::new(),
            unreadable: false,
            read: false,
        }
    }

    /// Returns the objects of all files, in the order of file names.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.files.values().flat_map(|file| file.objects.values())
    }

    pub(super) fn has_been_read(&self) -> bool {
        self.read
    }

    /// Returns the number of invalid documents and unreadable files.
    pub(super) fn invalid(&self) -> usize {
        let files = self.files.values().map(|file| file.invalid).sum::<usize>();
        files + usize::from(self.unreadable)
    }

    /// Reads changed files. The objects of an unreadable directory or file stay.
    pub(super) fn scan(&mut self) {
        let stamps = match list_stamps(&self.path) {
            Ok(stamps) => stamps,
            Err(error) => {
                if !std::mem::replace(&mut self.unreadable, true) {
                    tracing::error!(directory = %self.path.display(), %error, "Cannot read source directory; its objects stay in effect");
                }
                return;
            }
        };
        if std::mem::take(&mut self.unreadable) {
            tracing::info!(directory = %self.path.display(), "Source directory is readable again");
        }
        let first = !std::mem::replace(&mut self.read, true);
        self.files.retain(|path, _| {
            let stays = stamps.contains_key(path);
            if !stays {
                tracing::info!(file = %path.display(), "Manifest deleted");
            }
            stays
        });
        for (path, stamp) in stamps {
            let file = self.files.entry(path.clone()).or_default();
            let settled = first || file.seen == Some(stamp);
            file.seen = Some(stamp);
            if settled && file.read != Some(stamp) {
                file.read = Some(stamp);
                file.update(&path, &self.kinds);
            }
        }
        if first {
            self.report_duplicates();
        }
    }

    /// Logs objects in two files of the directory, which is probably an error; the later file
    /// applies.
    fn report_duplicates(&self) {
        let mut first: BTreeMap<&Key, &Path> = BTreeMap::new();
        for (path, file) in &self.files {
            for key in file.objects.keys() {
                if let Some(other) = first.insert(key, path) {
                    tracing::warn!(object = %key, file = %path.display(), other = %other.display(), "Object defined twice");
                }
            }
        }
    }
}

impl File {
    fn update(&mut self, path: &Path, kinds: &[Kind]) {
        match fs::read_to_string(path) {
            Ok(text) => {
                let documents = manifest::read(&text, kinds);
                self.update_objects(path, documents);
            }
            Err(error) => {
                self.invalid = 1;
                tracing::error!(file = %path.display(), %error, "Cannot read manifest; its objects stay in effect");
            }
        }
    }

    /// Replaces the objects of the file. An object whose document is invalid stays; so do all
    /// missing objects if the object of an invalid document is unknown.
    fn update_objects(&mut self, path: &Path, documents: Vec<Document>) {
        let mut now = BTreeMap::new();
        let mut invalid: Vec<InvalidDocument> = Vec::new();
        for document in documents {
            match document {
                Document::Object { line, object } => {
                    let key = object.key();
                    if now.insert(key.clone(), object).is_some() {
                        tracing::warn!(object = %key, file = %path.display(), line, "Object defined twice");
                    }
                }
                Document::Unknown { line, kind } => {
                    tracing::debug!(file = %path.display(), line, %kind, "Ignored object of unknown kind");
                }
                Document::Invalid(problem) => invalid.push(problem),
            }
        }
        let named: BTreeSet<&Key> = invalid
            .iter()
            .filter_map(|problem| problem.key.as_ref())
            .collect();
        let nameless = invalid.iter().any(|problem| problem.key.is_none());
        for (key, object) in std::mem::take(&mut self.objects) {
            if !now.contains_key(&key) && (nameless || named.contains(&key)) {
                now.insert(key, object);
            }
        }
        for problem in &invalid {
            let kept = problem
                .key
                .as_ref()
                .map_or(nameless && !now.is_empty(), |key| now.contains_key(key));
            let consequence = if kept {
                "the last valid version stays in effect"
            } else {
                "it has no effect"
            };
            tracing::error!(
                file = %path.display(),
                line = problem.line,
                problem = %problem,
                "Invalid object; {consequence}"
            );
        }
        self.objects = now;
        self.invalid = invalid.len();
    }
}

/// Returns the manifests of the directory, without hidden files, which editors and atomic writers
/// use for drafts.
fn list_stamps(directory: &Path) -> io::Result<BTreeMap<PathBuf, FileStamp>> {
    let mut stamps = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy());
        let hidden = name.is_none_or(|name| name.starts_with('.'));
        let manifest = path.extension().is_some_and(|extension| {
            extension == "yaml" || extension == "yml" || extension == "json"
        });
        if hidden || !manifest {
            continue;
        }
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() => {
                let stamp = FileStamp {
                    inode: meta.ino(),
                    size: meta.size(),
                    modified: (meta.mtime(), meta.mtime_nsec()),
                };
                stamps.insert(path, stamp);
            }
            Ok(_) => {}
            // Deleted or renamed since it was listed; the next poll finds the new state.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(stamps)
}
