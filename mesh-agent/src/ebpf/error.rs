//! What can go wrong with the kernel programs, in the words of the person who has to repair it.

use std::{io, net::IpAddr, path::PathBuf};

use aya::{EbpfError, maps::MapError, programs::ProgramError};
use thiserror::Error;

use crate::{redirect::Tier, sys::netns::NetnsError};

#[derive(Debug, Error)]
pub enum Error {
    #[error(
        "the eBPF tiers are unavailable: this agent was built without the kernel programs (build them with `cargo xtask ebpf` first, or name an object with --bpf-object)"
    )]
    NoObject,
    #[error("cannot read the kernel programs from {path}")]
    ReadObject { path: PathBuf, source: io::Error },
    #[error("{path} is not on a bpffs and none could be mounted there (it takes CAP_SYS_ADMIN)")]
    Bpffs { path: PathBuf, source: io::Error },
    #[error("cannot {action} {path}")]
    Pin {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("no kernel programs are pinned below {0}: the agent has not loaded them on this node")]
    NotPinned(PathBuf),
    #[error("{path} is not a directory of cgroup version 2, where programs could be attached")]
    NotCgroup2 { path: PathBuf },
    #[error("cannot open cgroup {path}")]
    Cgroup { path: PathBuf, source: io::Error },
    #[error("cannot read the kernel programs' object file")]
    Object(#[source] EbpfError),
    #[error("the object file has no program {0}: it is not ours, or of another version")]
    NoProgram(&'static str),
    #[error("the kernel does not let this process make maps (it takes CAP_BPF)")]
    MapsNotPermitted(#[source] EbpfError),
    #[error(
        "the kernel does not let this process load program {program} (it takes CAP_BPF and CAP_NET_ADMIN)"
    )]
    NotPermitted {
        program: &'static str,
        source: ProgramError,
    },
    #[error("the kernel refused program {program}")]
    Refused {
        program: &'static str,
        source: ProgramError,
    },
    #[error(
        "cannot attach {program} to {target} (EPERM here means that an exclusive program is attached above it)"
    )]
    Attach {
        program: &'static str,
        target: PathBuf,
        source: io::Error,
    },
    #[error("cannot replace {program} at {path}")]
    Replace {
        program: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("cannot ask what is attached to {path}")]
    Query { path: PathBuf, source: io::Error },
    #[error("cannot {action} map {map}")]
    Map {
        action: &'static str,
        map: &'static str,
        source: MapError,
    },
    #[error("map {0} is full")]
    Full(&'static str),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(
        "network namespace {netns} has cookie {found}, not {expected}: it is not the pod's any more"
    )]
    OtherNetns {
        netns: PathBuf,
        expected: u64,
        found: u64,
    },
    #[error(
        "{0} is the host's network namespace: redirecting a host-network pod would redirect the node"
    )]
    HostNetwork(PathBuf),
    #[error("tier {0:?} has no kernel programs to enrol a pod with")]
    WrongTier(Tier),
    #[error("the pod has no address, so there is nothing to redirect to")]
    NoAddress,
    #[error("{0} is a loopback address, which no pod can be reached at")]
    LoopbackAddress(IpAddr),
    #[error("cannot translate the proxy's uid {uid} out of the user namespace of {netns}")]
    ProxyUid {
        uid: u32,
        netns: PathBuf,
        source: io::Error,
    },
    #[error("the proxy's uid {uid} does not exist outside the user namespace of {netns}")]
    UnmappedProxyUid { uid: u32, netns: PathBuf },
    #[error(
        "the pinned kernel programs are of a version without guard; start the agent that belongs to this plugin"
    )]
    NoGuard,
    #[error("this kernel cannot attach the guard (it takes Linux 6.6)")]
    GuardUnavailable(#[source] io::Error),
    #[error(
        "cannot guard interface {interface} of network namespace {netns} (it takes CAP_NET_ADMIN)"
    )]
    AttachGuard {
        interface: u32,
        netns: PathBuf,
        source: io::Error,
    },
    #[error(
        "pod {pod} has more than {most} network interfaces; the guard does not see what leaves through the others"
    )]
    TooManyInterfaces { pod: String, most: usize },
    #[error("cannot list the interfaces of network namespace {netns}")]
    Interfaces { netns: PathBuf, source: io::Error },
    #[error("cannot look for listeners that are older than the pod's enrolment")]
    Listeners(#[source] io::Error),
}
