//! One folder: which of its files changed, and what each of them last said.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    model::{Key, Object},
    source::manifest::{self, Broken, Document},
};

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    files: BTreeMap<PathBuf, File>,
    /// The last look could not list the folder; said once, not at every look.
    unreadable: bool,
    read: bool,
}

#[derive(Debug, Default)]
struct File {
    /// The version that was read.
    read: Option<Stamp>,
    /// What the last look saw; read once two looks agree.
    seen: Option<Stamp>,
    objects: BTreeMap<Key, Object>,
    /// What of it cannot be used.
    broken: usize,
}

/// Tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            files: BTreeMap::new(),
            unreadable: false,
            read: false,
        }
    }

    /// The objects of all files, those of later file names last.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.files.values().flat_map(|file| file.objects.values())
    }

    pub(super) fn has_been_read(&self) -> bool {
        self.read
    }

    /// How much of it cannot be used now.
    pub(super) fn broken(&self) -> usize {
        let files = self.files.values().map(|file| file.broken).sum::<usize>();
        files + usize::from(self.unreadable)
    }

    /// Reads what changed. A folder or file that cannot be read keeps what it last said.
    pub(super) fn look(&mut self) {
        let stamps = match stamps(&self.path) {
            Ok(stamps) => stamps,
            Err(error) => {
                if !std::mem::replace(&mut self.unreadable, true) {
                    tracing::error!(folder = %self.path.display(), %error, "Cannot read a source folder; its objects stay in force");
                }
                return;
            }
        };
        if std::mem::take(&mut self.unreadable) {
            tracing::info!(folder = %self.path.display(), "The source folder can be read again");
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
                file.update(&path);
            }
        }
        if first {
            self.report_duplicates();
        }
    }

    /// An object in two files of one folder is most likely a mistake; the later file wins.
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
    fn update(&mut self, path: &Path) {
        match fs::read_to_string(path) {
            Ok(text) => {
                let documents = manifest::read(&text);
                self.take(path, documents);
            }
            Err(error) => {
                self.broken = 1;
                tracing::error!(file = %path.display(), %error, "Cannot read a manifest; its objects stay in force");
            }
        }
    }

    /// Replaces what the file said. An object whose document is broken stays as it was; so do all
    /// objects that are missing when a document does not even say whose it is.
    fn take(&mut self, path: &Path, documents: Vec<Document>) {
        let mut now = BTreeMap::new();
        let mut broken: Vec<Broken> = Vec::new();
        for document in documents {
            match document {
                Document::Object { line, object } => {
                    let key = object.key();
                    if now.insert(key.clone(), object).is_some() {
                        tracing::warn!(object = %key, file = %path.display(), line, "Object defined twice");
                    }
                }
                Document::Unknown { line, kind } => {
                    tracing::debug!(file = %path.display(), line, %kind, "Ignored an object of a kind that the mesh does not read");
                }
                Document::Broken(problem) => broken.push(problem),
            }
        }
        let named: BTreeSet<&Key> = broken
            .iter()
            .filter_map(|problem| problem.key.as_ref())
            .collect();
        let nameless = broken.iter().any(|problem| problem.key.is_none());
        for (key, object) in std::mem::take(&mut self.objects) {
            if !now.contains_key(&key) && (nameless || named.contains(&key)) {
                now.insert(key, object);
            }
        }
        for problem in &broken {
            let kept = problem
                .key
                .as_ref()
                .map_or(nameless && !now.is_empty(), |key| now.contains_key(key));
            let consequence = if kept {
                "the last good version stays in force"
            } else {
                "it is not in force"
            };
            tracing::error!(
                file = %path.display(),
                line = problem.line,
                problem = %problem,
                "Cannot use an object; {consequence}"
            );
        }
        self.objects = now;
        self.broken = broken.len();
    }
}

/// The manifests of the folder. Hidden files are none: editors and atomic writers put their drafts
/// there.
fn stamps(folder: &Path) -> io::Result<BTreeMap<PathBuf, Stamp>> {
    let mut stamps = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
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
                let stamp = Stamp {
                    inode: meta.ino(),
                    size: meta.size(),
                    modified: (meta.mtime(), meta.mtime_nsec()),
                };
                stamps.insert(path, stamp);
            }
            Ok(_) => {}
            // It was there a moment ago; the next look knows more.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(stamps)
}
