//! Trust anchors that change while the proxy runs: a bundle in a mounted file.
//!
//! Volumes are updated by swapping symbolic links, which is awkward to watch and cheap to poll.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

use crate::tls::TrustAnchors;

/// A rotation of roots takes hours; the kubelet itself updates volumes about once a minute.
const POLL: Duration = Duration::from_secs(5);

/// Publishes the bundle in `path` whenever its content changes to a valid one. Runs for the life of
/// the process.
pub async fn watch_file(path: PathBuf, anchors: watch::Sender<TrustAnchors>) {
    let mut seen = None;
    loop {
        look(&path, &mut seen, &anchors);
        tokio::time::sleep(POLL).await;
    }
}

/// `seen` is what the file held last, or why it could not be read (nothing said: it was not there),
/// so that each state is reported once.
fn look(
    path: &Path,
    seen: &mut Option<Result<String, Option<String>>>,
    anchors: &watch::Sender<TrustAnchors>,
) {
    let content = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        // The volume may be optional, and be filled when the control plane comes.
        io::ErrorKind::NotFound => None,
        _ => Some(error.to_string()),
    });
    if seen.as_ref() == Some(&content) {
        return;
    }
    match &content {
        Ok(pem) => match TrustAnchors::from_pem(pem) {
            Ok(new) => {
                tracing::info!(?path, "Trust anchors in the file: {}", new.len());
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
        Err(None) => {
            tracing::info!(
                ?path,
                "The trust anchors file is not there; the present anchors are in force until it is"
            );
        }
        Err(Some(error)) => {
            tracing::warn!(?path, %error, "Cannot read the trust anchors file; the present anchors stay in force");
        }
    }
    *seen = Some(content);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::tls::tests::TestCa;

    /// Swaps a volume's content as the kubelet does: the file is a link into `..data`, which is a
    /// link to a folder and is replaced in one step.
    fn swap(volume: &Path, version: &str, pem: &str) {
        let folder = volume.join(version);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("ca-bundle.crt"), pem).unwrap();
        symlink(version, volume.join("..data_tmp")).unwrap();
        std::fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        let file = volume.join("ca-bundle.crt");
        if !file.is_symlink() {
            symlink("..data/ca-bundle.crt", file).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_bundle_may_appear_late_and_change() {
        let (first, second, third) = (TestCa::new(), TestCa::new(), TestCa::new());
        let volume = tempfile::tempdir().unwrap();
        let (publish, mut anchors) = watch::channel(first.anchors());
        let file = volume.path().join("ca-bundle.crt");
        tokio::spawn(watch_file(file, publish));
        // An optional ConfigMap that does not exist leaves the folder empty.
        tokio::time::sleep(POLL * 2).await;
        assert!(!anchors.has_changed().unwrap());
        let both = format!("{}{}", first.pem, second.pem);
        swap(volume.path(), "v1", &both);
        anchors.changed().await.unwrap();
        assert_eq!(anchors.borrow_and_update().len(), 2);
        // What cannot be read changes nothing, and does not end the watch.
        swap(volume.path(), "v2", "-----BEGIN CERTIFICATE-----");
        tokio::time::sleep(POLL * 2).await;
        assert!(!anchors.has_changed().unwrap());
        swap(volume.path(), "v3", &third.pem);
        anchors.changed().await.unwrap();
        assert_eq!(*anchors.borrow(), third.anchors());
    }
}
