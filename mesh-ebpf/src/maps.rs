//! The maps and the operations of the programs on them. Each map has one kind of writer:
//!
//! | map | written by | life of an entry |
//! |---|---|---|
//! | PODS, ADDRESSES, PORT_SKIPS, SUBNET_SKIPS | user space | enrolment |
//! | STATS | programs (created by user space) | enrolment |
//! | PROXIES | programs (created by user space) | enrolment |
//! | LISTENERS | sock_ops, and user space for older listeners | the listening socket |
//! | IN_FLIGHT | sock_ops | connect to accept, at most the client socket's life |
//! | IN_FLIGHT_COUNTS | sock_ops | first connection to the end of the enrolment |
//! | GUARD | user space | the pins |
//! | GUARD_STATS | programs (created by user space) | enrolment |
//! | TRACES | programs (created by user space) | a trace |
//! | OPEN_PORTS | open_ports | first socket that listens to the end of the enrolment |
//! | PORT_TRACKING | programs (created by user space) | enrolment, unless open_ports was detached |
//! | ORIGINAL_DST, BINDERS, OPENED | connect, bind, sock_ops, open_ports | the socket (storage) |

use core::arch::asm;
use core::ffi::c_void;
use core::ptr;

use aya_ebpf::bindings::{
    BPF_EXIST, BPF_F_NO_PREALLOC, BPF_NOEXIST, BPF_SK_STORAGE_GET_F_CREATE, bpf_sock,
};
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, PerCpuHashMap, SkStorage, SockHash};
use aya_ebpf::helpers::generated::{
    bpf_map_lookup_elem, bpf_sk_release, bpf_sk_storage_delete, bpf_sk_storage_get,
};
use aya_ebpf::macros::btf_map;
use mesh_ebpf_common::address::{Address, Family};
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::layout::{
    AddressKey, Binder, FLAG_PORTS_KNOWN, FlowKey, GUARD_OFF, GuardStats, LISTENER_SLOTS,
    ListenerKey, OpenedPort, OriginalDst, PodConfig, PodStats, PortKey, PortSkipKey, PortTracking,
    ProxyState, Role, SubnetSkipKey,
};
use mesh_ebpf_common::quota::{
    ADDRESSES_MAX, IN_FLIGHT_MAX, IN_FLIGHT_PER_POD, LISTENERS_MAX, OPEN_PORTS_MAX,
    OPEN_PORTS_PER_POD, PODS_MAX, PORT_SKIPS_MAX, SUBNET_SKIPS_MAX,
};
use mesh_ebpf_common::verdict;

/// One untracked connection in IN_FLIGHT_COUNTS.
const UNTRACKED: i64 = 1 << 32;

/// Entries are allocated when used: the sizes in `quota` are upper bounds, not memory.
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

#[btf_map]
pub static PODS: HashMap<u64, PodConfig, PODS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
static PROXIES: HashMap<u64, ProxyState, PODS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
static ADDRESSES: HashMap<AddressKey, u8, ADDRESSES_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
static PORT_SKIPS: LpmTrie<PortSkipKey, u8, PORT_SKIPS_MAX> = LpmTrie::new();

#[btf_map]
static SUBNET_SKIPS: LpmTrie<SubnetSkipKey, u8, SUBNET_SKIPS_MAX> = LpmTrie::new();

#[btf_map]
pub static LISTENERS: SockHash<ListenerKey, LISTENERS_MAX> = SockHash::new();

#[btf_map]
static IN_FLIGHT: HashMap<FlowKey, OriginalDst, IN_FLIGHT_MAX, ON_DEMAND> = HashMap::new();

/// The number of a pod's entries in IN_FLIGHT in the lower half, and the number of its untracked
/// connections in the upper half.
#[btf_map]
static IN_FLIGHT_COUNTS: HashMap<u64, i64, PODS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
static STATS: PerCpuHashMap<u64, PodStats, PODS_MAX, ON_DEMAND> = PerCpuHashMap::new();

#[btf_map]
static GUARD: Array<u32, 1> = Array::new();

#[btf_map]
static GUARD_STATS: PerCpuHashMap<u64, GuardStats, PODS_MAX, ON_DEMAND> = PerCpuHashMap::new();

/// The number of decisions that the programs have reported, or tried to, by traced pod. The log
/// itself, AYA_LOGS, is defined by aya-log.
#[btf_map]
static TRACES: HashMap<u64, i64, PODS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
static OPEN_PORTS: HashMap<PortKey, i64, OPEN_PORTS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
static PORT_TRACKING: HashMap<u64, PortTracking, PODS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
pub static OPENED: SkStorage<OpenedPort> = SkStorage::new();

#[btf_map]
pub static ORIGINAL_DST: SkStorage<OriginalDst> = SkStorage::new();

#[btf_map]
pub static BINDERS: SkStorage<Binder> = SkStorage::new();

/// Returns the settings of the pod with this network namespace, if it is enrolled.
#[inline(always)]
pub fn pod(cookie: u64) -> Option<&'static PodConfig> {
    // SAFETY: an entry stays valid while the program runs (RCU), and user space replaces entries
    // instead of editing them.
    unsafe { PODS.get(cookie) }
}

/// Returns the state of the pod's proxy.
#[inline(always)]
pub fn proxy(cookie: u64) -> ProxyState {
    // SAFETY: as above; a torn read is impossible for aligned words.
    unsafe { PROXIES.get(cookie) }.copied().unwrap_or_default()
}

/// Returns the mutable state of the pod's proxy.
#[inline(always)]
pub fn proxy_mut(cookie: u64) -> Option<*mut ProxyState> {
    PROXIES.get_ptr_mut(cookie)
}

#[inline(always)]
pub fn is_own_address(cookie: u64, address: &Address) -> bool {
    let key = AddressKey {
        cookie,
        address: *address,
    };
    // SAFETY: only the presence of the entry is used.
    unsafe { ADDRESSES.get(key) }.is_some()
}

#[inline(always)]
pub fn is_skipped_port(cookie: u64, direction: u8, port: u16) -> bool {
    PORT_SKIPS
        .get(&Key::new(
            PortSkipKey::BITS,
            PortSkipKey::new(cookie, direction, port),
        ))
        .is_some()
}

#[inline(always)]
pub fn is_skipped_source(cookie: u64, source: &Address) -> bool {
    SUBNET_SKIPS
        .get(&Key::new(
            SubnetSkipKey::BITS,
            SubnetSkipKey::new(cookie, source),
        ))
        .is_some()
}

/// Whether the pod's proxy has an open listener. Takes up to sixteen lookups.
#[inline(always)]
pub fn has_listener(cookie: u64) -> bool {
    for role in [Role::Outbound, Role::Inbound] {
        for family in [Family::V4, Family::V6] {
            for slot in 0..LISTENER_SLOTS {
                if is_listener_stored(&ListenerKey::new(cookie, role, family, slot)) {
                    return true;
                }
            }
        }
    }
    false
}

#[inline(always)]
fn is_listener_stored(key: &ListenerKey) -> bool {
    let map = ptr::from_ref(&LISTENERS).cast_mut().cast();
    // SAFETY: the verifier checks map and key; the reference to a found socket is released.
    unsafe {
        let socket = bpf_map_lookup_elem(map, ptr::from_ref(key).cast_mut().cast());
        if socket.is_null() {
            return false;
        }
        bpf_sk_release(socket);
    }
    true
}

#[inline(always)]
pub fn count(cookie: u64, counter: Counter) {
    if let Some(stats) = STATS.get_ptr_mut(cookie) {
        // SAFETY: this CPU's own copy; a preempted increment may be lost, but never torn.
        if let Some(count) = unsafe { (*stats).counts.get_mut(counter.index()) } {
            *count += 1;
        }
    }
}

/// Stores a connection of an enrolled pod in IN_FLIGHT. Returns false when the pod has reached its
/// limit or the kernel has no memory.
#[inline(always)]
pub fn put_in_flight(key: &FlowKey, original: &OriginalDst) -> bool {
    let Some(count) = in_flight_count(key.cookie) else {
        return false;
    };
    // Several CPUs may pass this concurrently, and each may exceed the limit by one.
    let is_below_limit = tracked(unsafe { ptr::read_volatile(count) }) < IN_FLIGHT_PER_POD;
    if is_below_limit
        && IN_FLIGHT
            .insert(key, original, u64::from(BPF_NOEXIST))
            .is_ok()
    {
        // SAFETY: a map's value, from just above.
        unsafe { add(count, 1) };
        return true;
    }
    // The same socket connects again, or another one with its address, which takes no further
    // entry.
    IN_FLIGHT
        .insert(key, original, u64::from(BPF_EXIST))
        .is_ok()
}

/// Whether [`put_in_flight`] would store another connection of the pod now.
#[inline(always)]
pub fn has_in_flight_room(cookie: u64) -> bool {
    match IN_FLIGHT_COUNTS.get_ptr(cookie) {
        // SAFETY: a map's value.
        Some(count) => tracked(unsafe { ptr::read_volatile(count) }) < IN_FLIGHT_PER_POD,
        None => true,
    }
}

/// Whether a connection of the pod is redirected to a port other than the proxy's, without an entry
/// in IN_FLIGHT.
#[inline(always)]
pub fn has_untracked(cookie: u64) -> bool {
    match IN_FLIGHT_COUNTS.get_ptr(cookie) {
        Some(count) => {
            // SAFETY: a map's value.
            let count = unsafe { ptr::read_volatile(count) };
            count - tracked(count) >= UNTRACKED
        }
        None => false,
    }
}

/// Counts the beginning or the end of an untracked connection.
#[inline(always)]
pub fn count_untracked(cookie: u64, is_end: bool) {
    if let Some(count) = IN_FLIGHT_COUNTS.get_ptr_mut(cookie) {
        let number = if is_end { -UNTRACKED } else { UNTRACKED };
        // SAFETY: a map's value, from just above.
        unsafe { add(count, number) };
    }
}

/// The lower half may be negative for a moment, between an insertion and its count.
#[inline(always)]
fn tracked(count: i64) -> i64 {
    i64::from(count as i32)
}

#[inline(always)]
pub fn in_flight(key: &FlowKey) -> Option<OriginalDst> {
    // SAFETY: copied immediately; only this connection's client writes the entry.
    unsafe { IN_FLIGHT.get(key) }.copied()
}

/// Removes a connection. Counts exactly the removed entries: of several CPUs that remove the same
/// entry, only one succeeds.
#[inline(always)]
pub fn remove_in_flight(key: &FlowKey) {
    if IN_FLIGHT.remove(key).is_ok()
        && let Some(count) = IN_FLIGHT_COUNTS.get_ptr_mut(key.cookie)
    {
        // SAFETY: a map's value, from just above.
        unsafe { add(count, -1) };
    }
}

/// Returns the pod's count, and creates it if it is missing, as for pods that were enrolled by a
/// version without counts. A pod that is not enrolled (any more) gets none.
#[inline(always)]
fn in_flight_count(cookie: u64) -> Option<*mut i64> {
    if let Some(count) = IN_FLIGHT_COUNTS.get_ptr_mut(cookie) {
        return Some(count);
    }
    pod(cookie)?;
    // An error means that another CPU has created it.
    let _ = IN_FLIGHT_COUNTS.insert(cookie, 0, u64::from(BPF_NOEXIST));
    IN_FLIGHT_COUNTS.get_ptr_mut(cookie)
}

/// Adds atomically, with inline assembly because core offers no such operation for this target.
///
/// # Safety
///
/// The count is an aligned word of a map's value.
#[inline(always)]
pub unsafe fn add(count: *mut i64, number: i64) {
    // SAFETY: one aligned word of a map, which the verifier checks.
    unsafe {
        asm!(
            "lock *(u64 *)({count} + 0) += {number}",
            count = in(reg) count,
            number = in(reg) number,
            options(nostack),
        );
    }
}

/// Returns the record of the pod's open ports, if they are recorded.
#[inline(always)]
pub fn port_tracking(cookie: u64) -> Option<*mut PortTracking> {
    PORT_TRACKING.get_ptr_mut(cookie)
}

/// Counts a socket that listens on a port. Returns false when the pod has reached its limit of
/// ports or the kernel has no memory.
#[inline(always)]
pub fn count_open_port(tracking: *mut PortTracking, key: &PortKey) -> bool {
    if OPEN_PORTS.get_ptr_mut(key).is_none() {
        // Several CPUs may pass this concurrently, and each may exceed the limit by one.
        // SAFETY: a map's value.
        if unsafe { ptr::read_volatile(&raw const (*tracking).ports) } >= OPEN_PORTS_PER_POD {
            return false;
        }
        if OPEN_PORTS.insert(key, 0, u64::from(BPF_NOEXIST)).is_ok() {
            // SAFETY: a map's value.
            unsafe { add(&raw mut (*tracking).ports, 1) };
        }
        // An error may mean that another CPU has inserted it.
    }
    let Some(count) = OPEN_PORTS.get_ptr_mut(key) else {
        return false;
    };
    // SAFETY: a map's value, from just above. Entries of an enrolled pod are never removed.
    unsafe { add(count, 1) };
    true
}

/// Counts a socket that has stopped listening on a port.
#[inline(always)]
pub fn count_closed_port(key: &PortKey) {
    if let Some(count) = OPEN_PORTS.get_ptr_mut(key) {
        // SAFETY: a map's value, from just above.
        unsafe { add(count, -1) };
    }
}

/// Makes all ports of the pod unknown.
#[inline(always)]
pub fn lose_ports(tracking: *mut PortTracking) {
    // SAFETY: a map's value.
    unsafe { add(&raw mut (*tracking).lost, 1) };
}

/// Whether it is known that no socket of the pod listens for a connection to this address and port.
#[inline(always)]
pub fn is_closed(pod: &PodConfig, cookie: u64, local: &Address, port: u16) -> bool {
    if pod.flags & FLAG_PORTS_KNOWN == 0 {
        return false;
    }
    let Some(tracking) = port_tracking(cookie) else {
        return false;
    };
    // SAFETY: a map's value, from just above.
    if unsafe { ptr::read_volatile(&raw const (*tracking).lost) } != 0 {
        return false;
    }
    !verdict::is_open(local, |address| {
        // SAFETY: a map's value; an aligned word is never torn.
        unsafe { OPEN_PORTS.get(PortKey::new(cookie, *address, port)) }
            .is_some_and(|count| *count > 0)
    })
}

/// Counts a refused connection to a closed port.
#[inline(always)]
pub fn count_refused_port(cookie: u64) {
    if let Some(tracking) = port_tracking(cookie) {
        // SAFETY: a map's value, from just above.
        unsafe { add(&raw mut (*tracking).refused, 1) };
    }
}

#[inline(always)]
pub fn count_report(cookie: u64) {
    if let Some(count) = TRACES.get_ptr_mut(cookie) {
        // SAFETY: a map's value, from just above.
        unsafe { add(count, 1) };
    }
}

#[inline(always)]
pub fn guard_mode() -> u32 {
    GUARD.get(0).copied().unwrap_or(GUARD_OFF)
}

#[inline(always)]
pub fn count_bypass(cookie: u64, dropped: bool) {
    if let Some(stats) = GUARD_STATS.get_ptr_mut(cookie) {
        // SAFETY: as in `count`.
        unsafe {
            if dropped {
                (*stats).dropped += 1;
            } else {
                (*stats).passed += 1;
            }
        }
    }
}

/// A socket storage map for any context: aya-ebpf's own accessors take sock_addr contexts only.
pub trait Storage {
    type Value;

    /// Returns the socket's value, if it has one.
    fn of(&self, socket: *mut bpf_sock) -> Option<*mut Self::Value>;
    /// Stores a value, replacing an older one. Returns false when the kernel has no memory for it.
    fn put(&self, socket: *mut bpf_sock, value: Self::Value) -> bool;
    /// Removes the value.
    fn remove(&self, socket: *mut bpf_sock);
}

impl<T: Copy> Storage for SkStorage<T> {
    type Value = T;

    #[inline(always)]
    fn of(&self, socket: *mut bpf_sock) -> Option<*mut T> {
        // SAFETY: the verifier checks map and socket; a null value creates nothing.
        let value = unsafe { bpf_sk_storage_get(map_of(self), socket.cast(), ptr::null_mut(), 0) };
        (!value.is_null()).then_some(value.cast())
    }

    #[inline(always)]
    fn put(&self, socket: *mut bpf_sock, mut value: T) -> bool {
        // SAFETY: the verifier checks map, socket and the initial value's size.
        let stored = unsafe {
            bpf_sk_storage_get(
                map_of(self),
                socket.cast(),
                (&raw mut value).cast(),
                u64::from(BPF_SK_STORAGE_GET_F_CREATE),
            )
        };
        if stored.is_null() {
            return false;
        }
        // An existing value is returned unchanged and must be overwritten.
        unsafe { ptr::write(stored.cast(), value) };
        true
    }

    #[inline(always)]
    fn remove(&self, socket: *mut bpf_sock) {
        // SAFETY: the verifier checks map and socket. A missing value is not an error.
        unsafe { bpf_sk_storage_delete(map_of(self), socket.cast()) };
    }
}

/// Returns the map argument of a helper: the loader relocates the static's address to the map.
#[inline(always)]
fn map_of<T>(map: &SkStorage<T>) -> *mut c_void {
    ptr::from_ref(map).cast_mut().cast()
}
