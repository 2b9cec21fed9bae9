//! bind(2): stamps the proxy's listeners, and keeps the application's ports usable.
//!
//! * hooks: `cgroup/bind4`, `cgroup/bind6`; attached at the pods' parent cgroup
//! * minimum kernel: 5.15 (bpf_setsockopt in this hook: 5.8)
//! * reads PODS, PROXIES, LISTENERS; writes BINDERS (the socket's), STATS
//! * absent: no listener is ever recognised as the proxy's, so nothing is redirected to it; an
//!   application may fail to bind its port while steered connections to that port are open
//!
//! The second half is needed because sk_lookup leaves the proxy's accepted sockets holding the
//! application's port: binding it without SO_REUSEADDR would fail while one lives. So every socket
//! of the pod that binds a port gets the option. Listening twice on a port still fails.
//!
//! The only call that is refused (EPERM) is one with the proxy's uid, but of another container, for
//! a port on which the proxy listens.

use aya_ebpf::{
    EbpfContext,
    helpers::{
        bpf_get_current_uid_gid,
        generated::{bpf_get_current_cgroup_id, bpf_setsockopt},
    },
    macros::cgroup_sock_addr,
    programs::SockAddrContext,
};
use mesh_ebpf_common::{
    counter::Counter,
    layout::{Binder, FLAG_INBOUND},
    verdict,
};

use crate::{
    connect::is_tcp,
    context,
    maps::{self, Storage},
};

const SOL_SOCKET: i32 = 1;
const SO_REUSEADDR: i32 = 2;
/// Let the system call go on, or end it with EPERM.
const ALLOW: i32 = 1;
const DENY: i32 = 0;

#[cgroup_sock_addr(bind4)]
pub fn mesh_bind4(ctx: SockAddrContext) -> i32 {
    bind(&ctx).unwrap_or(ALLOW)
}

#[cgroup_sock_addr(bind6)]
pub fn mesh_bind6(ctx: SockAddrContext) -> i32 {
    bind(&ctx).unwrap_or(ALLOW)
}

#[inline(always)]
fn bind(ctx: &SockAddrContext) -> Option<i32> {
    let cookie = context::netns_cookie(ctx);
    let pod = maps::pod(cookie)?;
    if !is_tcp(ctx.sock_addr) {
        return None;
    }
    let port = context::user_port(ctx.sock_addr);
    let is_proxy_port = verdict::listener_role(pod, port).is_some();
    if is_proxy_port && bpf_get_current_uid_gid() as u32 == pod.proxy_uid {
        return Some(stamp(ctx, cookie));
    }
    // An ephemeral port is chosen among free ones; the option would only change how.
    if port != 0 && pod.flags & FLAG_INBOUND != 0 {
        allow_reuse(ctx);
    }
    None
}

/// Notes who binds a proxy port, for `sock_ops` to believe once the socket listens.
#[inline(always)]
fn stamp(ctx: &SockAddrContext, cookie: u64) -> i32 {
    let proxy = maps::proxy(cookie);
    // SAFETY: the helper takes no arguments.
    let cgroup = unsafe { bpf_get_current_cgroup_id() };
    if !verdict::may_bind(&proxy, cgroup, || maps::has_listener(cookie)) {
        maps::count(cookie, Counter::ListenerRejected);
        return DENY;
    }
    let binder = Binder {
        cgroup,
        registrations: proxy.registrations,
    };
    // Without memory for it the listener is not registered, and the pod stays closed.
    maps::BINDERS.put(context::sock_addr_socket(ctx.sock_addr), binder);
    ALLOW
}

#[inline(always)]
fn allow_reuse(ctx: &SockAddrContext) {
    let mut on: i32 = 1;
    // SAFETY: the verifier checks the context, and the value's size is given. A failure leaves the
    // socket as the application made it.
    unsafe {
        bpf_setsockopt(
            ctx.as_ptr(),
            SOL_SOCKET,
            SO_REUSEADDR,
            (&raw mut on).cast(),
            size_of::<i32>() as i32,
        )
    };
}
