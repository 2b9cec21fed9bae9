//! The maps that only a machine uses. The maps of the module above have the same keys as for pods,
//! with the cookie of a unit.
//!
//! | map | written by | life of an entry |
//! |---|---|---|
//! | CGROUP_NAMES, LEVELS, UNITS, PROXY_PORTS | user space | enrolment |
//! | CGROUPS | cgroups, and user space for older ones | the cgroup |
//! | UNIT_PORTS | sock_ops | first socket that listens to the end of the enrolment |
//! | ADOPTED_PORTS | user space | a listening socket that sock_ops did not see |
//! | UNIT_SOCKETS | bind, sock_ops | the socket (storage) |

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::btf_maps::{Array, HashMap, SkStorage};
use aya_ebpf::macros::btf_map;
use mesh_ebpf_common::quota::{
    CGROUP_NAMES_MAX, CGROUPS_MAX, PROXY_PORTS_MAX, UNIT_PORTS_MAX, UNITS_MAX,
};
use mesh_ebpf_common::unit::{
    AdoptedPort, CgroupName, HostPort, Member, ProxyPort, UnitConfig, UnitPort, UnitSocket,
};

const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

/// Allocated beforehand, as the kernel requires of maps that tracing programs use.
#[btf_map]
pub static CGROUPS: HashMap<u64, Member, CGROUPS_MAX> = HashMap::new();

#[btf_map]
pub static CGROUP_NAMES: HashMap<CgroupName, Member, CGROUP_NAMES_MAX> = HashMap::new();

/// The levels that cgroups of units have, one in each byte, from the lowest byte up to the first
/// zero.
#[btf_map]
pub static LEVELS: Array<u64, 1> = Array::new();

#[btf_map]
static UNITS: HashMap<u64, UnitConfig, UNITS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
static PROXY_PORTS: HashMap<u32, ProxyPort, PROXY_PORTS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
pub static UNIT_PORTS: HashMap<HostPort, UnitPort, UNIT_PORTS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
pub static ADOPTED_PORTS: HashMap<HostPort, AdoptedPort, UNIT_PORTS_MAX, ON_DEMAND> =
    HashMap::new();

#[btf_map]
pub static UNIT_SOCKETS: SkStorage<UnitSocket> = SkStorage::new();

/// Returns the settings of a unit, if it is enrolled.
#[inline(always)]
pub fn unit(cookie: u64) -> Option<&'static UnitConfig> {
    // SAFETY: an entry stays valid while the program runs (RCU), and user space replaces entries
    // instead of editing them.
    unsafe { UNITS.get(cookie) }
}

/// Returns the role of a cgroup in the mesh, by its id.
#[inline(always)]
pub fn member(cgroup: u64) -> Option<&'static Member> {
    // SAFETY: an entry stays valid while the program runs (RCU). A cgroup's id is never reused.
    unsafe { CGROUPS.get(cgroup) }
}

/// Returns the use of a port by a proxy.
#[inline(always)]
pub fn proxy_port(port: u16) -> Option<&'static ProxyPort> {
    // SAFETY: as for `unit`.
    unsafe { PROXY_PORTS.get(u32::from(port)) }
}
