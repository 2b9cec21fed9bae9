//! Errors of the kernel programs, worded for the operator who has to resolve them.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use mesh_runtime::file::FileError;
use thiserror::Error;

use crate::redirect::Tier;
use crate::sys::netns::NetnsError;

#[derive(Debug, Error)]
pub enum Error {
    #[error(
        "the eBPF tiers are unavailable: this agent was built without the kernel programs (build them with `cargo xtask ebpf` first, or pass an object with --bpf-object)"
    )]
    NoObject,
    #[error("cannot read the kernel programs from {path}")]
    ReadObject { path: PathBuf, source: io::Error },
    #[error("{path} is not on a bpffs and none could be mounted there (it takes CAP_SYS_ADMIN)")]
    Bpffs { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Pin(#[from] FileError),
    #[error("no kernel programs are pinned below {0}: no agent has loaded them on this node")]
    NotPinned(PathBuf),
    #[error("{path} is not a directory of cgroup version 2, where programs could be attached")]
    NotCgroup2 { path: PathBuf },
    #[error("cannot open cgroup {path}")]
    Cgroup { path: PathBuf, source: io::Error },
    #[error("cannot read the kernel programs' object file")]
    Object(#[source] EbpfError),
    #[error("the object file has no program {0}: it is not the mesh's, or of another version")]
    NoProgram(&'static str),
    #[error("the kernel does not let this process create maps (it takes CAP_BPF)")]
    MapsNotPermitted(#[source] EbpfError),
    #[error("the kernel refused a map of the kernel programs (they take Linux 5.15)")]
    MapRefused(#[source] EbpfError),
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
    #[error("cannot query what is attached to {path}")]
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
        "network namespace {netns} has cookie {found}, not {expected}: it no longer is the pod's"
    )]
    NetnsMismatch {
        netns: PathBuf,
        expected: u64,
        found: u64,
    },
    #[error(
        "{0} is the host's network namespace: redirecting a host-network pod would redirect the node"
    )]
    HostNetwork(PathBuf),
    #[error("tier {0:?} uses no kernel programs")]
    WrongTier(Tier),
    #[error("the pod has no address to redirect to")]
    NoAddress,
    #[error("{0} is a loopback address, which cannot be a pod's")]
    LoopbackAddress(IpAddr),
    #[error("cannot map the proxy's uid {uid} from the user namespace of {netns}")]
    ProxyUid {
        uid: u32,
        netns: PathBuf,
        source: io::Error,
    },
    #[error("the proxy's uid {uid} is not mapped outside the user namespace of {netns}")]
    UnmappedProxyUid { uid: u32, netns: PathBuf },
    #[error(
        "the pinned kernel programs are of a version without guard; start the agent of this version"
    )]
    NoGuard,
    #[error(
        "the pinned kernel programs are of a version that reports no decisions; start the agent of this version"
    )]
    NoTraces,
    #[error(
        "the kernel programs' maps have no entry for the pod; the agent adds it at its next reconciliation"
    )]
    NotInMaps,
    #[error("cannot open the log of the kernel programs")]
    Log(#[source] aya_log::Error),
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
    #[error("cannot list the listeners that were open before the pod's enrolment")]
    Listeners(#[source] io::Error),
    #[error(
        "cannot read the kernel's type information from {path} (it takes a kernel with CONFIG_DEBUG_INFO_BTF)"
    )]
    KernelTypes { path: PathBuf, source: io::Error },
    #[error("the kernel's type information has no {0}")]
    NoKernelTypes(&'static str),
    #[error("cannot attach {program} to tracepoint {tracepoint} (it takes CAP_PERFMON)")]
    Tracepoint {
        program: &'static str,
        tracepoint: &'static str,
        source: io::Error,
    },
    #[error(
        "the kernel programs did not observe the creation of cgroup {0}, so that units could not be followed over their restarts"
    )]
    NotObserved(PathBuf),
    #[error("cannot read the clock")]
    Clock(#[source] io::Error),
    #[error("cannot {action} cgroup {path}")]
    CgroupDirectory {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{0:?} is not the path of a cgroup")]
    CgroupPath(String),
    #[error("cgroup {0:?} is of two units, or also on the path to another unit's")]
    SharedCgroup(String),
    #[error(
        "units have cgroups on more than {0} levels of the hierarchy; withdraw some, or move them to fewer levels of slices"
    )]
    TooManyLevels(usize),
    #[error("cgroup {path} has more than {most} cgroups below it")]
    TooManyCgroups { path: PathBuf, most: usize },
}
