//! A serving certificate in a mounted folder: somebody else's, cert-manager's for example, who also
//! tells the API server whom to trust.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use mesh_runtime::admin::Condition;
use tokio::time::MissedTickBehavior;

use super::{
    Serving,
    certificate::{Pair, PairError},
    managed::Expiry,
};

/// The folder, with the names of a `kubernetes.io/tls` Secret in it.
#[derive(Clone, Debug)]
pub(crate) struct Mounted {
    pub(crate) dir: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum MountedError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot use the certificate in {dir}")]
    Pair { dir: PathBuf, source: PairError },
    #[error("certificate and key in {dir} do not belong together")]
    Mismatch { dir: PathBuf, reason: String },
}

/// How often the files are compared with what was read: certificates are rotated in hours.
const INTERVAL: Duration = Duration::from_secs(2);

type Contents = (Vec<u8>, Vec<u8>);

impl Mounted {
    /// Serves what is in the folder, and what is in it later. What cannot be used is said and not
    /// taken over.
    pub(crate) async fn run(self, serving: Arc<Serving>, expiry: Expiry, ready: Condition) {
        let mut current: Option<Contents> = None;
        let mut said = String::new();
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.look(&serving, &expiry, &mut current) {
                Ok(false) => {}
                Ok(true) => {
                    ready.set(true);
                    said.clear();
                    tracing::info!(dir = %self.dir.display(), "Serving with the certificate of the folder");
                }
                // A rotation half way looks the same for a moment; so once for each reason.
                Err(error) => {
                    let reason = std::error::Error::source(&error).map(ToString::to_string);
                    let text = format!("{error} {reason:?}");
                    if text != said {
                        tracing::error!(%error, reason, "The webhook's certificate cannot be used; the one before stays in force");
                        said = text;
                    }
                }
            }
        }
    }

    /// Takes over what changed. Says whether anything did.
    fn look(
        &self,
        serving: &Serving,
        expiry: &Expiry,
        current: &mut Option<Contents>,
    ) -> Result<bool, MountedError> {
        let now = (
            read(&self.dir.join("tls.crt"))?,
            read(&self.dir.join("tls.key"))?,
        );
        if current.as_ref() == Some(&now) {
            return Ok(false);
        }
        let pair = Pair::read(&now.0, &now.1).map_err(|source| MountedError::Pair {
            dir: self.dir.clone(),
            source,
        })?;
        serving.set(&pair).map_err(|error| MountedError::Mismatch {
            dir: self.dir.clone(),
            reason: error.to_string(),
        })?;
        expiry.set(pair.not_after());
        *current = Some(now);
        Ok(true)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, MountedError> {
    fs::read(path).map_err(|source| MountedError::Read {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use mesh_runtime::metrics::Registry;

    use super::*;
    use crate::webhook::certificate::{Made, make};

    #[test]
    fn a_folder_is_taken_over_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Mounted {
            dir: folder.path().to_owned(),
        };
        let (serving, expiry) = (Serving::default(), Expiry::export(&Registry::new()));
        let mut current = None;
        let mut look = || mounted.look(&serving, &expiry, &mut current);
        assert!(matches!(look(), Err(MountedError::Read { .. })));
        let pair = |n: u64| {
            let now = SystemTime::now() + Duration::from_secs(n);
            make(&["a".to_owned()], now).unwrap()
        };
        let write = |certificate: &Made, key: &Made| {
            fs::write(folder.path().join("tls.crt"), &certificate.certificate_pem).unwrap();
            fs::write(folder.path().join("tls.key"), &key.key_pem).unwrap();
        };
        let (first, second) = (pair(0), pair(60));
        write(&first, &first);
        assert!(look().unwrap());
        assert!(!look().unwrap());
        write(&second, &first);
        assert!(matches!(look(), Err(MountedError::Mismatch { .. })));
        write(&second, &second);
        assert!(look().unwrap());
    }
}
