//! Quotas of one pod in the maps that all pods of a node share, so that a pod that exceeds its
//! quota affects only itself; docs/operations/limits.md describes the effects, map by map.
//!
//! The sizes of the maps are `pods × quota` and not memory: entries are allocated when used. A hash
//! table allocates 16 bytes for each possible entry; the tables take 20 MB together.

/// Enrolled pods of one node. Far above the limit of a kubelet: 110 by default, 2,500 in the
/// largest documented setting.
pub const PODS_MAX: usize = 10_240;

/// Addresses of one pod. The agent enforces it, because a pod with NET_ADMIN can add any number.
pub const ADDRESSES_PER_POD: usize = 64;
/// Addresses of all pods: enough for 2,560 pods with the maximum.
pub const ADDRESSES_MAX: usize = 2_560 * ADDRESSES_PER_POD;

/// Prefixes of the two port lists of one pod: a range takes up to thirty. The agent limits the
/// ranges of a list when it parses the annotation (`mesh_core::ports::MAX_RANGES`).
pub const PORT_SKIPS_PER_POD: usize = 8_192;
/// Prefixes of all pods.
pub const PORT_SKIPS_MAX: usize = PODS_MAX * PORT_SKIPS_PER_POD;

/// Subnets of one pod; limited as the ports are (`mesh_core::annotation::MAX_SKIP_SUBNETS`).
pub const SUBNET_SKIPS_PER_POD: usize = 128;
/// Subnets of all pods.
pub const SUBNET_SKIPS_MAX: usize = PODS_MAX * SUBNET_SKIPS_PER_POD;

/// Listeners of one pod: the keys of two roles, two families and four slots.
pub const LISTENERS_PER_POD: usize = 16;
/// Listeners of all pods.
pub const LISTENERS_MAX: usize = PODS_MAX * LISTENERS_PER_POD;

/// Connections of one pod between connect and the end of the handshake with its proxy, which takes
/// microseconds unless the queue of the proxy's listener (4,096) is full. The programs enforce it.
pub const IN_FLIGHT_PER_POD: i64 = 4_096;
/// Connections in flight of all pods: enough for 128 pods, more than a kubelet accepts by default,
/// whose proxies have all stopped accepting.
pub const IN_FLIGHT_MAX: usize = 128 * IN_FLIGHT_PER_POD as usize;

/// Ports, each with its bound address, where sockets of one pod listen or have listened. The
/// programs enforce it.
pub const OPEN_PORTS_PER_POD: i64 = 1_024;
/// Ports of all pods: enough for 128 pods with the maximum.
pub const OPEN_PORTS_MAX: usize = 128 * OPEN_PORTS_PER_POD as usize;

/// Enrolled systemd units of one host. Each has a block of ports (`mesh-agent::machine::ports`),
/// and this is the number of blocks.
pub const UNITS_MAX: usize = 64;
/// Names of cgroups that are registered when they are created: of each unit its own, its sockets'
/// and its proxy's, and the slices on the way to them. The agent enforces it.
pub const CGROUP_NAMES_MAX: usize = 512;
/// Registered cgroups: a name has one at a time, and one more between two reconciliations if the
/// end of a cgroup was missed.
pub const CGROUPS_MAX: usize = 2 * CGROUP_NAMES_MAX;
/// Ports of the proxies of all units.
pub const PROXY_PORTS_MAX: usize = UNITS_MAX * 64;
/// Ports where sockets of all units listen or have listened; of each unit [`OPEN_PORTS_PER_POD`],
/// as the programs enforce it.
pub const UNIT_PORTS_MAX: usize = UNITS_MAX * OPEN_PORTS_PER_POD as usize;
