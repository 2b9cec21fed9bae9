//! Reloads trust anchors from a mounted file.
//!
//! The kubelet updates volumes by replacing symbolic links, which polling detects more simply than
//! inotify.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::tls::TrustAnchors;
use crate::watch;

/// Short compared to a rotation of roots, which takes hours, and to the kubelet's updates of
/// volumes about once a minute.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Publishes the bundle in `path` whenever its content changes to a valid one. Runs for the life of
/// the process.
pub(super) async fn watch_file(path: PathBuf, anchors: watch::Sender<TrustAnchors>) {
    let mut last = None;
    loop {
        reload(&path, &mut last, &anchors);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Publishes a changed bundle. `last` is the last content of the file or why it could not be read
/// (`None` if it did not exist), so that each state is logged once.
fn reload(
    path: &Path,
    last: &mut Option<Result<String, Option<String>>>,
    anchors: &watch::Sender<TrustAnchors>,
) {
    let content = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        // The volume may be optional, and is empty until the control plane is installed.
        io::ErrorKind::NotFound => None,
        _ => Some(error.to_string()),
    });
    if last.as_ref() == Some(&content) {
        return;
    }
    match &content {
        Ok(pem) => match TrustAnchors::from_pem(pem) {
            Ok(new) => {
                tracing::info!(anchors = new.len(), ?path, "Read trust anchors file");
                anchors.send_if_modified(|current| {
                    let is_changed = *current != new;
                    if is_changed {
                        *current = new;
                    }
                    is_changed
                });
            }
            Err(error) => {
                tracing::error!(
                    ?path,
                    %error,
                    "Invalid trust anchors file; keeping the current anchors"
                );
            }
        },
        Err(None) => {
            tracing::info!(
                ?path,
                "Trust anchors file does not exist; keeping the current anchors"
            );
        }
        Err(Some(error)) => {
            tracing::warn!(?path, %error, "Cannot read trust anchors file; keeping the current anchors");
        }
    }
    *last = Some(content);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::tls::tests::TestCa;

    /// Replaces a volume's content like the kubelet: the file is a link into `..data`, which is a
    /// link to a directory and is replaced atomically.
    fn replace(volume: &Path, version: &str, pem: &str) {
        let directory = volume.join(version);
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("ca-bundle.crt"), pem).unwrap();
        symlink(version, volume.join("..data_tmp")).unwrap();
        std::fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        let file = volume.join("ca-bundle.crt");
        if !file.is_symlink() {
            symlink("..data/ca-bundle.crt", file).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn created_and_changed_bundle_is_published() {
        let (first, second, third) = (TestCa::new(), TestCa::new(), TestCa::new());
        let volume = tempfile::tempdir().unwrap();
        let (publish, mut anchors) = watch::channel(first.anchors());
        let file = volume.path().join("ca-bundle.crt");
        tokio::spawn(watch_file(file, publish));
        // An optional ConfigMap that does not exist leaves the volume empty.
        tokio::time::sleep(POLL_INTERVAL * 2).await;
        assert!(!anchors.has_changed().unwrap());
        let both = format!("{}{}", first.pem, second.pem);
        replace(volume.path(), "v1", &both);
        anchors.changed().await.unwrap();
        assert_eq!(anchors.borrow_and_update().len(), 2);
        // An invalid bundle is not published and does not end the watch.
        replace(volume.path(), "v2", "-----BEGIN CERTIFICATE-----");
        tokio::time::sleep(POLL_INTERVAL * 2).await;
        assert!(!anchors.has_changed().unwrap());
        replace(volume.path(), "v3", &third.pem);
        anchors.changed().await.unwrap();
        assert_eq!(*anchors.borrow(), third.anchors());
    }
}
