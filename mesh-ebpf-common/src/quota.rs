//! What one pod may take of the maps that all pods of a node share. With these quotas a pod that
//! exceeds its own is the only one that suffers; docs/operations/limits.md says how, map by map.
//!
//! The sizes of the maps are `pods × quota` and are no memory: entries are allocated when used. A
//! hash table allocates 16 bytes for each entry that it may have; the tables take 18 MB together.

/// Enrolled pods of one node. Far above what a kubelet takes: 110 by default, 2,500 in the largest
/// documented setting.
pub const PODS_MAX: usize = 10_240;

/// Addresses of one pod. The agent counts them: a pod with NET_ADMIN gives itself any number.
pub const ADDRESSES_PER_POD: usize = 64;
/// For 2,560 pods that have as many addresses as they may.
pub const ADDRESSES_MAX: usize = 2_560 * ADDRESSES_PER_POD;

/// Prefixes of the two port lists of one pod: a range costs up to thirty. How many ranges a list
/// has the agent checks when it reads the annotation (`mesh_core::ports::MAX_RANGES`).
pub const PORT_SKIPS_PER_POD: usize = 8_192;
pub const PORT_SKIPS_MAX: usize = PODS_MAX * PORT_SKIPS_PER_POD;

/// Subnets of one pod; checked as the ports are (`mesh_core::annotation::MAX_SKIP_SUBNETS`).
pub const SUBNET_SKIPS_PER_POD: usize = 128;
pub const SUBNET_SKIPS_MAX: usize = PODS_MAX * SUBNET_SKIPS_PER_POD;

/// Two roles, two families, four slots: the keys of one pod are no more.
pub const LISTENERS_PER_POD: usize = 16;
pub const LISTENERS_MAX: usize = PODS_MAX * LISTENERS_PER_POD;

/// Connections of one pod between connect and the end of the handshake with its proxy. That takes
/// microseconds, unless the queue of the proxy's listener (4,096) is full. Counted by the programs.
pub const IN_FLIGHT_PER_POD: i64 = 4_096;
/// For 128 pods, more than a kubelet takes by default, whose proxies all have stopped accepting.
pub const IN_FLIGHT_MAX: usize = 128 * IN_FLIGHT_PER_POD as usize;
