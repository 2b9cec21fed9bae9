//! bind(2): stamps the proxy's listeners, and keeps the application's ports usable.
//!
//! * hooks: `cgroup/bind4`, `cgroup/bind6`; attached at the pods' parent cgroup
//! * minimum kernel: 5.15 (bpf_setsockopt in this hook: 5.8)
//! * reads PODS; writes BINDERS (the socket's)
//! * absent: no listener is ever recognised as the proxy's, so nothing is redirected to it; an
//!   application may fail to bind its port while steered connections to that port are open
//!
//! The second half is needed because sk_lookup leaves the proxy's accepted sockets holding the
//! application's port: binding it without SO_REUSEADDR would fail while one lives. So every socket
//! of the pod that binds a port gets the option. Listening twice on a port still fails.

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
/// Let the system call go on.
const ALLOW: i32 = 1;

#[cgroup_sock_addr(bind4)]
pub fn mesh_bind4(ctx: SockAddrContext) -> i32 {
    let _ = bind(&ctx);
    ALLOW
}

#[cgroup_sock_addr(bind6)]
pub fn mesh_bind6(ctx: SockAddrContext) -> i32 {
    let _ = bind(&ctx);
    ALLOW
}

#[inline(always)]
fn bind(ctx: &SockAddrContext) -> Option<()> {
    let cookie = context::netns_cookie(ctx);
    let pod = maps::pod(cookie)?;
    if !is_tcp(ctx.sock_addr) {
        return None;
    }
    let port = context::user_port(ctx.sock_addr);
    let proxy_port = verdict::listener_role(pod, port).is_some();
    if proxy_port && bpf_get_current_uid_gid() as u32 == pod.proxy_uid {
        let binder = Binder {
            // SAFETY: the helper takes no arguments.
            cgroup: unsafe { bpf_get_current_cgroup_id() },
            registered: 0,
        };
        maps::BINDERS.put(context::sock_addr_socket(ctx.sock_addr), binder);
        return None;
    }
    // An ephemeral port is chosen among free ones; the option would only change how.
    if port != 0 && pod.flags & FLAG_INBOUND != 0 {
        let mut on: i32 = 1;
        // SAFETY: the verifier checks the context, and the value's size is given. A failure leaves
        // the socket as the application made it.
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
    Some(())
}
