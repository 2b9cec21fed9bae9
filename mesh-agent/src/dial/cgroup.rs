//! Moves this process below the parent of the pods' cgroups while it creates a socket: the kernel
//! programs there run for sockets of such processes only. A process in the agent's container of a
//! cluster is below it already; one beside an agent without a container is not.
//!
//! The cgroup is neither the proxy's nor one that a proxy could have, so the programs take its
//! process for an application. A socket keeps the cgroup that it was created in, also after that
//! was removed.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, process};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use crate::host;

/// Followed by the process id.
const PREFIX: &str = "mesh-dial-";

/// How long the threads of this process may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("the agent has attached no kernel programs to the parent of the pods' cgroups")]
    NotAttached,
    #[error("cannot enter the node's cgroup namespace (it takes CAP_SYS_ADMIN and CAP_SYS_PTRACE)")]
    Namespace(#[source] io::Error),
    #[error("cannot find the cgroup of this process below {0}")]
    NoOwn(PathBuf),
    #[error("cannot {action} cgroup {path} (it takes a writable cgroup hierarchy)")]
    Directory {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// Ends the membership when dropped.
#[derive(Debug)]
pub(super) struct PodsCgroup {
    /// `None` for a process that is below the parent anyway.
    temporary: Option<Temporary>,
}

#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    original: PathBuf,
}

impl PodsCgroup {
    /// `parent` is the cgroup that the agent attaches the programs to.
    pub(super) fn enter(parent: Option<&Path>) -> Result<Self, CgroupError> {
        let parent = parent.ok_or(CgroupError::NotAttached)?;
        host::enter_cgroup_namespace().map_err(CgroupError::Namespace)?;
        let original = own_cgroup(parent)?;
        if original.starts_with(parent) {
            return Ok(Self { temporary: None });
        }
        remove_abandoned(parent);
        let path = parent.join(format!("{PREFIX}{}", process::id()));
        fs::create_dir(&path).map_err(directory_error("create", &path))?;
        let temporary = Temporary { path, original };
        join(&temporary.path)?;
        Ok(Self {
            temporary: Some(temporary),
        })
    }
}

impl Drop for PodsCgroup {
    fn drop(&mut self) {
        let Some(Temporary { path, original }) = &self.temporary else {
            return;
        };
        // If this fails, the next dial removes the cgroup.
        let _ = join(original);
        remove_emptied(path);
    }
}

/// Removes a cgroup that this process has left. A thread that was joined may still be exiting: the
/// kernel does not move it, and refuses to remove the cgroup until it has ended.
fn remove_emptied(path: &Path) {
    let Ok(mut events) = File::open(path.join("cgroup.events")) else {
        return;
    };
    let deadline = Instant::now() + EXIT_TIMEOUT;
    loop {
        // The kernel reports changes since this reading.
        let mut state = String::new();
        let read = events
            .rewind()
            .and_then(|()| events.read_to_string(&mut state));
        let is_busy =
            fs::remove_dir(path).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
        if read.is_err() || !is_busy {
            return;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut changed = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
        if !poll(&mut changed, timeout).is_ok_and(|ready| ready > 0) {
            return;
        }
    }
}

/// Returns the path of this process's cgroup in the mounted hierarchy of `parent`.
fn own_cgroup(parent: &Path) -> Result<PathBuf, CgroupError> {
    let not_found = || CgroupError::NoOwn(parent.to_owned());
    let text = fs::read_to_string("/proc/self/cgroup").map_err(|_unreadable| not_found())?;
    let own = text
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .ok_or_else(not_found)?;
    let mount = parent
        .ancestors()
        .take_while(|path| is_cgroup2(path))
        .last()
        .ok_or_else(not_found)?;
    Ok(mount.join(own))
}

fn is_cgroup2(path: &Path) -> bool {
    statfs(path).is_ok_and(|status| status.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

fn join(path: &Path) -> Result<(), CgroupError> {
    fs::write(path.join("cgroup.procs"), process::id().to_string())
        .map_err(directory_error("join", path))
}

/// Removes the cgroups of dials that were killed. One whose process runs is not empty, and stays.
fn remove_abandoned(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn directory_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::Directory {
        action,
        path,
        source,
    }
}
