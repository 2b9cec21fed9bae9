//! The files of the CNI configuration directory: read all of them, replace one atomically. Other
//! programs write here too, and a runtime reads at any moment.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use mesh_runtime::file::{self, FileError};

/// The extensions that libcni reads, and with it every runtime.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];
/// Larger files are not read; configurations are far smaller.
const MAX_BYTES: u64 = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
}

#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    text: io::Result<String>,
    /// The path with symbolic links resolved: the target is replaced and not the link.
    target: PathBuf,
}

impl File {
    pub(super) fn text(&self) -> Result<&str, &io::Error> {
        self.text.as_deref()
    }

    pub(super) fn is_configuration(&self) -> bool {
        EXTENSIONS.contains(&self.extension())
    }

    pub(super) fn is_list(&self) -> bool {
        !matches!(self.extension(), "conf" | "json")
    }

    fn extension(&self) -> &str {
        self.name.rsplit_once('.').map_or("", |(_, end)| end)
    }
}

impl Directory {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns every file, sorted by name as runtimes do; none when the directory is missing.
    pub(super) fn files(&self) -> Result<Vec<File>, FileError> {
        let failed = file::failed("cannot list", &self.path);
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            // Runtimes ignore names that are not UTF-8.
            if let Ok(name) = entry.map_err(&failed)?.file_name().into_string() {
                files.extend(self.file(name));
            }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }

    /// Returns `None` for anything but a file, and for a file removed since the listing.
    fn file(&self, name: String) -> Option<File> {
        let path = self.path.join(&name);
        let target = match fs::canonicalize(&path) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
                return None;
            }
            // A link whose target does not exist in this mount namespace.
            Err(error) => {
                return Some(File {
                    name,
                    text: Err(error),
                    target: path,
                });
            }
        };
        let metadata = fs::metadata(&target).ok()?;
        if !metadata.is_file() {
            return None;
        }
        let text = if metadata.len() > MAX_BYTES {
            Err(io::Error::other("it is longer than 1 MiB"))
        } else {
            fs::read_to_string(&target)
        };
        Some(File { name, text, target })
    }

    /// Writes a file atomically, with owner and mode of `like`, or replaces `like` itself.
    pub(super) fn replace(&self, like: &File, name: &str, text: &str) -> Result<(), FileError> {
        let target = if name == like.name {
            like.target.clone()
        } else {
            self.path.join(name)
        };
        replace(&like.target, &target, text).map_err(file::failed("cannot write", &target))
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let path = self.path.join(from);
        fs::rename(&path, self.path.join(to)).map_err(file::failed("cannot rename", &path))
    }

    /// Removes a file; a missing one is not an error.
    pub(super) fn remove(&self, name: &str) -> Result<(), FileError> {
        let path = self.path.join(name);
        file::remove(&path).map_err(file::failed("cannot remove", &path))
    }
}

/// Writes a draft in the same directory and renames it once it is complete and synced: after a
/// power failure the node must not have an empty configuration. The draft's name has no extension
/// that a runtime reads.
fn replace(like: &Path, target: &Path, text: &str) -> io::Result<()> {
    let old = fs::metadata(like)?;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let draft = target.with_file_name(format!(".{name}.mesh-draft"));
    file::replace(target, &draft, 0o600, |file| {
        file.write_all(text.as_bytes())?;
        file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        // Changing the owner takes CAP_CHOWN and is optional: runtimes read as root.
        let _ = fchown(&*file, Some(old.uid()), Some(old.gid()));
        file.sync_all()
    })
}
