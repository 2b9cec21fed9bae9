//! Files that other programs read while a daemon writes them, and errors that name a file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// An action on a file or directory failed.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}")]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Returns the error of an action, such as `write`, on a file or directory.
pub fn failed<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl Fn(E) -> FileError {
    move |error| FileError {
        action,
        path: path.to_owned(),
        source: error.into(),
    }
}

/// Writes `draft`, a file in the directory of `path`, and renames it, so that a reader sees the old
/// content or the new. Removes the draft if that fails. The umask applies to `mode`.
pub fn replace(
    path: &Path,
    draft: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(draft)
        .and_then(|mut file| write(&mut file))
        .and_then(|()| fs::rename(draft, path));
    if written.is_err() {
        let _ = fs::remove_file(draft);
    }
    written
}

/// Removes a file if it exists.
pub fn remove(path: &Path) -> io::Result<()> {
    ignore_not_found(fs::remove_file(path))
}

/// Removes a directory and its contents if it exists.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    ignore_not_found(fs::remove_dir_all(path))
}

fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn failed_replacement_keeps_the_file_and_leaves_no_draft() {
        let directory = tempfile::tempdir().unwrap();
        let (path, draft) = (directory.path().join("a"), directory.path().join(".a"));
        replace(&path, &draft, 0o600, |file| file.write_all(b"old")).unwrap();
        let refused = replace(&path, &draft, 0o600, |file| {
            file.write_all(b"new")?;
            Err(io::Error::other("full"))
        });
        assert_eq!(refused.unwrap_err().to_string(), "full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_missing_files_are_not_an_error_of_removal() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing");
        remove(&missing).unwrap();
        remove_tree(&missing).unwrap();
        assert!(remove(directory.path()).is_err());
        let error = failed("remove", &missing)(io::Error::other("busy"));
        assert_eq!(error.to_string(), format!("remove {}", missing.display()));
    }
}
