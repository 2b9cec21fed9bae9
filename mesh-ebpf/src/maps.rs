//! The maps, and the few ways the programs use them. Each map has one kind of writer:
//!
//! | map | written by | life of an entry |
//! |---|---|---|
//! | PODS, ADDRESSES, PORT_SKIPS, SUBNET_SKIPS | user space | enrolment |
//! | STATS | programs (created by user space) | enrolment |
//! | PROXIES | programs (created by user space) | enrolment |
//! | LISTENERS | sock_ops, and user space for older listeners | the listening socket |
//! | IN_FLIGHT | sock_ops | connect to accept, at most the client socket's life |
//! | GUARD | user space | the pins |
//! | GUARD_STATS | programs (created by user space) | enrolment |
//! | ORIGINAL_DST, BINDERS | connect, bind, sock_ops | the socket (storage) |

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    bindings::{BPF_F_NO_PREALLOC, BPF_SK_STORAGE_GET_F_CREATE, bpf_sock},
    btf_maps::{Array, HashMap, LpmTrie, PerCpuHashMap, SkStorage, SockHash, lpm_trie::Key},
    helpers::generated::{
        bpf_map_lookup_elem, bpf_sk_release, bpf_sk_storage_delete, bpf_sk_storage_get,
    },
    macros::btf_map,
};
use mesh_ebpf_common::{
    address::{Address, Family},
    counter::Counter,
    layout::{
        AddressKey, Binder, FlowKey, GUARD_OFF, GuardStats, LISTENER_SLOTS, ListenerKey,
        OriginalDst, PodConfig, PodStats, PortSkipKey, ProxyState, Role, SubnetSkipKey,
    },
};

/// Far above what a kubelet takes (110 pods by default, 2,500 in the largest documented setting). The hash tables of all maps together take 10 MB of kernel memory for it.
const PODS_MAX: usize = 10_240;
/// Room for dual-stack pods with two interfaces each.
const ADDRESSES_MAX: usize = 4 * PODS_MAX;
/// A port range costs up to thirty prefixes; the usual list is two single ports.
const PORT_SKIPS_MAX: usize = 32 * PODS_MAX;
const SUBNET_SKIPS_MAX: usize = 8 * PODS_MAX;
/// Two roles, two families, four slots.
const LISTENERS_MAX: usize = 16 * PODS_MAX;
/// Connections between connect and accept. One pod can hold about 28,000 half-open ones (its
/// ephemeral ports towards the one redirect address) while its proxy's accept queue is full.
const IN_FLIGHT_MAX: usize = 262_144;
/// Entries are allocated when used: the limits above are ceilings, not memory.
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

#[btf_map]
pub static PODS: HashMap<u64, PodConfig, PODS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
pub static PROXIES: HashMap<u64, ProxyState, PODS_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
static ADDRESSES: HashMap<AddressKey, u8, ADDRESSES_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
static PORT_SKIPS: LpmTrie<PortSkipKey, u8, PORT_SKIPS_MAX> = LpmTrie::new();

#[btf_map]
static SUBNET_SKIPS: LpmTrie<SubnetSkipKey, u8, SUBNET_SKIPS_MAX> = LpmTrie::new();

#[btf_map]
pub static LISTENERS: SockHash<ListenerKey, LISTENERS_MAX> = SockHash::new();

#[btf_map]
pub static IN_FLIGHT: HashMap<FlowKey, OriginalDst, IN_FLIGHT_MAX, ON_DEMAND> = HashMap::new();

#[btf_map]
static STATS: PerCpuHashMap<u64, PodStats, PODS_MAX, ON_DEMAND> = PerCpuHashMap::new();

#[btf_map]
static GUARD: Array<u32, 1> = Array::new();

#[btf_map]
static GUARD_STATS: PerCpuHashMap<u64, GuardStats, PODS_MAX, ON_DEMAND> = PerCpuHashMap::new();

#[btf_map]
pub static ORIGINAL_DST: SkStorage<OriginalDst> = SkStorage::new();

#[btf_map]
pub static BINDERS: SkStorage<Binder> = SkStorage::new();

/// The settings of the pod with this network namespace, if it is enrolled.
#[inline(always)]
pub fn pod(cookie: u64) -> Option<&'static PodConfig> {
    // SAFETY: an entry stays valid for the program's run (RCU), and user space replaces entries
    // rather than editing them.
    unsafe { PODS.get(cookie) }
}

/// What is known of the pod's proxy.
#[inline(always)]
pub fn proxy(cookie: u64) -> ProxyState {
    // SAFETY: as above; a torn read is impossible for aligned words.
    unsafe { PROXIES.get(cookie) }.copied().unwrap_or_default()
}

#[inline(always)]
pub fn is_own_address(cookie: u64, address: &Address) -> bool {
    let key = AddressKey {
        cookie,
        address: *address,
    };
    // SAFETY: only the presence of the entry is looked at.
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

/// Does the pod's proxy have any listener open? Sixteen lookups, for the rare caller.
#[inline(always)]
pub fn has_listener(cookie: u64) -> bool {
    for role in [Role::Outbound, Role::Inbound] {
        for family in [Family::V4, Family::V6] {
            for slot in 0..LISTENER_SLOTS {
                if holds_listener(&ListenerKey::new(cookie, role, family, slot)) {
                    return true;
                }
            }
        }
    }
    false
}

#[inline(always)]
fn holds_listener(key: &ListenerKey) -> bool {
    let map = ptr::from_ref(&LISTENERS).cast_mut().cast();
    // SAFETY: the verifier checks map and key; a socket that is found is a reference of ours, which
    // is given back.
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
        // SAFETY: this CPU's own copy; a pre-empted increment may be lost, never torn.
        unsafe { (*stats).counts[counter.index()] += 1 };
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

    /// The socket's value, if it has one.
    fn of(&self, socket: *mut bpf_sock) -> Option<*mut Self::Value>;
    /// Stores a value, replacing an older one; false when the kernel has no memory for it.
    fn put(&self, socket: *mut bpf_sock, value: Self::Value) -> bool;
    fn forget(&self, socket: *mut bpf_sock);
}

impl<T: Copy> Storage for SkStorage<T> {
    type Value = T;

    #[inline(always)]
    fn of(&self, socket: *mut bpf_sock) -> Option<*mut T> {
        // SAFETY: the verifier checks map and socket; a null value asks for nothing to be created.
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
        // An existing value is returned as it was: overwrite it.
        // SAFETY: not null, and the kernel sized it for `T`.
        unsafe { ptr::write(stored.cast(), value) };
        true
    }

    #[inline(always)]
    fn forget(&self, socket: *mut bpf_sock) {
        // SAFETY: the verifier checks map and socket. Nothing stored is no error to us.
        unsafe { bpf_sk_storage_delete(map_of(self), socket.cast()) };
    }
}

/// The map argument of a helper: the loader relocates the static's address to the map.
#[inline(always)]
fn map_of<T>(map: &SkStorage<T>) -> *mut c_void {
    ptr::from_ref(map).cast_mut().cast()
}
