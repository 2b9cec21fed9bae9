//! The files that the authority lives on: read at the start, and again when they change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use tokio::time::MissedTickBehavior;

use super::{Issuer, IssuerError, KeyError, TokenKey, Validity};

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Files {
    pub issuer_certificate: PathBuf,
    pub issuer_key: PathBuf,
    pub trust_anchors: PathBuf,
    /// None where an API server reviews tokens.
    pub token_key: Option<PathBuf>,
    pub validity: Validity,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot use the issuer in {path}")]
    Issuer { path: PathBuf, source: IssuerError },
    #[error("cannot verify tokens with {path}")]
    TokenKey { path: PathBuf, source: KeyError },
}

/// How often the files are compared with what was read. Certificates are rotated in hours; seconds
/// are soon enough. Comparing needs no event, so it does not matter that a mounted Secret changes
/// by a symbolic link of its folder.
const INTERVAL: Duration = Duration::from_secs(1);

/// What the files hold, read and proved to be usable.
pub struct Loaded {
    pub issuer: Issuer,
    pub token_key: Option<TokenKey>,
    /// To tell later whether the files changed.
    pub contents: Contents,
}

/// What the files held when they were last read.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    anchors: Vec<u8>,
    token_key: Option<Vec<u8>>,
}

impl Contents {
    /// The trust anchors, in PEM.
    pub fn anchors(&self) -> &[u8] {
        &self.anchors
    }
}

impl Files {
    pub fn load(&self) -> Result<Loaded, LoadError> {
        self.use_contents(self.read()?)
    }

    /// Follows the files until the process ends, and hands on what they hold after each change: an
    /// issuer that was proved, or why it cannot be used.
    pub async fn follow(
        self,
        mut current: Contents,
        mut changed: impl FnMut(Result<Loaded, LoadError>),
    ) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A change counts once it has stood still for one look: certificate and key are two files,
        // and may have been read from both sides of a rotation.
        let mut candidate = current.clone();
        loop {
            ticks.tick().await;
            // Not being able to read is most likely a rotation half way; the next look decides.
            let Ok(now) = self.read() else {
                continue;
            };
            if now == current || std::mem::replace(&mut candidate, now.clone()) != now {
                continue;
            }
            current = now.clone();
            changed(self.use_contents(now));
        }
    }

    fn use_contents(&self, contents: Contents) -> Result<Loaded, LoadError> {
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
        Ok(Loaded {
            issuer,
            token_key,
            contents,
        })
    }

    fn read(&self) -> Result<Contents, LoadError> {
        Ok(Contents {
            certificate: read(&self.issuer_certificate)?,
            key: read(&self.issuer_key)?,
            anchors: read(&self.trust_anchors)?,
            token_key: self.token_key.as_deref().map(read).transpose()?,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(path).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })
}
