//! Network namespaces: runs closures inside one, and reads its cookie.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::{io, thread};

use nix::sched::{CloneFlags, setns};
use socket2::{Domain, Socket, Type};
use thiserror::Error;

/// From include/uapi/asm-generic/socket.h; the libc crate lacks it.
const SO_NETNS_COOKIE: libc::c_int = 71;

#[derive(Debug, Error)]
pub enum NetnsError {
    #[error("cannot open network namespace {path}")]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot enter the network namespace (it takes CAP_SYS_ADMIN)")]
    Enter(#[source] io::Error),
    #[error("cannot read the network namespace's cookie (SO_NETNS_COOKIE requires Linux 5.14)")]
    Cookie(#[source] io::Error),
    #[error("a thread inside the network namespace panicked")]
    Panicked,
}

/// Runs `work` inside the namespace on a new thread, which then exits, so that no thread of the
/// program remains in a foreign namespace.
pub fn run_in<T: Send>(
    netns: impl AsFd + Send,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NetnsError> {
    thread::scope(|scope| {
        scope
            .spawn(|| {
                setns(netns, CloneFlags::CLONE_NEWNET)
                    .map_err(|errno| NetnsError::Enter(errno.into()))?;
                Ok(work())
            })
            .join()
            .unwrap_or(Err(NetnsError::Panicked))
    })
}

/// Opens a namespace file (`/proc/PID/ns/net`, `/run/netns/NAME`).
pub fn open(path: &Path) -> Result<File, NetnsError> {
    File::open(path).map_err(|source| NetnsError::Open {
        path: path.to_owned(),
        source,
    })
}

/// Returns the cookie of the namespace at `path`: unique until reboot and never reused.
pub fn cookie_of(path: &Path) -> Result<u64, NetnsError> {
    run_in(open(path)?, current_cookie)?
}

pub fn current_cookie() -> Result<u64, NetnsError> {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None).map_err(NetnsError::Cookie)?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(NetnsError::Cookie(io::Error::last_os_error()));
    }
    Ok(cookie)
}
