//! Duplicates sockets of other processes, and translates uids of their user namespaces.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::{fs, io};

use nix::sched::{CloneFlags, setns};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pipe, read};
use socket2::Socket;

/// The inode of the initial user namespace (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;
/// `NS_GET_USERNS`: `_IO(0xb7, 1)`.
const NS_GET_USERNS: libc::Ioctl = 0xb701;

pub struct Listener {
    pub socket: Socket,
    pub address: IpAddr,
    pub port: u16,
    /// The uid that created it, in the initial user namespace.
    pub uid: u32,
    pub cookie: u64,
}

/// Duplicates descriptor `fd` of process `pid` if it is a listening TCP socket. Returns `None` also
/// when the process has exited or closed the descriptor.
pub fn listener_of(pid: i32, fd: RawFd) -> io::Result<Option<Listener>> {
    let Some(copy) = duplicate(pid, fd)? else {
        return Ok(None);
    };
    let uid = uid_of(&copy)?;
    let socket = Socket::from(copy);
    let is_tcp_listener = socket.is_listener().unwrap_or(false)
        && socket.protocol().ok().flatten() == Some(socket2::Protocol::TCP);
    let address = socket
        .local_addr()
        .ok()
        .and_then(|address| address.as_socket());
    match address {
        Some(address) if is_tcp_listener => Ok(Some(Listener {
            cookie: socket.cookie()?,
            address: SocketAddr::ip(&address),
            port: address.port(),
            uid,
            socket,
        })),
        _ => Ok(None),
    }
}

fn uid_of(fd: &OwnedFd) -> io::Result<u32> {
    Ok(nix::sys::stat::fstat(fd)?.st_uid)
}

fn duplicate(pid: i32, fd: RawFd) -> io::Result<Option<OwnedFd>> {
    // SAFETY: no pointers are passed.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Some(pidfd) = owned_descriptor(pidfd)? else {
        return Ok(None);
    };
    // SAFETY: no pointers are passed.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) };
    owned_descriptor(copy)
}

/// Returns the descriptor of a system call, or `None` when its target no longer exists.
fn owned_descriptor(result: libc::c_long) -> io::Result<Option<OwnedFd>> {
    if result >= 0 {
        // SAFETY: the kernel has just created this descriptor, and it has no other owner.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(result as RawFd) }));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::EBADF) => Ok(None),
        _ => Err(error),
    }
}

/// Translates `uid` from the user namespace that owns this network namespace to the initial one,
/// which the kernel uses for uids in BPF programs (pods with `hostUsers: false` have their own).
pub fn initial_uid(netns: impl AsFd, uid: u32) -> io::Result<Option<u32>> {
    // SAFETY: the request has no argument.
    let owner = unsafe { libc::ioctl(netns.as_fd().as_raw_fd(), NS_GET_USERNS) };
    if owner < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor, and it has no other owner.
    let owner = unsafe { OwnedFd::from_raw_fd(owner) };
    if nix::sys::stat::fstat(&owner)?.st_ino == INITIAL_USER_NAMESPACE {
        return Ok(Some(uid));
    }
    let map = uid_map_of(&owner)?;
    Ok(translate(&map, uid))
}

/// Returns the uid map of a user namespace, relative to this process's. Only a process inside the
/// namespace has the file, and only a single-threaded process may enter it, so a short-lived child
/// does.
fn uid_map_of(user_namespace: &OwnedFd) -> io::Result<String> {
    // The child reports over the first pipe, and exits when the second one is closed.
    let (ready, report) = pipe()?;
    let (hold, release) = pipe()?;
    // SAFETY: the child makes only async-signal-safe calls (setns, close, write, read, _exit) and
    // does not allocate.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(release);
            let entered = setns(user_namespace, CloneFlags::CLONE_NEWUSER).is_ok();
            let _ = nix::unistd::write(&report, &[u8::from(entered)]);
            let _ = read(&hold, &mut [0]);
            // SAFETY: exits the child without running the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(report);
            drop(hold);
            let mut entered = [0];
            let result = match read(&ready, &mut entered) {
                Ok(1) if entered == [1] => fs::read_to_string(format!("/proc/{child}/uid_map")),
                Ok(_) => Err(io::Error::other("cannot enter the pod's user namespace")),
                Err(errno) => Err(errno.into()),
            };
            drop(release);
            waitpid(child, None)?;
            result
        }
    }
}

/// Translates `uid` by a `/proc/PID/uid_map`, whose lines are "inside outside count".
fn translate(map: &str, uid: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let offset = uid.checked_sub(inside)?;
        (offset < count).then(|| outside.checked_add(offset))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uid_is_translated_by_the_line_that_contains_it() {
        let map = "         0     100000      65536\n     65536          0          1\n";
        assert_eq!(translate(map, 0), Some(100_000));
        assert_eq!(translate(map, 2102), Some(102_102));
        assert_eq!(translate(map, 65_536), Some(0));
        assert_eq!(translate(map, 65_537), None);
        assert_eq!(translate("0 0 4294967295", 2102), Some(2102));
        assert_eq!(translate("", 0), None);
    }

    #[test]
    fn initial_user_namespace_needs_no_translation() {
        let own = fs::File::open("/proc/self/ns/net").unwrap();
        assert_eq!(initial_uid(own, 2102).unwrap(), Some(2102));
    }
}
