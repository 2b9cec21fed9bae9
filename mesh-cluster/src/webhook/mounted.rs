//! A serving certificate in mounted files, which is managed externally together with the
//! `caBundle`, for example by cert-manager.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mesh_runtime::admin::Condition;
use mesh_runtime::file::{self, FileError};
use tokio::time::MissedTickBehavior;

use super::ServingCertificate;
use super::certificate::{CertificateAndKey, CertificateError};
use super::managed::Expiry;

/// The certificate that the files contain.
#[derive(Clone, Debug)]
pub struct MountedCertificate {
    pub files: MountedFiles,
}

/// The files of a certificate and of its key, in PEM.
#[derive(Clone, Debug)]
pub struct MountedFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum MountedError {
    #[error(transparent)]
    Read(#[from] FileError),
    #[error("cannot use the certificate {path} or its key")]
    Certificate {
        path: PathBuf,
        source: CertificateError,
    },
    #[error("certificate {path} and its key do not belong together")]
    Mismatch { path: PathBuf, reason: String },
}

/// How often the files are compared with their last contents.
const INTERVAL: Duration = Duration::from_secs(2);

type Contents = (Vec<u8>, Vec<u8>);

impl MountedFiles {
    /// Returns the files of a mounted `kubernetes.io/tls` Secret.
    pub fn in_directory(dir: PathBuf) -> Self {
        Self {
            certificate: dir.join("tls.crt"),
            key: dir.join("tls.key"),
        }
    }
}

impl MountedCertificate {
    /// Serves with the certificate of the files and reloads it when it changes. An invalid one
    /// is logged and not loaded.
    pub async fn run(self, serving: Arc<ServingCertificate>, expiry: Expiry, ready: Condition) {
        let mut current: Option<Contents> = None;
        let mut last_error = String::new();
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.reload(&serving, &expiry, &mut current) {
                Ok(false) => {}
                Ok(true) => {
                    ready.set(true);
                    last_error.clear();
                    tracing::info!(path = %self.files.certificate.display(), "Serving with the mounted certificate");
                }
                // Logged once for each reason, because it may be a rotation in progress.
                Err(error) => {
                    let reason = std::error::Error::source(&error).map(ToString::to_string);
                    let text = format!("{error} {reason:?}");
                    if text != last_error {
                        tracing::error!(%error, reason, "Cannot load webhook certificate; keeping the previous one");
                        last_error = text;
                    }
                }
            }
        }
    }

    /// Loads a changed certificate. Returns whether it changed.
    fn reload(
        &self,
        serving: &ServingCertificate,
        expiry: &Expiry,
        current: &mut Option<Contents>,
    ) -> Result<bool, MountedError> {
        let now = (read(&self.files.certificate)?, read(&self.files.key)?);
        if current.as_ref() == Some(&now) {
            return Ok(false);
        }
        let pair = CertificateAndKey::read(&now.0, &now.1).map_err(|source| {
            MountedError::Certificate {
                path: self.files.certificate.clone(),
                source,
            }
        })?;
        serving.set(&pair).map_err(|error| MountedError::Mismatch {
            path: self.files.certificate.clone(),
            reason: error.to_string(),
        })?;
        expiry.set(pair.not_after());
        *current = Some(now);
        Ok(true)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(file::failed("cannot read", path))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use mesh_runtime::metrics::Registry;

    use super::*;
    use crate::webhook::certificate::{GeneratedCertificate, generate};

    #[test]
    fn certificate_is_reloaded_when_files_match() {
        let directory = tempfile::tempdir().unwrap();
        let mounted = MountedCertificate {
            files: MountedFiles::in_directory(directory.path().to_owned()),
        };
        let (serving, expiry) = (
            ServingCertificate::default(),
            Expiry::export(&Registry::new()),
        );
        let mut current = None;
        let mut reload = || mounted.reload(&serving, &expiry, &mut current);
        assert!(matches!(reload(), Err(MountedError::Read(_))));
        let pair = |n: u64| {
            let now = SystemTime::now() + Duration::from_secs(n);
            generate(&["a".to_owned()], now).unwrap()
        };
        let write = |certificate: &GeneratedCertificate, key: &GeneratedCertificate| {
            fs::write(
                directory.path().join("tls.crt"),
                &certificate.certificate_pem,
            )
            .unwrap();
            fs::write(directory.path().join("tls.key"), &key.key_pem).unwrap();
        };
        let (first, second) = (pair(0), pair(60));
        write(&first, &first);
        assert!(reload().unwrap());
        assert!(!reload().unwrap());
        write(&second, &first);
        assert!(matches!(reload(), Err(MountedError::Mismatch { .. })));
        write(&second, &second);
        assert!(reload().unwrap());
    }
}
