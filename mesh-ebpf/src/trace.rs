//! Reports decisions about the connections of a traced pod, by the log of aya-log.
//!
//! * called by `connect`, `sock_ops` and `steer`, after a test of [`FLAG_TRACED`] in the settings
//!   that they have loaded anyway
//! * minimum kernel: 5.8 (ring buffers)
//! * writes AYA_LOGS, TRACES
//! * absent: `meshctl why` has no kernel part
//!
//! A decision that finds the ring buffer full is not reported. TRACES counts every attempt, so that
//! the agent knows how many are missing.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_log_ebpf::info;
use mesh_ebpf_common::decision::Decision;
use mesh_ebpf_common::layout::{FLAG_TRACED, PodConfig};

use crate::maps;

#[inline(always)]
pub fn is_traced(pod: &PodConfig) -> bool {
    pod.flags & FLAG_TRACED != 0
}

/// Reports a decision. A function of its own, so that a pod which is not traced jumps over one
/// call.
#[cold]
#[inline(never)]
pub fn report(decision: &mut Decision) {
    // SAFETY: the helper takes no arguments.
    decision.monotonic_ns = unsafe { bpf_ktime_get_ns() };
    info!((), "decision={:x}", decision.bytes());
    // Afterwards: a decision that is counted has been written, or is missing.
    maps::count_report(decision.cookie);
}
