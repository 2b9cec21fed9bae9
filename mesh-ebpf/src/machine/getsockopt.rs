//! Responds to SO_ORIGINAL_DST of a proxy, as `crate::getsockopt` does in pods.
//!
//! * hook: `cgroup/getsockopt`; attached at the parent cgroup of the proxies, so that no other
//!   process of the host pays for it
//! * minimum kernel: 5.15
//! * reads CGROUPS, UNITS, PODS, ADDRESSES, PORT_SKIPS, ORIGINAL_DST (the socket's)
//! * absent: the proxy cannot determine the destination of a connection and rejects it

use aya_ebpf::macros::cgroup_sockopt;
use aya_ebpf::programs::SockoptContext;

use super::caller;
use crate::getsockopt::{Caller, respond};
use crate::{context, maps};

#[cgroup_sockopt(getsockopt)]
pub fn mesh_proxy_getsockopt(ctx: SockoptContext) -> i32 {
    respond(&ctx, proxy)
}

#[inline(always)]
fn proxy(ctx: &SockoptContext) -> Option<Caller> {
    let (cookie, unit) = caller::proxy()?;
    if context::netns_cookie(ctx) != unit.netns {
        return None;
    }
    Some(Caller {
        cookie,
        pod: maps::pod(cookie)?,
        addresses: unit.netns,
        is_proxy: true,
    })
}
