//! Outbound: redirects connect(2) to the proxy and stores the original destination.
//!
//! * hooks: `cgroup/connect4`, `cgroup/connect6`; attached at the pods' parent cgroup
//! * minimum kernel: 5.15 (socket storage and netns cookie in this hook: 5.7)
//! * reads PODS, PROXIES, LISTENERS, ADDRESSES, PORT_SKIPS, IN_FLIGHT_COUNTS; writes ORIGINAL_DST
//!   (the socket's), STATS
//! * absent: outbound connections leave the pod without the proxy
//!
//! Covers connect(2), MSG_FASTOPEN and io_uring. The verdict is computed for every connect, so that
//! a socket that is disconnected and connected again never keeps an old destination.

use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::bpf_get_current_uid_gid;
use aya_ebpf::helpers::generated::bpf_get_current_cgroup_id;
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use mesh_ebpf_common::address::Family;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::decision::{Decision, Endpoint, Hook};
use mesh_ebpf_common::layout::{OUTBOUND, OriginalDst, PodConfig, Side};
use mesh_ebpf_common::verdict::{self, ConnectAttempt, Outbound, RedirectPorts};

use crate::context::{self, load};
use crate::maps::{self, Storage};
use crate::trace;

const SOCK_STREAM: u32 = 1;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_MPTCP: u32 = 262;
/// The loopback interface is the first of every network namespace.
const LOOPBACK_INDEX: u32 = 1;
/// Allows the system call.
const ALLOW: i32 = 1;

#[cgroup_sock_addr(connect4)]
pub fn mesh_connect4(ctx: SockAddrContext) -> i32 {
    let _ = connect(&ctx, Family::V4);
    ALLOW
}

#[cgroup_sock_addr(connect6)]
pub fn mesh_connect6(ctx: SockAddrContext) -> i32 {
    let _ = connect(&ctx, Family::V6);
    ALLOW
}

/// Whether the socket is a TCP socket (UDP has the same hooks).
#[inline(always)]
pub fn is_tcp(ctx: *const bpf_sock_addr) -> bool {
    let protocol = load!((*ctx).protocol);
    load!((*ctx).type_) == SOCK_STREAM && (protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP)
}

#[inline(always)]
fn connect(ctx: &SockAddrContext, family: Family) -> Option<()> {
    let cookie = context::netns_cookie(ctx);
    let pod = maps::pod(cookie)?;
    if !is_tcp(ctx.sock_addr) {
        return None;
    }
    let attempt = attempt(ctx, family, is_by_proxy(pod, cookie));
    let verdict = verdict::outbound(
        pod,
        &attempt,
        |address| maps::is_own_address(cookie, address),
        |port| maps::is_skipped_port(cookie, OUTBOUND, port),
    );
    let client = Client {
        cookie,
        pod,
        ports: RedirectPorts::OF_POD,
        family,
    };
    carry_out(ctx, client, &attempt, verdict);
    Some(())
}

/// Returns the call that the program runs for.
#[inline(always)]
pub fn attempt(ctx: &SockAddrContext, family: Family, by_proxy: bool) -> ConnectAttempt {
    let socket = context::sock_addr_socket(ctx.sock_addr);
    ConnectAttempt {
        destination: context::user_address(ctx.sock_addr, family),
        port: context::user_port(ctx.sock_addr),
        source: context::source_of(socket, family),
        on_loopback: load!((*socket).bound_dev_if) == LOOPBACK_INDEX,
        by_proxy,
    }
}

/// The workload of a connection that may be redirected.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    pub cookie: u64,
    pub pod: &'a PodConfig,
    pub ports: RedirectPorts,
    /// The family of the hook; IPv6 for an IPv4 destination in a mapped address, too.
    pub family: Family,
}

/// Redirects the connection or leaves it, and counts it.
#[inline(always)]
pub fn carry_out(
    ctx: &SockAddrContext,
    client: Client<'_>,
    attempt: &ConnectAttempt,
    verdict: Outbound,
) {
    let Client {
        cookie,
        pod,
        ports,
        family,
    } = client;
    let socket = context::sock_addr_socket(ctx.sock_addr);
    let (counter, target) = match verdict {
        Outbound::Direct(counter) => {
            maps::ORIGINAL_DST.remove(socket);
            (counter, Endpoint::UNKNOWN)
        }
        Outbound::Redirect(target) => {
            let original = OriginalDst {
                address: attempt.destination,
                port: attempt.port,
                side: Side::Client as u16,
            };
            // If the kernel has no memory for it, the proxy gets no destination and rejects the
            // connection.
            let stored = maps::ORIGINAL_DST.put(socket, original);
            let port = verdict::redirect_port(pod, ports, attempt, &target, || {
                maps::has_in_flight_room(cookie)
            });
            context::set_user_address(ctx.sock_addr, family, &target, port);
            let counter = if stored {
                Counter::OutboundRedirected
            } else {
                Counter::OutboundUntracked
            };
            (counter, Endpoint::new(target, pod.outbound_port))
        }
    };
    maps::count(cookie, counter);
    if trace::is_traced(pod) {
        let source = Endpoint::new(attempt.source, context::source_port_of(socket));
        let destination = Endpoint::new(attempt.destination, attempt.port);
        trace::report(&mut Decision::new(
            Hook::Connect,
            cookie,
            counter,
            source,
            destination,
            target,
        ));
    }
}

/// Whether the caller is the pod's proxy, or one that has not listened yet.
#[inline(always)]
fn is_by_proxy(pod: &PodConfig, cookie: u64) -> bool {
    // SAFETY: the helper takes no arguments.
    let cgroup = unsafe { bpf_get_current_cgroup_id() };
    if verdict::is_proxy(&maps::proxy(cookie), cgroup) {
        return true;
    }
    let has_uid = bpf_get_current_uid_gid() as u32 == pod.proxy_uid;
    verdict::may_connect(has_uid, || maps::has_listener(cookie))
}
