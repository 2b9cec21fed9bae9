//! The programs of a machine, and their hooks.

use super::super::hook::{Hook, hook};
use crate::sys::bpf::AttachType;

/// Programs for the processes of units, attached to a cgroup above all of them. In the order of
/// attachment and replacement, readers before writers.
pub(super) const UNIT_HOOKS: [Hook; 7] = [
    hook("mesh_getpeername4", AttachType::GetPeerName4),
    hook("mesh_getpeername6", AttachType::GetPeerName6),
    hook("mesh_unit_sock_ops", AttachType::SockOps),
    hook("mesh_unit_bind4", AttachType::Bind4),
    hook("mesh_unit_bind6", AttachType::Bind6),
    hook("mesh_unit_connect4", AttachType::Connect4),
    hook("mesh_unit_connect6", AttachType::Connect6),
];

/// Programs for the proxies of units, attached to the parent of their cgroups. Attached first:
/// programs of units on the same cgroup read the values that these store.
pub(super) const PROXY_HOOKS: [Hook; 6] = [
    hook("mesh_proxy_getsockopt", AttachType::GetSockOpt),
    hook("mesh_proxy_sock_ops", AttachType::SockOps),
    hook("mesh_proxy_bind4", AttachType::Bind4),
    hook("mesh_proxy_bind6", AttachType::Bind6),
    hook("mesh_proxy_connect4", AttachType::Connect4),
    hook("mesh_proxy_connect6", AttachType::Connect6),
];

/// The program of the host's network namespace.
pub(super) const STEER: Hook = hook("mesh_unit_steer", AttachType::SkLookup);

/// Programs that register cgroups, each with its tracepoint. Attached before all others, and
/// removed after them.
pub(super) const TRACEPOINTS: [(&str, &str); 2] = [
    ("mesh_cgroup_mkdir", "cgroup_mkdir"),
    ("mesh_cgroup_rmdir", "cgroup_rmdir"),
];

/// The names of all programs.
pub(super) fn programs() -> impl Iterator<Item = &'static str> {
    let hooks = PROXY_HOOKS.into_iter().chain(UNIT_HOOKS).chain([STEER]);
    let traced = TRACEPOINTS.iter().map(|(program, _)| *program);
    traced.chain(hooks.map(|hook| hook.program))
}
