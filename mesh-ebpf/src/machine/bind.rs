//! bind(2): records whose socket it is, which the hooks of sockets do not know, and keeps the
//! unit's ports usable, as `crate::bind` does for pods.
//!
//! * hooks: `cgroup/bind4`, `cgroup/bind6`; for units attached above them, for proxies at their
//!   parent cgroup
//! * minimum kernel: 5.15
//! * reads LEVELS, CGROUPS, UNITS, PROXY_PORTS, PROXIES, LISTENERS; writes UNIT_SOCKETS and BINDERS
//!   (the socket's), STATS
//! * absent: connections to the unit do not reach its proxy; without the program of the proxies,
//!   no listener is the proxy's
//!
//! Calls are rejected (EPERM) if a process of a unit binds a port of a proxy.

use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::unit::{PORT_REDIRECT, UnitConfig, UnitSocket};

use super::{caller, maps};
use crate::bind::{ALLOW, DENY, allow_reuse, record_binder};
use crate::connect::is_tcp;
use crate::context;
use crate::maps::{Storage, count};

#[cgroup_sock_addr(bind4)]
pub fn mesh_unit_bind4(ctx: SockAddrContext) -> i32 {
    bind(&ctx).unwrap_or(ALLOW)
}

#[cgroup_sock_addr(bind6)]
pub fn mesh_unit_bind6(ctx: SockAddrContext) -> i32 {
    bind(&ctx).unwrap_or(ALLOW)
}

#[cgroup_sock_addr(bind4)]
pub fn mesh_proxy_bind4(ctx: SockAddrContext) -> i32 {
    bind_by_proxy(&ctx).unwrap_or(ALLOW)
}

#[cgroup_sock_addr(bind6)]
pub fn mesh_proxy_bind6(ctx: SockAddrContext) -> i32 {
    bind_by_proxy(&ctx).unwrap_or(ALLOW)
}

#[inline(always)]
fn bind(ctx: &SockAddrContext) -> Option<i32> {
    let (cookie, unit) = caller::unit()?;
    if !is_of_host(ctx, unit) {
        return None;
    }
    let port = context::user_port(ctx.sock_addr);
    if maps::proxy_port(port).is_some() {
        count(cookie, Counter::ListenerRejected);
        return Some(DENY);
    }
    let socket = UnitSocket {
        cookie,
        ..UnitSocket::default()
    };
    // If the kernel has no memory for it, the agent finds the listener.
    maps::UNIT_SOCKETS.put(context::sock_addr_socket(ctx.sock_addr), socket);
    // An ephemeral port is chosen among free ones; the option would only change the selection.
    if port != 0 {
        allow_reuse(ctx);
    }
    None
}

#[inline(always)]
fn bind_by_proxy(ctx: &SockAddrContext) -> Option<i32> {
    let (cookie, unit) = caller::proxy()?;
    if !is_of_host(ctx, unit) {
        return None;
    }
    let found = maps::proxy_port(context::user_port(ctx.sock_addr))?;
    if found.cookie != cookie || found.kind == PORT_REDIRECT {
        return None;
    }
    Some(record_binder(ctx, cookie))
}

#[inline(always)]
fn is_of_host(ctx: &SockAddrContext, unit: &UnitConfig) -> bool {
    context::netns_cookie(ctx) == unit.netns && is_tcp(ctx.sock_addr)
}
