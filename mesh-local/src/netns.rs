//! Network namespaces that a bind mount keeps alive without a process.

use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::file::{self, FileError};

#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    #[error("create the file {path} for a network namespace")]
    File { path: PathBuf, source: io::Error },
    #[error("create a network namespace at {path}")]
    Create { path: PathBuf, source: nix::Error },
    #[error("the thread that creates the network namespace {path} panicked")]
    Thread { path: PathBuf },
}

/// Creates an empty namespace: a thread enters a new namespace and binds it to `path`.
pub fn create(path: &Path) -> Result<(), NetnsError> {
    let file_error = |source| NetnsError::File {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(file_error)?;
    }
    fs::File::create(path).map_err(file_error)?;
    let target = path.to_owned();
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        skip_duplicate_detection();
        let own = Path::new("/proc/thread-self/ns/net");
        mount(
            Some(own),
            &target,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
    });
    match thread.join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(source)) => Err(NetnsError::Create {
            path: path.to_owned(),
            source,
        }),
        Err(_panic) => Err(NetnsError::Thread {
            path: path.to_owned(),
        }),
    }
}

/// Disables IPv6 duplicate address detection, which delays the start of each pod by almost two
/// seconds. Addresses on the point-to-point links are unique, because the plugin assigns each once.
/// `/proc/sys/net` shows the calling thread's namespace.
fn skip_duplicate_detection() {
    for scope in ["all", "default"] {
        // The file does not exist if the kernel has no IPv6.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad"), "0");
    }
}

/// Removes the mount and its file, if they exist. The kernel removes the namespace when its last
/// process exits.
pub fn remove(path: &Path) -> Result<(), FileError> {
    let remove_error = file::failed("remove the network namespace", path);
    match umount2(path, MntFlags::MNT_DETACH) {
        // The path is not mounted or does not exist.
        Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => {}
        Err(error) => return Err(remove_error(error.into())),
    }
    file::remove(path).map_err(remove_error)
}
