//! Waits for any change in a directory (inotify); the caller checks everything.

use std::io;
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::net::unix::pipe;

#[derive(Debug)]
pub(super) struct DirectoryWatch {
    /// Not a pipe, but read like one: inotify delivers events as bytes.
    events: pipe::Receiver,
}

impl DirectoryWatch {
    /// Fails when the directory does not exist, among other reasons.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let changes = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(directory, changes)?;
        Ok(Self {
            events: pipe::Receiver::from_owned_fd_unchecked(inotify.into())?,
        })
    }

    /// Waits for a change, and consumes all changes reported by then.
    pub(super) async fn changed(&self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let mut has_read = false;
        loop {
            match self.events.try_read(&mut buffer) {
                Ok(_) => has_read = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && has_read => {
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.events.readable().await?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, future::Future, pin::pin, task::Poll, time::Duration};

    use super::*;

    #[tokio::test]
    async fn changes_wake_the_watch_once() {
        let dir = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new(dir.path()).unwrap();
        fs::write(dir.path().join("a"), "1").unwrap();
        fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        let woken = tokio::time::timeout(Duration::from_secs(20), watch.changed());
        woken.await.unwrap().unwrap();
        let mut again = pin!(watch.changed());
        let again = std::future::poll_fn(|context| Poll::Ready(again.as_mut().poll(context)));
        assert!(again.await.is_pending());
        let of_file = DirectoryWatch::new(&dir.path().join("b"));
        assert!(of_file.is_err());
    }
}
