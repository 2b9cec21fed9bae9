//! Reading and writing the kernel's context structures. Every access is volatile and of the field's
//! own width: the compiler merges neighbouring ones into wider accesses, which the verifier
//! refuses.

use core::ptr;

use aya_ebpf::{
    EbpfContext,
    bindings::{bpf_sk_lookup, bpf_sock, bpf_sock_addr, bpf_sock_ops},
    helpers::generated::bpf_get_netns_cookie,
};
use mesh_ebpf_common::address::{Address, Family};

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

/// Loads one context field.
macro_rules! load {
    ($place:expr) => {
        // SAFETY: a field of a context the kernel passed in; the verifier checks offset and width.
        unsafe { core::ptr::read_volatile(&raw const $place) }
    };
}

/// Stores one context field.
macro_rules! store {
    ($place:expr, $value:expr) => {
        // SAFETY: as for `load`.
        unsafe { core::ptr::write_volatile(&raw mut $place, $value) }
    };
}

pub(crate) use {load, store};

/// The cookie of the socket's network namespace.
#[inline(always)]
pub fn netns_cookie(ctx: &impl EbpfContext) -> u64 {
    // SAFETY: the helper accepts the program's own context.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }
}

#[inline(always)]
fn words(field: *const [u32; 4]) -> Address {
    let word = |index: usize| {
        // SAFETY: `index` is below four, and the field is part of a valid context.
        unsafe { ptr::read_volatile(field.cast::<u32>().add(index)) }
    };
    Address::from_words([word(0), word(1), word(2), word(3)])
}

/// The family of a kernel `family` field, if it is one of ours.
#[inline(always)]
fn family_of(family: u32) -> Option<Family> {
    match family {
        AF_INET => Some(Family::V4),
        AF_INET6 => Some(Family::V6),
        _ => None,
    }
}

/// Picks by the family found at run time. Both values are loaded beforehand: loads in the branches
/// would be merged into one from a computed offset, which the verifier refuses.
#[inline(always)]
fn pick(family: u32, v4: u32, v6: Address) -> Option<Address> {
    Some(match family_of(family)? {
        Family::V4 => Address::from_v4(v4),
        Family::V6 => v6,
    })
}

/// The address a sock_addr hook is about. `family` is that of the hook, hence of the field.
#[inline(always)]
pub fn user_address(ctx: *const bpf_sock_addr, family: Family) -> Address {
    match family {
        Family::V4 => Address::from_v4(load!((*ctx).user_ip4)),
        // SAFETY: only the field's address is taken.
        Family::V6 => words(unsafe { &raw const (*ctx).user_ip6 }),
    }
}

#[inline(always)]
pub fn user_port(ctx: *const bpf_sock_addr) -> u16 {
    // The kernel's field is a network-order port in the lower half of a word.
    u16::from_be(load!((*ctx).user_port) as u16)
}

/// Replaces the address a sock_addr hook is about.
#[inline(always)]
pub fn set_user_address(ctx: *mut bpf_sock_addr, family: Family, address: &Address, port: u16) {
    match family {
        Family::V4 => store!((*ctx).user_ip4, address.v4_word()),
        Family::V6 => {
            store!((*ctx).user_ip6[0], address.words[0]);
            store!((*ctx).user_ip6[1], address.words[1]);
            store!((*ctx).user_ip6[2], address.words[2]);
            store!((*ctx).user_ip6[3], address.words[3]);
        }
    }
    store!((*ctx).user_port, u32::from(port.to_be()));
}

#[inline(always)]
pub fn sock_addr_socket(ctx: *const bpf_sock_addr) -> *mut bpf_sock {
    load!((*ctx).__bindgen_anon_1.sk)
}

/// The address a socket is bound to; unspecified when it is not.
#[inline(always)]
pub fn source_of(socket: *const bpf_sock, family: Family) -> Address {
    match family {
        Family::V4 => match load!((*socket).src_ip4) {
            0 => Address::UNSPECIFIED,
            word => Address::from_v4(word),
        },
        // SAFETY: only the field's address is taken.
        Family::V6 => words(unsafe { &raw const (*socket).src_ip6 }),
    }
}

/// The local address of a connected socket.
#[inline(always)]
pub fn socket_local(socket: *const bpf_sock) -> Option<Address> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*socket).src_ip6 });
    pick(load!((*socket).family), load!((*socket).src_ip4), v6)
}

/// The near end of a sock_ops socket.
#[inline(always)]
pub fn ops_local(ctx: *const bpf_sock_ops) -> Option<(Address, u16)> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*ctx).local_ip6 });
    let address = pick(load!((*ctx).family), load!((*ctx).local_ip4), v6)?;
    Some((address, load!((*ctx).local_port) as u16))
}

/// The far end of a sock_ops socket.
#[inline(always)]
pub fn ops_remote(ctx: *const bpf_sock_ops) -> Option<(Address, u16)> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*ctx).remote_ip6 });
    let address = pick(load!((*ctx).family), load!((*ctx).remote_ip4), v6)?;
    // Network order in the upper half of the word: swapped, the port is in the lower half.
    Some((address, u32::from_be(load!((*ctx).remote_port)) as u16))
}

/// The family of a sock_ops socket itself: a dual-stack listener is V6.
#[inline(always)]
pub fn ops_family(ctx: *const bpf_sock_ops) -> Option<Family> {
    family_of(load!((*ctx).family))
}

/// The sender of the packet a lookup is for.
#[inline(always)]
pub fn lookup_remote(ctx: *const bpf_sk_lookup) -> Option<Address> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*ctx).remote_ip6 });
    pick(load!((*ctx).family), load!((*ctx).remote_ip4), v6)
}

/// The address the packet was sent to.
#[inline(always)]
pub fn lookup_local(ctx: *const bpf_sk_lookup) -> Option<Address> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*ctx).local_ip6 });
    pick(load!((*ctx).family), load!((*ctx).local_ip4), v6)
}
