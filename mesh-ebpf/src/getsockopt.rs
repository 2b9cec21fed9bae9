//! Responds to SO_ORIGINAL_DST as netfilter's REDIRECT would, so that any proxy that supports
//! iptables works.
//!
//! * hook: `cgroup/getsockopt`; attached at the pods' parent cgroup
//! * minimum kernel: 5.15 (netns cookie in this hook)
//! * reads PODS, PROXIES, ADDRESSES, PORT_SKIPS, ORIGINAL_DST (the socket's)
//! * absent: the proxy cannot determine the destination of a connection and rejects it
//!
//! Runs for every getsockopt of every pod, so that other options return at the first comparison. A
//! buffer larger than a page is not completely visible here; `optlen = 0` makes the kernel leave
//! the caller's buffer unchanged, otherwise it would reject the call.

use aya_ebpf::bindings::bpf_sockopt;
use aya_ebpf::helpers::generated::bpf_get_current_cgroup_id;
use aya_ebpf::macros::cgroup_sockopt;
use aya_ebpf::programs::SockoptContext;
use mesh_ebpf_common::address::{Address, Family};
use mesh_ebpf_common::layout::{INBOUND, OriginalDst, PodConfig};
use mesh_ebpf_common::verdict::{self, OriginalDstSource};

use crate::context::{self, load, store};
use crate::maps::{self, Storage};

/// Maximum number of bytes that the kernel copies between the caller and the program (the smallest
/// PAGE_SIZE).
const COPIED_MAX: i32 = 4096;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// Return values that allow the system call, or fail it with EPERM.
const ALLOW: i32 = 1;
const DENY: i32 = 0;

/// `struct sockaddr_in`.
#[repr(C)]
struct SockaddrV4 {
    family: u16,
    port: u16,
    address: u32,
    zero: [u32; 2],
}

/// `struct sockaddr_in6`.
#[repr(C)]
struct SockaddrV6 {
    family: u16,
    port: u16,
    flow_info: u32,
    address: [u32; 4],
    scope: u32,
}

#[cgroup_sockopt(getsockopt)]
pub fn mesh_getsockopt(ctx: SockoptContext) -> i32 {
    respond(&ctx, caller)
}

/// The caller of getsockopt(2), and the pod that it is in.
#[derive(Clone, Copy)]
pub struct Caller {
    pub cookie: u64,
    pub pod: &'static PodConfig,
    /// The cookie that ADDRESSES has the own addresses under.
    pub addresses: u64,
    pub is_proxy: bool,
}

#[inline(always)]
fn caller(ctx: &SockoptContext) -> Option<Caller> {
    let cookie = context::netns_cookie(ctx);
    let pod = maps::pod(cookie)?;
    // SAFETY: the helper takes no arguments.
    let cgroup = unsafe { bpf_get_current_cgroup_id() };
    Some(Caller {
        cookie,
        pod,
        addresses: cookie,
        is_proxy: verdict::is_proxy(&maps::proxy(cookie), cgroup),
    })
}

/// Responds to a request for the original destination, and leaves others to the kernel.
#[inline(always)]
pub fn respond(
    ctx: &SockoptContext,
    caller: impl FnOnce(&SockoptContext) -> Option<Caller>,
) -> i32 {
    let options = ctx.sockopt;
    let family = verdict::original_dst_family(load!((*options).level), load!((*options).optname));
    let replied = family.and_then(|family| reply_original_dst(ctx, family, caller(ctx)?));
    if replied.is_none() && load!((*options).optlen) > COPIED_MAX {
        store!((*options).optlen, 0);
    }
    replied.unwrap_or(ALLOW)
}

#[inline(always)]
fn reply_original_dst(ctx: &SockoptContext, family: Family, caller: Caller) -> Option<i32> {
    let Caller { cookie, pod, .. } = caller;
    let socket = load!((*ctx.sockopt).__bindgen_anon_1.sk);
    // SAFETY: not null, and the kernel sized it for the type.
    let stored: Option<OriginalDst> = maps::ORIGINAL_DST.of(socket).map(|value| unsafe { *value });
    let local_port = load!((*socket).src_port) as u16;
    let by_proxy = caller.is_proxy;
    // Connections to the proxy's admin and control ports are not redirected.
    let is_redirected = || {
        let remote = context::socket_remote(socket);
        remote.is_some_and(|remote| maps::is_own_address(caller.addresses, &remote))
            && !maps::is_skipped_port(cookie, INBOUND, local_port)
    };
    match verdict::original_dst(pod, stored.as_ref(), by_proxy, local_port, is_redirected) {
        OriginalDstSource::Native => None,
        OriginalDstSource::Lost => Some(DENY),
        OriginalDstSource::Stored => {
            stored.and_then(|dst| reply(ctx.sockopt, family, &dst.address, dst.port))?;
            Some(ALLOW)
        }
        OriginalDstSource::Local => {
            let address = context::socket_local(socket)?;
            reply(ctx.sockopt, family, &address, local_port)?;
            Some(ALLOW)
        }
    }
}

/// Writes the address to the caller's buffer if it is large enough and the address has the
/// requested family; otherwise the kernel's own result is returned.
#[inline(always)]
fn reply(options: *mut bpf_sockopt, family: Family, address: &Address, port: u16) -> Option<()> {
    if address.family() != family {
        return None;
    }
    let start = load!((*options).__bindgen_anon_2.optval);
    let end = load!((*options).__bindgen_anon_3.optval_end);
    let length = match family {
        Family::V4 => size_of::<SockaddrV4>(),
        Family::V6 => size_of::<SockaddrV6>(),
    };
    if start as usize + length > end as usize {
        return None;
    }
    match family {
        Family::V4 => {
            let value = SockaddrV4 {
                family: AF_INET,
                port: port.to_be(),
                address: address.v4_word(),
                zero: [0; 2],
            };
            // SAFETY: the bounds were checked above, as the verifier requires.
            unsafe { core::ptr::write(start.cast(), value) };
        }
        Family::V6 => {
            let value = SockaddrV6 {
                family: AF_INET6,
                port: port.to_be(),
                flow_info: 0,
                address: address.words,
                scope: 0,
            };
            // SAFETY: as above.
            unsafe { core::ptr::write(start.cast(), value) };
        }
    }
    store!((*options).optlen, length as i32);
    store!((*options).retval, 0);
    Some(())
}
