//! Network namespaces that live without a process, bound to a file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    #[error("make the file {path} for a network namespace")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("make a network namespace at {path}")]
    Make {
        path: PathBuf,
        #[source]
        source: nix::Error,
    },
    #[error("remove the network namespace {path}")]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the thread that makes the network namespace {path} ended early")]
    Thread { path: PathBuf },
}

/// Makes an empty namespace. A thread enters it and ends; the mount keeps it.
pub fn make(path: &Path) -> Result<(), NetnsError> {
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
        Ok(Err(source)) => Err(NetnsError::Make {
            path: path.to_owned(),
            source,
        }),
        Err(_panic) => Err(NetnsError::Thread {
            path: path.to_owned(),
        }),
    }
}

/// On a link with two ends, and addresses that a plugin hands out once, nobody can have an address
/// already; looking for it takes the kernel almost two seconds before each pod's start.
/// `/proc/sys/net` is that of the calling thread's namespace.
fn skip_duplicate_detection() {
    for scope in ["all", "default"] {
        // Without IPv6 there is no such file, and no waiting.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad"), "0");
    }
}

/// Removes the mount and its file; the namespace goes with its last process. One that is gone is
/// removed.
pub fn remove(path: &Path) -> Result<(), NetnsError> {
    let remove_error = |source| NetnsError::Remove {
        path: path.to_owned(),
        source,
    };
    match umount2(path, MntFlags::MNT_DETACH) {
        // Not mounted, or no such file.
        Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => {}
        Err(error) => return Err(remove_error(error.into())),
    }
    crate::file::remove(path).map_err(remove_error)
}
