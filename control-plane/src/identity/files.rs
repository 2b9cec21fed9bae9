//! The files of the certificate authority, which are reloaded when they change.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mesh_runtime::file::{self, FileError};
use tokio::time::MissedTickBehavior;

use super::{Issuer, IssuerError, KeyError, TokenKey, Validity};

/// The paths of the files, and the settings of the issuer.
#[derive(Clone, Debug)]
pub struct Files {
    pub issuer_certificate: PathBuf,
    pub issuer_key: PathBuf,
    pub trust_anchors: PathBuf,
    /// `None` if the API server reviews tokens.
    pub token_key: Option<PathBuf>,
    pub validity: Validity,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Read(#[from] FileError),
    #[error("cannot use the issuer in {path}")]
    Issuer { path: PathBuf, source: IssuerError },
    #[error("cannot verify tokens with {path}")]
    TokenKey { path: PathBuf, source: KeyError },
}

/// How often the files are compared with their last contents. Certificates are rotated in hours.
/// Polling does not depend on file system events, which are different for a mounted Secret: it
/// changes through a symbolic link of its directory.
const INTERVAL: Duration = Duration::from_secs(1);

/// The validated contents of the files.
pub struct LoadedIssuer {
    pub issuer: Issuer,
    pub token_key: Option<TokenKey>,
    /// For comparison with later contents.
    pub contents: FileContents,
}

/// The contents of the files when they were last read.
#[derive(Clone, PartialEq, Eq)]
pub struct FileContents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    anchors: Vec<u8>,
    token_key: Option<Vec<u8>>,
}

impl FileContents {
    /// Returns the trust anchors, in PEM.
    pub fn anchors(&self) -> &[u8] {
        &self.anchors
    }
}

impl Files {
    pub fn load(&self) -> Result<LoadedIssuer, LoadError> {
        self.parse(self.read()?)
    }

    /// Polls the files and calls `changed` after each change with the validated contents or an
    /// error.
    pub async fn watch(
        self,
        mut current: FileContents,
        mut changed: impl FnMut(Result<LoadedIssuer, LoadError>),
    ) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A change counts when two polls read the same: certificate and key are two files, and one
        // of them may have been read before a rotation and the other one after it.
        let mut candidate = current.clone();
        loop {
            ticks.tick().await;
            // Probably a rotation in progress; the next poll reads again.
            let Ok(now) = self.read() else {
                continue;
            };
            if now == current || std::mem::replace(&mut candidate, now.clone()) != now {
                continue;
            }
            current = now.clone();
            changed(self.parse(now));
        }
    }

    fn parse(&self, contents: FileContents) -> Result<LoadedIssuer, LoadError> {
        let token_key = match (&self.token_key, &contents.token_key) {
            (Some(path), Some(pem)) => {
                let key = TokenKey::from_pem(pem).map_err(|source| LoadError::TokenKey {
                    path: path.clone(),
                    source,
                })?;
                Some(key)
            }
            _ => None,
        };
        let issuer = Issuer::read(
            &contents.certificate,
            &contents.key,
            &contents.anchors,
            self.validity,
            SystemTime::now(),
        )
        .map_err(|source| LoadError::Issuer {
            path: self.issuer_certificate.clone(),
            source,
        })?;
        Ok(LoadedIssuer {
            issuer,
            token_key,
            contents,
        })
    }

    fn read(&self) -> Result<FileContents, FileError> {
        Ok(FileContents {
            certificate: read(&self.issuer_certificate)?,
            key: read(&self.issuer_key)?,
            anchors: read(&self.trust_anchors)?,
            token_key: self.token_key.as_deref().map(read).transpose()?,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(file::failed("cannot read", path))
}
