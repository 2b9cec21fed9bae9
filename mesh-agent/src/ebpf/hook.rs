//! The programs that are attached once per node, and their hooks.

use crate::sys::bpf::AttachType;

/// A program of the object, and the hook at the pods' parent cgroup that it is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hook {
    /// The program's name in the object and of its pin.
    pub(super) program: &'static str,
    pub(super) attach_type: AttachType,
}

/// In the order of attachment and replacement, readers before writers: a program that stores a
/// value always has a reader in place, and a replaced reader still accepts values of the old
/// writer.
pub(super) const HOOKS: [Hook; 8] = [
    hook("mesh_getsockopt", AttachType::GetSockOpt),
    hook("mesh_getpeername4", AttachType::GetPeerName4),
    hook("mesh_getpeername6", AttachType::GetPeerName6),
    hook("mesh_sock_ops", AttachType::SockOps),
    hook("mesh_bind4", AttachType::Bind4),
    hook("mesh_bind6", AttachType::Bind6),
    hook("mesh_connect4", AttachType::Connect4),
    hook("mesh_connect6", AttachType::Connect6),
];

/// The program that observes listening sockets, at the root of the node's cgroups: a socket of a
/// pod's namespace may belong to a process outside of the pod. Redirection works without it.
pub(super) const OPEN_PORTS: Hook = hook("mesh_open_ports", AttachType::SockOps);

/// Each pod has an instance of this program, in its own network namespace.
pub(super) const STEER: &str = "mesh_steer";

/// Each interface of a pod has an instance of this program while the guard is on.
pub(super) const GUARD: &str = "mesh_guard";

pub(super) const fn hook(program: &'static str, attach_type: AttachType) -> Hook {
    Hook {
        program,
        attach_type,
    }
}
