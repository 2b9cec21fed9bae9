//! Registers cgroups with the names of units and their proxies when systemd creates them.
//!
//! * hooks: raw tracepoints `cgroup_mkdir` and `cgroup_rmdir`, of the whole host
//! * minimum kernel: 5.7 (links of raw tracepoints that can be pinned)
//! * reads CGROUP_NAMES; writes CGROUPS
//! * absent: a unit is not redirected after its next start
//!
//! `cgroup_mkdir` is called before mkdir(2) returns and before the cgroup can be found by its path,
//! so that no process can be in it: there is no moment when a unit runs unregistered, also without
//! an agent. Tracepoints do not take a sleeping program, and none of a machine needs one.
//!
//! Names are looked up below their parents, and not by the whole path, since a path begins
//! elsewhere in another cgroup namespace. A slice that systemd creates on the way to a unit is
//! registered as such.
//!
//! The kernel's structures have no stable layout. The agent reads the offsets of their fields from
//! the kernel's own type information.

use aya_ebpf::Global;
use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::{bpf_probe_read_kernel, bpf_probe_read_kernel_str_bytes};
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use mesh_ebpf_common::unit::{CgroupName, Member, NAME_BYTES, ROLE_PATH};

use super::maps;

/// Offsets of the fields of kernel structures; set by the loader.
macro_rules! offsets {
    ($($name:ident)+) => {
        $(
            #[unsafe(no_mangle)]
            static $name: Global<u32> = Global::new(0);
        )+
    };
}

offsets! {
    CGROUP_KN
    CGROUP_ROOT
    CGROUP_LEVEL
    CGROUP_ROOT_HIERARCHY_ID
    KERNFS_NODE_PARENT
    KERNFS_NODE_NAME
    KERNFS_NODE_ID
}

/// The number of cgroup version 2 among the hierarchies, whose cgroups have ids of their own.
const UNIFIED: i32 = 0;

#[raw_tracepoint(tracepoint = "cgroup_mkdir")]
pub fn mesh_cgroup_mkdir(ctx: RawTracePointContext) -> i32 {
    let _ = register(ctx.arg(0));
    0
}

#[raw_tracepoint(tracepoint = "cgroup_rmdir")]
pub fn mesh_cgroup_rmdir(ctx: RawTracePointContext) -> i32 {
    let _ = forget(ctx.arg(0));
    0
}

#[inline(always)]
fn register(cgroup: *const u8) -> Option<()> {
    let node = unified_node(cgroup)?;
    let parent_node: *const u8 = read(node, &KERNFS_NODE_PARENT)?;
    let parent = maps::member(read(parent_node, &KERNFS_NODE_ID)?)?;
    if parent.role != ROLE_PATH {
        return None;
    }
    let mut key = CgroupName {
        parent: parent.subject,
        name: [0; NAME_BYTES],
    };
    let name: *const u8 = read(node, &KERNFS_NODE_NAME)?;
    // SAFETY: the verifier checks the buffer; the kernel checks the address.
    unsafe { bpf_probe_read_kernel_str_bytes(name, &mut key.name) }.ok()?;
    // SAFETY: only copied.
    let found = unsafe { maps::CGROUP_NAMES.get(&key) }?;
    let member = Member {
        level: read(cgroup, &CGROUP_LEVEL)?,
        ..*found
    };
    let id: u64 = read(node, &KERNFS_NODE_ID)?;
    maps::CGROUPS.insert(id, member, u64::from(BPF_ANY)).ok()
}

#[inline(always)]
fn forget(cgroup: *const u8) -> Option<()> {
    let id: u64 = read(unified_node(cgroup)?, &KERNFS_NODE_ID)?;
    maps::CGROUPS.remove(id).ok()
}

/// Returns the `kernfs_node` of a cgroup of version 2.
#[inline(always)]
fn unified_node(cgroup: *const u8) -> Option<*const u8> {
    let root: *const u8 = read(cgroup, &CGROUP_ROOT)?;
    let hierarchy: i32 = read(root, &CGROUP_ROOT_HIERARCHY_ID)?;
    if hierarchy != UNIFIED {
        return None;
    }
    read(cgroup, &CGROUP_KN)
}

/// Reads the field of a structure.
#[inline(always)]
fn read<T>(structure: *const u8, offset: &Global<u32>) -> Option<T> {
    let field = structure.wrapping_add(offset.load() as usize);
    // SAFETY: the kernel checks the address; `T` is an integer or a pointer.
    unsafe { bpf_probe_read_kernel(field.cast()) }.ok()
}
