//! Which unit a port of the host belongs to, and where its sockets listen.

use core::ptr;

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use mesh_ebpf_common::address::Address;
use mesh_ebpf_common::layout::PortTracking;
use mesh_ebpf_common::quota::OPEN_PORTS_PER_POD;
use mesh_ebpf_common::unit::{HostPort, PORT_INBOUND, PORT_OUTBOUND, UnitPort};
use mesh_ebpf_common::verdict::unit::{PortUse, listener};

use super::maps;
use crate::maps::add;

/// Returns the unit that a connection to this address and port belongs to.
#[inline(always)]
pub fn owner(local: &Address, port: u16) -> Option<(u64, PortUse)> {
    if let Some(found) = maps::proxy_port(port) {
        let port_use = match found.kind {
            PORT_OUTBOUND => PortUse::Outbound,
            PORT_INBOUND => PortUse::Inbound,
            _ => PortUse::Redirect,
        };
        return Some((found.cookie, port_use));
    }
    let cookie = match observed(local, port) {
        Some(cookie) => cookie,
        None => listener(local, |address| adopted(&HostPort::new(*address, port)))?,
    };
    Some((cookie, PortUse::Inbound))
}

/// Returns the unit whose socket was seen to begin to listen for this address and port.
#[inline(always)]
pub fn observed(local: &Address, port: u16) -> Option<u64> {
    listener(local, |address| {
        let entry = maps::UNIT_PORTS.get_ptr(HostPort::new(*address, port))?;
        // SAFETY: a map's value; aligned words are never torn.
        let (cookie, sockets) = unsafe {
            (
                ptr::read_volatile(&raw const (*entry).cookie),
                ptr::read_volatile(&raw const (*entry).sockets),
            )
        };
        (sockets > 0).then_some(cookie)
    })
}

/// An older socket has ended when its unit's cgroup has.
#[inline(always)]
fn adopted(key: &HostPort) -> Option<u64> {
    // SAFETY: user space replaces entries instead of editing them.
    let entry = unsafe { maps::ADOPTED_PORTS.get(key) }?;
    let cgroup = maps::member(entry.cgroup)?;
    cgroup.is_unit(entry.cookie).then_some(entry.cookie)
}

/// Counts a socket of the unit that begins to listen; returns the time of the entry that it is
/// counted in. `None` when the unit has reached its limit of ports or the kernel has no memory.
#[inline(always)]
pub fn open(tracking: *mut PortTracking, cookie: u64, key: &HostPort) -> Option<u64> {
    if maps::UNIT_PORTS.get_ptr_mut(key).is_none() {
        // Several CPUs may pass this concurrently, and each may exceed the limit by one.
        // SAFETY: a map's value.
        if unsafe { ptr::read_volatile(&raw const (*tracking).ports) } >= OPEN_PORTS_PER_POD {
            return None;
        }
        let entry = UnitPort {
            cookie,
            sockets: 0,
            // SAFETY: the helper takes no arguments.
            created: unsafe { bpf_ktime_get_ns() },
        };
        if maps::UNIT_PORTS
            .insert(key, entry, u64::from(BPF_NOEXIST))
            .is_ok()
        {
            // SAFETY: a map's value.
            unsafe { add(&raw mut (*tracking).ports, 1) };
        }
        // An error may mean that another CPU has inserted it.
    }
    let entry = maps::UNIT_PORTS.get_ptr_mut(key)?;
    // SAFETY: a map's value; aligned words are never torn.
    unsafe {
        if ptr::read_volatile(&raw const (*entry).sockets) <= 0 {
            // Another unit listened here before.
            ptr::write_volatile(&raw mut (*entry).cookie, cookie);
        }
        add(&raw mut (*entry).sockets, 1);
        Some((*entry).created)
    }
}

/// Counts a socket that has stopped to listen and was counted in the entry of this time.
#[inline(always)]
pub fn close(key: &HostPort, created: u64) {
    let Some(entry) = maps::UNIT_PORTS.get_ptr_mut(key) else {
        return;
    };
    // SAFETY: as above. Another time: the unit was enrolled again since.
    unsafe {
        if (*entry).created == created {
            add(&raw mut (*entry).sockets, -1);
        }
    }
}
