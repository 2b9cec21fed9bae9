//! Whose process has made a system call.

use aya_ebpf::helpers::generated::{bpf_get_current_ancestor_cgroup_id, bpf_get_current_cgroup_id};
use mesh_ebpf_common::unit::{ROLE_PROXY, ROLE_UNIT, UnitConfig};

use super::maps;

/// The bytes of LEVELS.
const LEVELS: u32 = u64::BITS / 8;

/// Returns the cookie of the unit whose process this is: its cgroup, or one above, is the unit's.
#[inline(always)]
pub fn unit() -> Option<(u64, &'static UnitConfig)> {
    let mut levels = maps::LEVELS.get(0).copied()?;
    for _ in 0..LEVELS {
        let level = levels & 0xff;
        if level == 0 {
            return None;
        }
        levels >>= 8;
        // SAFETY: the helper takes a number.
        let cgroup = unsafe { bpf_get_current_ancestor_cgroup_id(level as i32) };
        if let Some(member) = maps::member(cgroup)
            && member.role == ROLE_UNIT
        {
            return Some((member.subject, maps::unit(member.subject)?));
        }
    }
    None
}

/// Returns the cookie of the unit whose proxy's process this is.
#[inline(always)]
pub fn proxy() -> Option<(u64, &'static UnitConfig)> {
    // SAFETY: the helper takes no arguments.
    let member = maps::member(unsafe { bpf_get_current_cgroup_id() })?;
    if member.role != ROLE_PROXY {
        return None;
    }
    Some((member.subject, maps::unit(member.subject)?))
}
