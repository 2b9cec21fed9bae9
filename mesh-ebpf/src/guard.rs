//! The guard: counts, and optionally drops, requests for TCP connections that leave a pod without
//! passing its proxy. The other programs observe system calls; they do not see raw and packet
//! sockets, source addresses that are not the pod's, and connections that a network namespace
//! inside the pod forwards. All of these pass this program.
//!
//! * hook: `tcx` egress; one instance for each pod and interface, on every interface of the pod
//!   except loopback
//! * minimum kernel: 6.6 (tcx links, which processes in the pod cannot detach)
//! * reads GUARD, PODS, PROXIES, PORT_SKIPS, SUBNET_SKIPS; writes GUARD_STATS
//! * absent: bypasses are neither counted nor dropped; nothing else changes
//!
//! Only first segments are inspected: connections that were open when the pod was enrolled
//! continue. The proxy is identified by the cgroup of the sending socket, which forwarded packets
//! do not have.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::bpf_hdr_start_off::BPF_HDR_START_NET;
use aya_ebpf::bindings::tcx_action_base::{TCX_DROP, TCX_NEXT};
use aya_ebpf::helpers::generated::{bpf_skb_cgroup_id, bpf_skb_load_bytes_relative};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use mesh_ebpf_common::layout::{GUARD_DROP, GUARD_OFF, OUTBOUND};
use mesh_ebpf_common::packet::{self, Packet};
use mesh_ebpf_common::verdict;

use crate::maps;
use crate::steer::POD_COOKIE;

struct Skb(*mut __sk_buff);

#[classifier]
pub fn mesh_guard(ctx: TcContext) -> i32 {
    match guard(ctx.as_ptr().cast()) {
        Some(GUARD_DROP) => TCX_DROP,
        _ => TCX_NEXT,
    }
}

/// Returns the mode of the guard for a packet that bypasses the proxy; `None` for all others.
#[inline(always)]
fn guard(skb: *mut __sk_buff) -> Option<u32> {
    let mode = maps::guard_mode();
    if mode == GUARD_OFF {
        return None;
    }
    let syn = packet::tcp_syn(&Skb(skb))?;
    let cookie = POD_COOKIE.load();
    let pod = maps::pod(cookie)?;
    // SAFETY: the helper takes the program's own context.
    let cgroup = unsafe { bpf_skb_cgroup_id(skb) };
    let bypasses_proxy = verdict::bypasses_proxy(
        pod,
        &syn,
        verdict::is_proxy(&maps::proxy(cookie), cgroup),
        |address| maps::is_own_address(cookie, address),
        |port| maps::is_skipped_port(cookie, OUTBOUND, port),
        |source| maps::is_skipped_source(cookie, source),
    );
    if !bypasses_proxy {
        return None;
    }
    maps::count_bypass(cookie, mode == GUARD_DROP);
    Some(mode)
}

impl Skb {
    #[inline(always)]
    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let mut bytes = [0u8; N];
        // SAFETY: the verifier checks context and buffer; the kernel checks the offset.
        let result = unsafe {
            bpf_skb_load_bytes_relative(
                self.0.cast(),
                offset,
                bytes.as_mut_ptr().cast(),
                N as u32,
                BPF_HDR_START_NET,
            )
        };
        (result == 0).then_some(bytes)
    }
}

impl Packet for Skb {
    #[inline(always)]
    fn byte(&self, offset: u32) -> Option<u8> {
        self.load::<1>(offset).map(|[byte]| byte)
    }

    #[inline(always)]
    fn half(&self, offset: u32) -> Option<u16> {
        self.load(offset).map(u16::from_be_bytes)
    }

    #[inline(always)]
    fn word(&self, offset: u32) -> Option<u32> {
        self.load(offset).map(u32::from_ne_bytes)
    }
}
