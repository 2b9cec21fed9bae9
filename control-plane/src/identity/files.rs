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

/// What the files hold, read and proved to be usable.
pub struct Loaded {
    pub issuer: Issuer,
    pub token_key: TokenKey,
    /// To tell later whether the files changed.
    pub contents: Contents,
}

/// What the files held when they were last read.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    anchors: Vec<u8>,
    token_key: Vec<u8>,
}

impl Files {
    pub fn load(&self) -> Result<Loaded, LoadError> {
        self.use_contents(self.read()?)
    }

    /// Follows the files until the process ends. What cannot be used is reported and not taken over.
    pub async fn follow(
        self,
        mut current: Contents,
        authority: Arc<Authority>,
        registry: Registry,
    ) {
        let results = registry.counter_family(
            "identity_issuer_reloads_total",
            "Issuer and token key files that changed, by whether the new ones could be used",
        );
        let result = |result: &str| results.with(&Labels::new().with("result", result));
        let (loaded, refused): (Counter, Counter) = (result("loaded"), result("refused"));
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Not being able to read is most likely a rotation half way; the next look decides.
            let Ok(now) = self.read() else {
                continue;
            };
            if current == now {
                continue;
            }
            current = now.clone();
            match self.use_contents(now) {
                Ok(new) => {
                    authority.set_issuer(new.issuer);
                    authority.set_token_key(new.token_key);
                    loaded.inc();
                    tracing::info!(certificate = %self.issuer_certificate.display(), "Took over a changed issuer");
                }
                Err(error) => {
                    refused.inc();
                    let reason = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(%error, reason, "The issuer's files changed and cannot be used; the old issuer stays in force");
                }
            }
        }
    }

    fn use_contents(&self, contents: Contents) -> Result<Loaded, LoadError> {
        let token_key =
            TokenKey::from_pem(&contents.token_key).map_err(|source| LoadError::TokenKey {
                path: self.token_key.clone(),
                source,
            })?;
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
