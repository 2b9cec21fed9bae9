//! Registers listeners of the proxy that opened before the pod was enrolled, or while the programs
//! were not attached. Finds them among the descriptors of the processes in the pod's network
//! namespace, duplicates them with pidfd_getfd, and writes the same entries as `sock_ops` does.
//!
//! The kernel programs write the same PROXIES entry. A write of theirs between this module's read
//! and write is lost; both contain the same cgroup, unless two proxies start concurrently.

use std::collections::HashSet;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use mesh_ebpf_common::address::Family;
use mesh_ebpf_common::layout::{LISTENER_SLOTS, ListenerKey, PodConfig, Role};
use mesh_ebpf_common::verdict;

use super::error::Error;
use super::loader;
use super::maps::{Maps, map_error, optional};
use crate::sys::process::{self, Listener};

/// Limit of inspected sockets per pod. Each takes some ten microseconds of the node thread. The
/// proxy opens its listeners before it accepts connections, so they are among its first
/// descriptors.
const MAX_SOCKETS: usize = 16_384;

const NO_EXIST: u64 = 1;
const ANY: u64 = 0;

/// A listener on a proxy port, and the cgroup of its process.
struct Candidate {
    listener: Listener,
    role: Role,
    cgroup: u64,
}

/// Registers the proxy's listeners for every role without one. Returns how many.
pub(super) fn register(
    maps: &mut Maps,
    cookie: u64,
    config: &PodConfig,
    netns_inode: u64,
) -> Result<usize, Error> {
    register_found(maps, cookie, || candidates(config, netns_inode))
}

/// Registers the listeners of a unit's proxy, by the processes in its cgroup.
pub(super) fn register_of_unit(
    maps: &mut Maps,
    cookie: u64,
    config: &PodConfig,
    proxy_cgroup: &Path,
) -> Result<usize, Error> {
    register_found(maps, cookie, || candidates_in(config, proxy_cgroup))
}

fn register_found(
    maps: &mut Maps,
    cookie: u64,
    candidates: impl FnOnce() -> io::Result<Vec<Candidate>>,
) -> Result<usize, Error> {
    let present = maps.listeners_of(cookie)?;
    let has = |role: Role| present.iter().any(|key| key.role == role as u8);
    if has(Role::Outbound) && has(Role::Inbound) {
        return Ok(0);
    }
    let Some(mut state) = optional(maps.proxies.get(&cookie, 0), "PROXIES")? else {
        return Ok(0);
    };
    let mut registered = 0;
    for candidate in candidates().map_err(Error::Listeners)? {
        let any_listener = !present.is_empty() || registered > 0;
        if has(candidate.role) || !verdict::may_bind(&state, candidate.cgroup, || any_listener) {
            continue;
        }
        if insert(maps, cookie, &candidate)? {
            state.cgroup = candidate.cgroup;
            state.registrations += 1;
            registered += 1;
        }
    }
    if registered > 0 {
        maps.proxies
            .insert(cookie, state, ANY)
            .map_err(map_error("write to", "PROXIES"))?;
    }
    Ok(registered)
}

/// Inserts the socket into the first free slot; returns false when all are taken.
fn insert(maps: &mut Maps, cookie: u64, candidate: &Candidate) -> Result<bool, Error> {
    let family = if candidate.listener.address.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    let taken = maps.listeners_of(cookie)?;
    let free = (0..LISTENER_SLOTS)
        .map(|slot| ListenerKey::new(cookie, candidate.role, family, slot))
        .find(|key| !taken.contains(key));
    let Some(key) = free else {
        return Ok(false);
    };
    maps.listeners
        .insert(key, candidate.listener.socket.as_raw_fd(), NO_EXIST)
        .map_err(map_error("write to", "LISTENERS"))?;
    Ok(true)
}

/// Returns the listeners of the proxy's uid on the proxy's ports in this namespace.
fn candidates(config: &PodConfig, netns_inode: u64) -> io::Result<Vec<Candidate>> {
    let mut pids = processes()?;
    pids.retain(|pid| is_in_netns(*pid, netns_inode) && has_uid(*pid, config.proxy_uid));
    let mut found = listeners_of(config, pids)?;
    found.retain(|candidate| candidate.listener.uid == config.proxy_uid);
    Ok(found)
}

/// Returns the listeners of a cgroup's processes on the proxy's ports; none if it does not exist.
fn candidates_in(config: &PodConfig, cgroup: &Path) -> io::Result<Vec<Candidate>> {
    let pids = match fs::read_to_string(cgroup.join("cgroup.procs")) {
        Ok(pids) => pids,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let pids = pids.lines().filter_map(|pid| pid.parse().ok());
    listeners_of(config, pids.collect())
}

fn listeners_of(config: &PodConfig, pids: Vec<i32>) -> io::Result<Vec<Candidate>> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut remaining = MAX_SOCKETS;
    for pid in pids {
        for fd in sockets(pid, remaining)? {
            remaining -= 1;
            let Some(listener) = process::listener_of(pid, fd)? else {
                continue;
            };
            let Some(role) = verdict::listener_role(config, listener.port) else {
                continue;
            };
            // Descriptors of several processes may refer to one socket.
            if !seen.insert(listener.cookie) {
                continue;
            }
            if let Some(cgroup) = cgroup_of(pid) {
                found.push(Candidate {
                    listener,
                    role,
                    cgroup,
                });
            }
        }
    }
    Ok(found)
}

fn processes() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

fn is_in_netns(pid: i32, inode: u64) -> bool {
    fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|namespace| namespace.ino() == inode)
}

/// Returns whether the process has this user id. Processes of other users cannot occupy the agent
/// with their descriptors.
fn has_uid(pid: i32, uid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| uids(&status).any(|of| of == uid))
}

/// Returns the real, effective, saved and file system user ids of a `/proc/PID/status`.
fn uids(status: &str) -> impl Iterator<Item = u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let words = line.unwrap_or_default().split_ascii_whitespace();
    words.filter_map(|word| word.parse().ok())
}

/// Returns up to `most` descriptors of a process that are sockets; none when it has exited.
fn sockets(pid: i32, most: usize) -> io::Result<Vec<RawFd>> {
    let path = format!("/proc/{pid}/fd");
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let hint =
                format!("cannot list {path} (it takes CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE)");
            return Err(io::Error::new(error.kind(), hint));
        }
        Err(_) => return Ok(Vec::new()),
    };
    let sockets = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let target = fs::read_link(entry.path()).ok()?;
        target.to_str()?.starts_with("socket:").then_some(())?;
        entry.file_name().to_str()?.parse().ok()
    });
    Ok(sockets.take(most).collect())
}

/// Returns the id of the process's cgroup: the inode of its directory.
fn cgroup_of(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = unified_path(&text)?;
    let directory = loader::cgroup2_mount()?.join(path);
    Some(fs::metadata(directory).ok()?.ino())
}

/// Returns the cgroup2 path of a `/proc/PID/cgroup`, relative to the mount point.
fn unified_path(text: &str) -> Option<&Path> {
    text.lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .map(Path::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_ids_are_parsed_from_status() {
        let status = "Name:\tproxy\nUid:\t2102\t2102\t0\t7\nGid:\t5\t5\t5\t5\n";
        assert_eq!(uids(status).collect::<Vec<_>>(), [2102, 2102, 0, 7]);
        assert_eq!(uids("Name:\tkernel\n").count(), 0);
        let own = nix::unistd::getuid().as_raw();
        assert!(has_uid(std::process::id().cast_signed(), own));
        assert!(!has_uid(std::process::id().cast_signed(), own + 1));
    }

    #[test]
    fn unified_path_is_of_hierarchy_zero() {
        let hybrid = "12:cpu,cpuacct:/a\n1:name=systemd:/b\n0::/kubepods/pod1/proxy\n";
        assert_eq!(unified_path(hybrid), Some(Path::new("kubepods/pod1/proxy")));
        assert_eq!(unified_path("0::/\n"), Some(Path::new("")));
        assert_eq!(unified_path("1:name=systemd:/b\n"), None);
    }
}
