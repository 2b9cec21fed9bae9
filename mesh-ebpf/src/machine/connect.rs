//! Outbound: redirects connect(2) of a unit to its proxy, as `crate::connect` does for pods.
//!
//! * hooks: `cgroup/connect4`, `cgroup/connect6`; for units attached above them, for proxies at
//!   their parent cgroup
//! * minimum kernel: 5.15
//! * reads LEVELS, CGROUPS, UNITS, PODS, ADDRESSES, PORT_SKIPS, IN_FLIGHT_COUNTS, PROXY_PORTS,
//!   UNIT_PORTS, ADOPTED_PORTS; writes ORIGINAL_DST and UNIT_SOCKETS (the socket's), STATS
//! * absent: outbound connections leave the unit without the proxy; without the program of the
//!   proxies, units of one host do not reach each other through their proxies
//!
//! A process is the unit's or the proxy's by its cgroup, from its first connection on.

use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use mesh_ebpf_common::address::Family;
use mesh_ebpf_common::layout::{OUTBOUND, PodConfig};
use mesh_ebpf_common::unit::{UnitConfig, UnitSocket};
use mesh_ebpf_common::verdict::unit::PortUse;
use mesh_ebpf_common::verdict::{self, ConnectAttempt, Outbound, RedirectPorts};

use super::{caller, ports};
use crate::connect::{Client, attempt, carry_out, is_tcp};
use crate::context;
use crate::maps::{self, Storage};

/// Allows the system call.
const ALLOW: i32 = 1;

#[cgroup_sock_addr(connect4)]
pub fn mesh_unit_connect4(ctx: SockAddrContext) -> i32 {
    let _ = connect(&ctx, Family::V4);
    ALLOW
}

#[cgroup_sock_addr(connect6)]
pub fn mesh_unit_connect6(ctx: SockAddrContext) -> i32 {
    let _ = connect(&ctx, Family::V6);
    ALLOW
}

#[cgroup_sock_addr(connect4)]
pub fn mesh_proxy_connect4(ctx: SockAddrContext) -> i32 {
    let _ = connect_by_proxy(&ctx, Family::V4);
    ALLOW
}

#[cgroup_sock_addr(connect6)]
pub fn mesh_proxy_connect6(ctx: SockAddrContext) -> i32 {
    let _ = connect_by_proxy(&ctx, Family::V6);
    ALLOW
}

#[inline(always)]
fn connect(ctx: &SockAddrContext, family: Family) -> Option<()> {
    let (cookie, unit) = caller::unit()?;
    let pod = redirected(ctx, cookie, unit)?;
    let attempt = attempt(ctx, family, false);
    let is_own = |address: &_| maps::is_own_address(unit.netns, address);
    // Not within the closure: the compiler would make it a function of its own.
    let is_other_unit = is_own(&attempt.destination) && other_unit(cookie, &attempt).is_some();
    let verdict = verdict::unit::outbound(
        pod,
        &attempt,
        is_own,
        |port| maps::is_skipped_port(cookie, OUTBOUND, port),
        || is_other_unit,
    );
    carry_out(ctx, client(cookie, unit, pod, family), &attempt, verdict);
    Some(())
}

/// Redirects the check address, which is redirected for the proxy too, and marks connections to
/// other units of the host, which `steer` assigns to their proxies.
#[inline(always)]
fn connect_by_proxy(ctx: &SockAddrContext, family: Family) -> Option<()> {
    let (cookie, unit) = caller::proxy()?;
    let pod = redirected(ctx, cookie, unit)?;
    let attempt = attempt(ctx, family, true);
    let is_own = |address: &_| maps::is_own_address(unit.netns, address);
    let verdict = verdict::unit::outbound(pod, &attempt, is_own, |_| false, || false);
    carry_out(ctx, client(cookie, unit, pod, family), &attempt, verdict);
    let socket = context::sock_addr_socket(ctx.sock_addr);
    // The socket may have connected before.
    super::maps::UNIT_SOCKETS.remove(socket);
    if matches!(verdict, Outbound::Direct(_)) && is_own(&attempt.destination) {
        let peer = UnitSocket {
            cookie: other_unit(cookie, &attempt)?,
            connects: 1,
            ..UnitSocket::default()
        };
        super::maps::UNIT_SOCKETS.put(socket, peer);
    }
    Some(())
}

/// Returns the settings of a unit that is redirected, for a TCP socket of the host's namespace.
#[inline(always)]
fn redirected(ctx: &SockAddrContext, cookie: u64, unit: &UnitConfig) -> Option<&'static PodConfig> {
    if context::netns_cookie(ctx) != unit.netns || !is_tcp(ctx.sock_addr) {
        return None;
    }
    maps::pod(cookie)
}

#[inline(always)]
fn client<'a>(cookie: u64, unit: &UnitConfig, pod: &'a PodConfig, family: Family) -> Client<'a> {
    Client {
        cookie,
        pod,
        ports: RedirectPorts {
            first: unit.redirect_first,
            // The verifier does not know that it is not zero.
            count: unit.redirect_count | u16::from(unit.redirect_count == 0),
        },
        family,
    }
}

/// Returns the cookie of another unit that listens on the destination.
#[inline(always)]
fn other_unit(cookie: u64, attempt: &ConnectAttempt) -> Option<u64> {
    match ports::owner(&attempt.destination, attempt.port) {
        Some((owner, PortUse::Inbound)) if owner != cookie => Some(owner),
        _ => None,
    }
}
