//! getpeername(2) on a redirected socket: returns the original destination instead of the proxy's
//! address.
//!
//! * hooks: `cgroup/getpeername4`, `cgroup/getpeername6`; attached at the pods' parent cgroup
//! * minimum kernel: 5.15 (the hooks: 5.8)
//! * reads ORIGINAL_DST (the socket's)
//! * absent: applications that verify their peer's address (FTP, SIP, RMI) get their own pod at
//!   4140
//!
//! accept(2) with an address buffer runs the hook too; the stored side distinguishes the proxy's
//! accepted sockets. An MPTCP socket has the storage of its first subflow, which this hook does not
//! see: such an application gets the proxy's address.

use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use mesh_ebpf_common::address::Family;
use mesh_ebpf_common::layout::Side;

use crate::context;
use crate::maps::{self, Storage};

/// Allows the system call.
const ALLOW: i32 = 1;

#[cgroup_sock_addr(getpeername4)]
pub fn mesh_getpeername4(ctx: SockAddrContext) -> i32 {
    let _ = rewrite_peer_name(&ctx, Family::V4);
    ALLOW
}

#[cgroup_sock_addr(getpeername6)]
pub fn mesh_getpeername6(ctx: SockAddrContext) -> i32 {
    let _ = rewrite_peer_name(&ctx, Family::V6);
    ALLOW
}

#[inline(always)]
fn rewrite_peer_name(ctx: &SockAddrContext, family: Family) -> Option<()> {
    let stored = maps::ORIGINAL_DST.of(context::sock_addr_socket(ctx.sock_addr))?;
    // SAFETY: not null, and the kernel sized it for the type.
    let original = unsafe { *stored };
    if original.side == Side::Client as u16 {
        context::set_user_address(ctx.sock_addr, family, &original.address, original.port);
    }
    Some(())
}
