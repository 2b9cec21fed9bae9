//! bind(2): marks the proxy's listeners, and keeps the application's ports usable.
//!
//! * hooks: `cgroup/bind4`, `cgroup/bind6`; attached at the pods' parent cgroup
//! * minimum kernel: 5.15 (bpf_setsockopt in this hook: 5.8)
//! * reads PODS, PROXIES, LISTENERS; writes BINDERS (the socket's), STATS
//! * absent: no listener is ever recognised as the proxy's, so that nothing is redirected to it; an
//!   application may fail to bind its port while steered connections to that port are open
//!
//! The latter is necessary because sk_lookup leaves the proxy's accepted sockets with the
//! application's port: binding it without SO_REUSEADDR would fail while one is open. So every
//! socket of the pod that binds a port gets the option. Listening twice on a port still fails.
//!
//! Only one call is rejected (EPERM): a process with the proxy's uid in another container binds a
//! port where the proxy listens.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_get_current_uid_gid;
use aya_ebpf::helpers::generated::{bpf_get_current_cgroup_id, bpf_setsockopt};
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::layout::{Binder, FLAG_INBOUND};
use mesh_ebpf_common::verdict;

use crate::connect::is_tcp;
use crate::context;
use crate::maps::{self, Storage};

const SOL_SOCKET: i32 = 1;
const SO_REUSEADDR: i32 = 2;
/// Return values that allow the system call, or reject it with EPERM.
pub const ALLOW: i32 = 1;
pub const DENY: i32 = 0;

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
        return Some(record_binder(ctx, cookie));
    }
    // An ephemeral port is chosen among free ones; the option would only change the selection.
    if port != 0 && pod.flags & FLAG_INBOUND != 0 {
        allow_reuse(ctx);
    }
    None
}

/// Records the process that binds a proxy port, which `sock_ops` uses once the socket listens.
#[inline(always)]
pub fn record_binder(ctx: &SockAddrContext, cookie: u64) -> i32 {
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
    // If the kernel has no memory for it, the listener is not registered, and the pod stays closed.
    maps::BINDERS.put(context::sock_addr_socket(ctx.sock_addr), binder);
    ALLOW
}

#[inline(always)]
pub fn allow_reuse(ctx: &SockAddrContext) {
    let mut on: i32 = 1;
    // SAFETY: the verifier checks the context, and the value's size is passed. A failure leaves the
    // socket as the application created it.
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
