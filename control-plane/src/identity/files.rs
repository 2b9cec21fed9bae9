//! The files that the authority lives on: read at the start, and again when they change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use mesh_runtime::metrics::{Counter, Labels, Registry};
use tokio::time::MissedTickBehavior;

use super::{Authority, Issuer, IssuerError, KeyError, TokenKey, Validity};

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Files {
    pub issuer_certificate: PathBuf,
    pub issuer_key: PathBuf,
    pub trust_anchors: PathBuf,
    pub token_key: PathBuf,
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

/// How often the files are compared with what was read. Certificates are rotated in hours; seconds are soon enough.
const INTERVAL: Duration = Duration::from_secs(2);

/// What the files held when they were last read.
#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    anchors: Vec<u8>,
    token_key: Vec<u8>,
}

impl Files {
    /// The key that verifies tokens.
    pub fn token_key(&self) -> Result<TokenKey, LoadError> {
        let pem = read(&self.token_key)?;
        TokenKey::from_pem(&pem).map_err(|source| LoadError::TokenKey {
            path: self.token_key.clone(),
            source,
        })
    }

    /// The issuer, proved to be usable now.
    pub fn issuer(&self) -> Result<Issuer, LoadError> {
        let contents = self.read()?;
        self.issuer_of(&contents)
    }

    /// Follows the files until the process ends. What cannot be used is reported and not taken over.
    pub async fn follow(self, authority: Arc<Authority>, registry: Registry) {
        let results = registry.counter_family(
            "identity_issuer_reloads_total",
            "Issuer and token key files that changed, by whether the new ones could be used",
        );
        let result = |result: &str| results.with(&Labels::new().with("result", result));
        let (loaded, refused): (Counter, Counter) = (result("loaded"), result("refused"));
        let mut current = self.read().ok();
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Not being able to read is most likely a rotation half way; the next look decides.
            let Ok(now) = self.read() else {
                continue;
            };
            if current.as_ref() == Some(&now) {
                continue;
            }
            match self.take_over(&now, &authority) {
                Ok(()) => {
                    loaded.inc();
                    tracing::info!(certificate = %self.issuer_certificate.display(), "Took over a changed issuer");
                }
                Err(error) => {
                    refused.inc();
                    let reason = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(%error, reason, "The issuer's files changed and cannot be used; the old issuer stays in force");
                }
            }
            current = Some(now);
        }
    }

    fn take_over(&self, contents: &Contents, authority: &Authority) -> Result<(), LoadError> {
        let issuer = self.issuer_of(contents)?;
        let key =
            TokenKey::from_pem(&contents.token_key).map_err(|source| LoadError::TokenKey {
                path: self.token_key.clone(),
                source,
            })?;
        authority.set_issuer(issuer);
        authority.set_token_key(key);
        Ok(())
    }

    fn issuer_of(&self, contents: &Contents) -> Result<Issuer, LoadError> {
        Issuer::read(
            &contents.certificate,
            &contents.key,
            &contents.anchors,
            self.validity,
            SystemTime::now(),
        )
        .map_err(|source| LoadError::Issuer {
            path: self.issuer_certificate.clone(),
            source,
        })
    }

    fn read(&self) -> Result<Contents, LoadError> {
        Ok(Contents {
            certificate: read(&self.issuer_certificate)?,
            key: read(&self.issuer_key)?,
            anchors: read(&self.trust_anchors)?,
            token_key: read(&self.token_key)?,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(path).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })
}
