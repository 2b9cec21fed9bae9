//! The programs for systemd units on a host without Kubernetes.
//!
//! ```text
//! cgroups ──a cgroup with the name of a unit is created──▶ CGROUPS
//!                                                            │ whose process is it?
//! connect, bind ─────────────────────────────────────────────┤
//! sock_ops ──listen(2) of a unit──▶ UNIT_PORTS ──▶ steer ──▶ the unit's proxy
//! ```
//!
//! A unit has a cookie and the entries of a pod. What finds it differs, because the network
//! namespace is the host's:
//!
//! * A process is a unit's, or its proxy's, by its cgroup. systemd removes the cgroup of a unit
//!   that stops and creates another one for the next start. `cgroups` registers that one while
//!   mkdir(2) runs, before it has a process. The programs are attached to a cgroup above all units
//!   that systemd never removes, so that nothing has to be attached to the new one.
//! * A connection inside the host is a unit's by its port: the proxy of each unit listens on ports
//!   of its own, and its outbound connections are redirected to a range of their own.
//! * A connection from outside is a unit's if a socket of the unit listens on its port.
//!
//! Processes elsewhere below that cgroup run the programs, which end after three lookups. The
//! programs of the proxies are attached to the parent of the proxies' cgroups only.

mod bind;
mod caller;
mod cgroups;
mod connect;
mod getsockopt;
mod maps;
mod ports;
mod sock_ops;
mod steer;
