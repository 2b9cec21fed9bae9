//! Trust anchors that change while the proxy runs: a bundle in a mounted file.
//!
//! Volumes are updated by swapping symbolic links, which is awkward to watch and cheap to poll.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

use crate::tls::TrustAnchors;

/// A rotation of roots takes hours; the kubelet itself updates volumes about once a minute.
const POLL: Duration = Duration::from_secs(5);

/// Publishes the bundle in `path` whenever its content changes to a valid one. Runs for the life of the process.
pub async fn watch_file(path: PathBuf, anchors: watch::Sender<TrustAnchors>) {
    let mut seen = None;
    loop {
        look(&path, &mut seen, &anchors);
        tokio::time::sleep(POLL).await;
    }
}

/// `seen` is what the file held last, or why it could not be read, so that each state is reported once.
fn look(
    path: &Path,
    seen: &mut Option<Result<String, String>>,
    anchors: &watch::Sender<TrustAnchors>,
) {
    let content = std::fs::read_to_string(path).map_err(|error| error.to_string());
    if seen.as_ref() == Some(&content) {
        return;
    }
    match &content {
        Ok(pem) => match TrustAnchors::from_pem(pem) {
            Ok(new) => {
                anchors.send_if_modified(|current| {
                    let changed = *current != new;
                    if changed {
                        *current = new;
                    }
                    changed
                });
            }
            Err(error) => {
                tracing::error!(
                    ?path,
                    "The trust anchors file {error}; the present anchors stay in force"
                );
            }
        },
        Err(error) => {
            tracing::warn!(?path, %error, "Cannot read the trust anchors file; the present anchors stay in force");
        }
    }
    *seen = Some(content);
}
