//! Socket events of units and their proxies, as in `crate::sock_ops` and `crate::open_ports`.
//!
//! * hook: `sockops`; for units attached above them, for proxies at their parent cgroup
//! * minimum kernel: 5.15
//! * reads UNITS, PODS, PROXY_PORTS, BINDERS (the socket's), ADDRESSES, PORT_SKIPS, SUBNET_SKIPS;
//!   writes IN_FLIGHT, IN_FLIGHT_COUNTS, LISTENERS, PROXIES, UNIT_PORTS, PORT_TRACKING,
//!   ORIGINAL_DST and UNIT_SOCKETS (the socket's), STATS, GUARD_STATS
//! * absent: the proxy gets no original destinations and no connections
//!
//! The hook does not know whose process it is, since it also runs for packets. A client is found by
//! the port that it was redirected to, a listener by what `bind` has stored.
//!
//! A connection that reaches a socket of the unit around its proxy is severed: for nanoseconds of
//! listen(2) the socket listens and is not recorded, and `steer` may be detached.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{
    BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_TCP_CONNECT_CB,
    BPF_SOCK_OPS_TCP_LISTEN_CB, BPF_TCP_CLOSE, BPF_TCP_LISTEN,
};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::bpf_setsockopt;
use aya_ebpf::macros::sock_ops;
use aya_ebpf::programs::SockOpsContext;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::layout::{FlowKey, INBOUND, OriginalDst, Role, Side};
use mesh_ebpf_common::unit::{HostPort, PORT_INBOUND, PORT_OUTBOUND, PORT_REDIRECT};
use mesh_ebpf_common::verdict::{self, SocketLookup};

use super::{maps, ports};
use crate::context::{self, load};
use crate::maps::Storage;
use crate::sock_ops::{
    DONE, end_client, put_in_flight, register, socket_of, take_in_flight, watch_state,
};

const SOL_SOCKET: i32 = 1;
const SO_BINDTODEVICE: i32 = 25;

#[sock_ops]
pub fn mesh_unit_sock_ops(ctx: SockOpsContext) -> u32 {
    let op = load!((*ctx.ops).op);
    let _ = match op {
        BPF_SOCK_OPS_TCP_CONNECT_CB => publish(&ctx),
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => sever_bypass(&ctx),
        BPF_SOCK_OPS_TCP_LISTEN_CB => open(&ctx),
        BPF_SOCK_OPS_STATE_CB => change_state(&ctx),
        _ => None,
    };
    DONE
}

#[sock_ops]
pub fn mesh_proxy_sock_ops(ctx: SockOpsContext) -> u32 {
    let op = load!((*ctx.ops).op);
    let _ = match op {
        BPF_SOCK_OPS_TCP_CONNECT_CB => publish_peer(&ctx).or_else(|| publish(&ctx)),
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => accept(&ctx),
        BPF_SOCK_OPS_TCP_LISTEN_CB => listen(&ctx),
        BPF_SOCK_OPS_STATE_CB => end_peer(&ctx).or_else(|| change_state(&ctx)),
        _ => None,
    };
    DONE
}

/// Publishes a redirected client.
#[inline(always)]
fn publish(ctx: &SockOpsContext) -> Option<()> {
    let stored = crate::maps::ORIGINAL_DST.of(socket_of(ctx)?)?;
    // SAFETY: not null, and the kernel sized it for the type.
    let original = unsafe { *stored };
    if original.side != Side::Client as u16 {
        return None;
    }
    let target = maps::proxy_port(context::ops_remote_port(ctx.ops))?;
    put_in_flight(ctx, target.cookie, stored, &original)
}

/// Publishes a proxy that connects to another unit of the host. Only the key of the entry is used:
/// the local address of the accepted socket is the destination.
#[inline(always)]
fn publish_peer(ctx: &SockOpsContext) -> Option<()> {
    let key = peer_flow(ctx)?;
    let (address, port) = context::ops_remote(ctx.ops)?;
    let destination = OriginalDst {
        address,
        port,
        side: Side::Accepted as u16,
    };
    if !crate::maps::put_in_flight(&key, &destination) {
        // It reaches the application of the other unit, which cannot understand the proxy's TLS.
        crate::maps::count(key.cookie, Counter::OutboundUntracked);
    }
    watch_state(ctx);
    Some(())
}

/// Removes the entry of a proxy's connection to another unit, which exists if it was never
/// accepted.
#[inline(always)]
fn end_peer(ctx: &SockOpsContext) -> Option<()> {
    if load!((*ctx.ops).__bindgen_anon_1.args[1]) != BPF_TCP_CLOSE {
        return None;
    }
    crate::maps::remove_in_flight(&peer_flow(ctx)?);
    Some(())
}

/// Returns the key of a proxy's connection to another unit.
#[inline(always)]
fn peer_flow(ctx: &SockOpsContext) -> Option<FlowKey> {
    let stored = maps::UNIT_SOCKETS.of(socket_of(ctx)?)?;
    // SAFETY: not null, and the kernel sized it for the type.
    let peer = unsafe { *stored };
    if peer.connects == 0 {
        return None;
    }
    let pod = crate::maps::pod(peer.cookie)?;
    let local = context::ops_local(ctx.ops)?;
    let port = context::ops_remote_port(ctx.ops);
    Some(FlowKey::new(peer.cookie, local, port, pod.outbound_port))
}

/// Handles the end of a handshake with a listener of a proxy.
#[inline(always)]
fn accept(ctx: &SockOpsContext) -> Option<()> {
    let (local, port) = context::ops_local(ctx.ops)?;
    if let Some(found) = maps::proxy_port(port)
        && (found.kind == PORT_OUTBOUND || found.kind == PORT_REDIRECT)
    {
        let pod = crate::maps::pod(found.cookie)?;
        return take_in_flight(ctx, found.cookie, pod, port);
    }
    let (cookie, _) = ports::owner(&local, port)?;
    // Tells `sever_bypass`, which may run next, that the connection did reach a proxy.
    let accepted = OriginalDst {
        address: local,
        port,
        side: Side::Accepted as u16,
    };
    crate::maps::ORIGINAL_DST.put(socket_of(ctx)?, accepted);
    let pod = crate::maps::pod(cookie)?;
    let client = context::ops_remote(ctx.ops)?;
    let key = FlowKey::new(cookie, client, port, pod.outbound_port);
    crate::maps::remove_in_flight(&key);
    Some(())
}

/// Registers a listener that the proxy has bound to one of its ports.
#[inline(always)]
fn listen(ctx: &SockOpsContext) -> Option<()> {
    let found = maps::proxy_port(load!((*ctx.ops).local_port) as u16)?;
    let role = match found.kind {
        PORT_OUTBOUND => Role::Outbound,
        PORT_INBOUND => Role::Inbound,
        _ => return None,
    };
    if maps::unit(found.cookie)?.netns != context::netns_cookie(ctx) {
        return None;
    }
    register(ctx, found.cookie, role)
}

/// Records a socket of a unit that has begun to listen. One that cannot be recorded would be
/// reached around the proxy, and is therefore closed to other hosts.
#[inline(always)]
fn open(ctx: &SockOpsContext) -> Option<()> {
    let stored = maps::UNIT_SOCKETS.of(socket_of(ctx)?)?;
    // SAFETY: not null, and the kernel sized it for the type.
    let cookie = unsafe { (*stored).cookie };
    let (address, port) = context::ops_local(ctx.ops)?;
    if !verdict::is_recorded(None, &address, port) {
        return None;
    }
    // A unit that is not enrolled any more has none.
    let tracking = crate::maps::port_tracking(cookie)?;
    let Some(created) = ports::open(tracking, cookie, &HostPort::new(address, port)) else {
        crate::maps::lose_ports(tracking);
        confine(ctx);
        return None;
    };
    // SAFETY: as above.
    unsafe {
        (*stored).created = created;
        (*stored).address = address;
        (*stored).port = u32::from(port);
    }
    watch_state(ctx);
    Some(())
}

/// Handles the end of a client, and of a listener of a unit.
#[inline(always)]
fn change_state(ctx: &SockOpsContext) -> Option<()> {
    let socket = socket_of(ctx)?;
    if load!((*ctx.ops).__bindgen_anon_1.args[0]) == BPF_TCP_LISTEN {
        let stored = maps::UNIT_SOCKETS.of(socket)?;
        // SAFETY: not null, and the kernel sized it for the type.
        let opened = unsafe { *stored };
        if opened.port != 0 {
            // SAFETY: as above.
            unsafe { (*stored).port = 0 };
            let key = HostPort::new(opened.address, opened.port as u16);
            ports::close(&key, opened.created);
        }
        return None;
    }
    if load!((*ctx.ops).__bindgen_anon_1.args[1]) != BPF_TCP_CLOSE {
        return None;
    }
    let stored = crate::maps::ORIGINAL_DST.of(socket)?;
    let target = maps::proxy_port(context::ops_remote_port(ctx.ops))?;
    end_client(ctx, target.cookie, stored)
}

/// Severs a connection from outside that a socket of a unit has accepted although it listens behind
/// a proxy.
#[inline(always)]
fn sever_bypass(ctx: &SockOpsContext) -> Option<()> {
    let (local, local_port) = context::ops_local(ctx.ops)?;
    let cookie = ports::observed(&local, local_port)?;
    let unit = maps::unit(cookie)?;
    // SAFETY: the helper takes no arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    if now < unit.severs_from || context::netns_cookie(ctx) != unit.netns {
        return None;
    }
    // A proxy below the same cgroup.
    if crate::maps::ORIGINAL_DST.of(socket_of(ctx)?).is_some() {
        return None;
    }
    let pod = crate::maps::pod(cookie)?;
    let (remote, _) = context::ops_remote(ctx.ops)?;
    let lookup = SocketLookup {
        remote,
        local,
        local_port,
    };
    let bypasses_proxy = verdict::unit::bypasses_proxy(
        pod,
        &lookup,
        |address| crate::maps::is_own_address(unit.netns, address),
        |port| crate::maps::is_skipped_port(cookie, INBOUND, port),
        |source| crate::maps::is_skipped_source(cookie, source),
    );
    if bypasses_proxy {
        confine(ctx);
        crate::maps::count_bypass(cookie, true);
    }
    Some(())
}

/// Binds a socket to the loopback interface: packets of other hosts do not find it any more.
#[inline(always)]
fn confine(ctx: &SockOpsContext) {
    let mut name = *b"lo\0\0";
    // SAFETY: the verifier checks the context, and the value's size is passed. It fails for a
    // socket that is bound to another interface; no other way to end a connection exists here.
    unsafe {
        bpf_setsockopt(
            ctx.as_ptr(),
            SOL_SOCKET,
            SO_BINDTODEVICE,
            name.as_mut_ptr().cast(),
            name.len() as i32,
        )
    };
}
