//! Records the ports where the sockets of a pod listen, so that `steer` refuses connections to the
//! others, as the kernel does without the mesh.
//!
//! * hook: `sockops`; attached at the root of the node's cgroups, since a socket of the pod's
//!   network namespace may belong to a process outside of the pod's cgroup
//! * minimum kernel: 5.15 (netns cookie in this hook)
//! * reads PODS; writes PORT_TRACKING, OPEN_PORTS, OPENED (the socket's)
//! * absent: the proxy accepts connections to ports without a listener
//!
//! Errs towards an open port only: a socket that cannot be recorded makes all ports of the pod
//! unknown, and a socket whose end goes unnoticed keeps its port open. As `sock_ops`, it leaves
//! `reply` alone and always returns 1.

use aya_ebpf::bindings::{BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_TCP_LISTEN_CB, BPF_TCP_LISTEN};
use aya_ebpf::macros::sock_ops;
use aya_ebpf::programs::SockOpsContext;
use mesh_ebpf_common::layout::{OpenedPort, PortKey};
use mesh_ebpf_common::verdict;

use crate::context::{self, load};
use crate::maps::{self, Storage};
use crate::sock_ops::{DONE, socket_of, watch_state};

#[sock_ops]
pub fn mesh_open_ports(ctx: SockOpsContext) -> u32 {
    let op = load!((*ctx.ops).op);
    let _ = match op {
        BPF_SOCK_OPS_TCP_LISTEN_CB => open(&ctx),
        BPF_SOCK_OPS_STATE_CB => close(&ctx),
        _ => None,
    };
    DONE
}

/// Handles a socket that has begun to listen. A further listen(2) does not call this.
#[inline(always)]
fn open(ctx: &SockOpsContext) -> Option<()> {
    let cookie = context::netns_cookie(ctx);
    let tracking = maps::port_tracking(cookie)?;
    let (address, port) = context::ops_local(ctx.ops)?;
    if !verdict::is_recorded(maps::pod(cookie), &address, port) {
        return None;
    }
    if !maps::count_open_port(tracking, &PortKey::new(cookie, address, port)) {
        maps::lose_ports(tracking);
        return None;
    }
    // If the kernel has no memory for it, the port stays open.
    let opened = OpenedPort {
        address,
        port: u32::from(port),
    };
    maps::OPENED.put(socket_of(ctx)?, opened);
    watch_state(ctx);
    Some(())
}

/// Handles a socket that stops listening: by close(2), shutdown(2) or the end of its process.
#[inline(always)]
fn close(ctx: &SockOpsContext) -> Option<()> {
    let old = load!((*ctx.ops).__bindgen_anon_1.args[0]);
    if old != BPF_TCP_LISTEN {
        return None;
    }
    let socket = socket_of(ctx)?;
    let stored = maps::OPENED.of(socket)?;
    // SAFETY: not null, and the kernel sized it for the type.
    let opened = unsafe { *stored };
    maps::OPENED.remove(socket);
    let cookie = context::netns_cookie(ctx);
    maps::count_closed_port(&PortKey::new(cookie, opened.address, opened.port as u16));
    Some(())
}
