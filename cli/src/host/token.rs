//! The file of a proxy's token: who may read it, and when the token expires.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// The file of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenFile {
    pub(crate) path: PathBuf,
    /// `None` if there is no file.
    pub(crate) found: Option<Found>,
}

/// A file that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The file, then the directories above it.
    pub(crate) modes: Vec<Mode>,
    /// In seconds since the Unix epoch; `None` if the text is not a token.
    pub(crate) expires: Option<u64>,
}

/// Owners and permissions of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub(crate) path: PathBuf,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
}

/// The claims of a token (RFC 7519) that are of interest here.
#[derive(Deserialize)]
struct Claims {
    exp: u64,
}

/// Permissions of others to read a file, and to enter a directory; the owner's and the group's are
/// the same further left.
const READ: u32 = 0o4;
const ENTER: u32 = 0o1;

impl TokenFile {
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let mut found = None;
        match fs::read_to_string(path) {
            Ok(text) => {
                let modes = path.ancestors().map(Mode::read);
                found = Some(Found {
                    modes: modes.collect::<io::Result<_>>()?,
                    expires: expiry(&text),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Self {
            path: path.to_owned(),
            found,
        })
    }
}

impl Found {
    /// Returns the file or directory that keeps a user without capabilities from reading the token.
    pub(crate) fn denied_by(&self, uid: u32, gid: u32) -> Option<&Mode> {
        let mut modes = self.modes.iter();
        let (file, mut directories) = (modes.next()?, modes);
        if !file.permits(uid, gid, READ) {
            return Some(file);
        }
        directories.find(|directory| !directory.permits(uid, gid, ENTER))
    }
}

impl Mode {
    fn read(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: metadata.mode() & 0o7777,
        })
    }

    fn permits(&self, uid: u32, gid: u32, permission: u32) -> bool {
        let shift = match (self.uid == uid, self.gid == gid) {
            (true, _) => 6,
            (false, true) => 3,
            (false, false) => 0,
        };
        uid == 0 || self.mode >> shift & permission != 0
    }
}

/// Returns when a token expires. Its signature is not verified.
fn expiry(token: &str) -> Option<u64> {
    let claims = token.trim().split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    let Claims { exp } = serde_json::from_slice(&claims).ok()?;
    Some(exp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_read_with_its_expiry() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web");
        assert_eq!(TokenFile::read(&path).unwrap().found, None);
        let claims = URL_SAFE_NO_PAD.encode(r#"{"sub":"a","exp":17}"#);
        for (text, expected) in [
            (format!("head.{claims}.signature\n"), Some(17)),
            ("none".to_owned(), None),
            ("a.b.c".to_owned(), None),
        ] {
            fs::write(&path, text).unwrap();
            let found = TokenFile::read(&path).unwrap().found.unwrap();
            assert_eq!(found.expires, expected);
            assert_eq!(found.modes[0].path, path);
            assert_eq!(found.modes.last().unwrap().path, Path::new("/"));
        }
    }

    #[test]
    fn user_reads_a_file_by_its_mode_and_those_of_all_directories() {
        let mode = |path: &str, uid: u32, gid: u32, mode: u32| Mode {
            path: path.into(),
            uid,
            gid,
            mode,
        };
        let denied = |file: Mode, directory: Mode| {
            let found = Found {
                modes: vec![file, directory],
                expires: None,
            };
            let denied = found.denied_by(7, 8).map(|it| it.path.clone());
            denied.map_or(String::new(), |path| path.display().to_string())
        };
        let open = || mode("dir", 0, 0, 0o711);
        assert_eq!(denied(mode("file", 7, 8, 0o400), open()), "");
        assert_eq!(denied(mode("file", 0, 8, 0o440), open()), "");
        assert_eq!(denied(mode("file", 0, 0, 0o444), open()), "");
        assert_eq!(denied(mode("file", 0, 0, 0o400), open()), "file");
        // The owner's permissions decide about the owner, even if others have more.
        assert_eq!(denied(mode("file", 7, 8, 0o044), open()), "file");
        let closed = mode("dir", 0, 0, 0o700);
        assert_eq!(denied(mode("file", 7, 8, 0o400), closed), "dir");
    }
}
