//! Socket events of enrolled pods: transfers an original destination from the application's socket
//! to the proxy's accepted one, and registers the proxy's listeners.
//!
//! * hook: `sockops`; attached at the pods' parent cgroup
//! * minimum kernel: 5.15 (netns cookie in this hook)
//! * reads PODS, BINDERS (the socket's); writes IN_FLIGHT, IN_FLIGHT_COUNTS, LISTENERS, PROXIES,
//!   ORIGINAL_DST, STATS
//! * absent: the proxy gets no original destinations and no connections
//!
//! Never writes the context's `reply`, which all programs of the hook share, and always returns 1.
//! Only listening sockets are added to a sockhash: an established one there would make FIONREAD
//! return 0.

use aya_ebpf::bindings::{
    BPF_NOEXIST, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB,
    BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_SOCK_OPS_TCP_LISTEN_CB,
    BPF_TCP_CLOSE, bpf_sock, bpf_sock_ops,
};
use aya_ebpf::helpers::generated::bpf_sock_hash_update;
use aya_ebpf::macros::sock_ops;
use aya_ebpf::programs::SockOpsContext;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::decision::{Decision, Endpoint, Hook};
use mesh_ebpf_common::layout::{
    FlowKey, LISTENER_SLOTS, ListenerKey, OriginalDst, PodConfig, Role, Side,
};
use mesh_ebpf_common::verdict::{self, REDIRECT_PORT_MIN};

use crate::context::{self, load};
use crate::maps::{self, Storage};
use crate::trace;

pub(crate) const DONE: u32 = 1;
/// `-EEXIST`: the key has a socket.
const TAKEN: i64 = -17;

#[sock_ops]
pub fn mesh_sock_ops(ctx: SockOpsContext) -> u32 {
    let op = load!((*ctx.ops).op);
    let _ = match op {
        BPF_SOCK_OPS_TCP_CONNECT_CB => publish(&ctx),
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => accept(&ctx),
        BPF_SOCK_OPS_TCP_LISTEN_CB => listen(&ctx),
        BPF_SOCK_OPS_STATE_CB => change_state(&ctx),
        _ => None,
    };
    DONE
}

#[inline(always)]
pub(crate) fn socket_of(ctx: &SockOpsContext) -> Option<*mut bpf_sock> {
    let socket = load!((*ctx.ops).__bindgen_anon_2.sk);
    (!socket.is_null()).then_some(socket)
}

/// Requests calls for each change of this socket's state; other programs' flags are kept. Accepted
/// sockets inherit the flag of their listener.
#[inline(always)]
pub(crate) fn watch_state(ctx: &SockOpsContext) {
    let flags = load!((*ctx.ops).bpf_sock_ops_cb_flags);
    let _ = ctx.set_cb_flags((flags | BPF_SOCK_OPS_STATE_CB_FLAG) as i32);
}

/// Publishes the original destination of a redirected client socket that is about to send its SYN:
/// its local address and port are known now.
#[inline(always)]
fn publish(ctx: &SockOpsContext) -> Option<()> {
    let socket = socket_of(ctx)?;
    let stored = maps::ORIGINAL_DST.of(socket)?;
    // SAFETY: not null, and the kernel sized it for the type.
    let original = unsafe { *stored };
    if original.side != Side::Client as u16 {
        return None;
    }
    put_in_flight(ctx, context::netns_cookie(ctx), stored, &original)
}

/// Publishes the original destination in the storage of a client of this pod.
#[inline(always)]
pub(crate) fn put_in_flight(
    ctx: &SockOpsContext,
    cookie: u64,
    stored: *mut OriginalDst,
    original: &OriginalDst,
) -> Option<()> {
    let pod = maps::pod(cookie)?;
    let (address, port) = context::ops_local(ctx.ops)?;
    let key = FlowKey::new(
        cookie,
        (address, port),
        context::ops_remote_port(ctx.ops),
        pod.outbound_port,
    );
    if !maps::put_in_flight(&key, original) {
        // The proxy gets no destination and rejects the connection; only this pod is affected.
        maps::count(cookie, Counter::OutboundUntracked);
        if key.target != 0 {
            // SAFETY: as above.
            unsafe { (*stored).side = Side::Untracked as u16 };
            maps::count_untracked(cookie, false);
        }
        report_untracked(ctx, pod, cookie, original, Endpoint::new(address, port));
    }
    watch_state(ctx);
    Some(())
}

/// Reports a connection whose original destination could not be published, if the pod is traced.
#[inline(always)]
fn report_untracked(
    ctx: &SockOpsContext,
    pod: &PodConfig,
    cookie: u64,
    original: &OriginalDst,
    source: Endpoint,
) -> Option<()> {
    if trace::is_traced(pod) {
        let (address, _) = context::ops_remote(ctx.ops)?;
        trace::report(&mut Decision::new(
            Hook::Connect,
            cookie,
            Counter::OutboundUntracked,
            source,
            Endpoint::new(original.address, original.port),
            Endpoint::new(address, pod.outbound_port),
        ));
    }
    Some(())
}

/// Handles the end of a handshake with a listener. The remote end is a redirected client socket if
/// the connection is in flight.
#[inline(always)]
fn accept(ctx: &SockOpsContext) -> Option<()> {
    let cookie = context::netns_cookie(ctx);
    let pod = maps::pod(cookie)?;
    let local_port = load!((*ctx.ops).local_port) as u16;
    if local_port != pod.outbound_port && local_port < REDIRECT_PORT_MIN {
        return None;
    }
    take_in_flight(ctx, cookie, pod, local_port)
}

/// Moves the original destination of a connection that the proxy accepts to the accepted socket.
#[inline(always)]
pub(crate) fn take_in_flight(
    ctx: &SockOpsContext,
    cookie: u64,
    pod: &PodConfig,
    local_port: u16,
) -> Option<()> {
    let socket = socket_of(ctx)?;
    let (address, port) = context::ops_remote(ctx.ops)?;
    let key = FlowKey::new(cookie, (address, port), local_port, pod.outbound_port);
    let original = maps::in_flight(&key)?;
    let accepted = OriginalDst {
        side: Side::Accepted as u16,
        ..original
    };
    let counter = if maps::ORIGINAL_DST.put(socket, accepted) {
        // Counted when it was redirected.
        Counter::OutboundRedirected
    } else {
        maps::count(cookie, Counter::OutboundUntracked);
        Counter::OutboundUntracked
    };
    maps::remove_in_flight(&key);
    if trace::is_traced(pod) {
        let local = context::ops_local(ctx.ops)?;
        trace::report(&mut Decision::new(
            Hook::Accept,
            cookie,
            counter,
            Endpoint::new(address, port),
            Endpoint::new(original.address, original.port),
            Endpoint::new(local.0, pod.outbound_port),
        ));
    }
    Some(())
}

/// Handles a socket that starts to listen. On a proxy port, and bound by the proxy, it becomes a
/// target of `steer`.
#[inline(always)]
fn listen(ctx: &SockOpsContext) -> Option<()> {
    let cookie = context::netns_cookie(ctx);
    let pod = maps::pod(cookie)?;
    let role = verdict::listener_role(pod, load!((*ctx.ops).local_port) as u16)?;
    register(ctx, cookie, role)
}

/// Registers a listener on a proxy port of this pod.
#[inline(always)]
pub(crate) fn register(ctx: &SockOpsContext, cookie: u64, role: Role) -> Option<()> {
    let family = context::ops_family(ctx.ops)?;
    let binder = socket_of(ctx).and_then(|socket| maps::BINDERS.of(socket));
    let Some(binder) = binder else {
        maps::count(cookie, Counter::ListenerRejected);
        return None;
    };
    let proxy = maps::proxy_mut(cookie)?;
    // SAFETY: both pointers were checked for null.
    let (state, binder) = unsafe { (*proxy, *binder) };
    if !verdict::may_register(&state, &binder) {
        maps::count(cookie, Counter::ListenerRejected);
        return None;
    }
    for slot in 0..LISTENER_SLOTS {
        match insert(ctx.ops, ListenerKey::new(cookie, role, family, slot)) {
            // Another listener of the group has this slot; if all slots are taken, enough of them
            // are stored.
            TAKEN => continue,
            0 => {
                // SAFETY: checked for null above.
                unsafe {
                    (*proxy).cgroup = binder.cgroup;
                    (*proxy).registrations = state.registrations + 1;
                }
            }
            // The kernel rejects Multipath TCP sockets.
            _ => maps::count(cookie, Counter::ListenerRejected),
        }
        break;
    }
    Some(())
}

/// Stores the context's socket under `key` unless another one is stored. Returns 0 or a negative
/// error.
#[inline(always)]
fn insert(ops: *mut bpf_sock_ops, mut key: ListenerKey) -> i64 {
    // SAFETY: the verifier checks context, map and key.
    unsafe {
        bpf_sock_hash_update(
            ops,
            (&raw const maps::LISTENERS).cast_mut().cast(),
            (&raw mut key).cast(),
            u64::from(BPF_NOEXIST),
        )
    }
}

/// Handles the end of a watched client socket: removes its entry, which exists if it was never
/// accepted.
#[inline(always)]
fn change_state(ctx: &SockOpsContext) -> Option<()> {
    let new = load!((*ctx.ops).__bindgen_anon_1.args[1]);
    if new != BPF_TCP_CLOSE {
        return None;
    }
    let stored = maps::ORIGINAL_DST.of(socket_of(ctx)?)?;
    end_client(ctx, context::netns_cookie(ctx), stored)
}

/// Handles the end of a socket with this storage, of a client of this pod.
#[inline(always)]
pub(crate) fn end_client(
    ctx: &SockOpsContext,
    cookie: u64,
    stored: *mut OriginalDst,
) -> Option<()> {
    // SAFETY: not null, and the kernel sized it for the type.
    if unsafe { (*stored).side } == Side::Untracked as u16 {
        unsafe { (*stored).side = Side::Client as u16 };
        maps::count_untracked(cookie, true);
        return None;
    }
    // Others have no entry: an accepted one, whose listener was watched.
    if unsafe { (*stored).side } != Side::Client as u16 {
        return None;
    }
    // The entries of a pod that is not enrolled any more have been removed.
    let pod = maps::pod(cookie)?;
    let local = context::ops_local(ctx.ops)?;
    let target = context::ops_remote_port(ctx.ops);
    maps::remove_in_flight(&FlowKey::new(cookie, local, target, pod.outbound_port));
    Some(())
}
