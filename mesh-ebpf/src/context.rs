//! Access to the kernel's context structures. Every access is volatile and of the field's own
//! width, because the compiler would merge adjacent ones into wider accesses, which the verifier
//! rejects.

use core::ptr;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{bpf_sk_lookup, bpf_sock, bpf_sock_addr, bpf_sock_ops};
use aya_ebpf::helpers::generated::bpf_get_netns_cookie;
use mesh_ebpf_common::address::{Address, Family};

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

/// Loads one context field.
macro_rules! load {
    ($place:expr) => {
        // SAFETY: a field of a context that the kernel passed in; the verifier checks offset and
        // width.
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

/// Returns the cookie of the socket's network namespace.
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

/// Converts a kernel `family` field; `None` for families other than IPv4 and IPv6.
#[inline(always)]
fn family_of(family: u32) -> Option<Family> {
    match family {
        AF_INET => Some(Family::V4),
        AF_INET6 => Some(Family::V6),
        _ => None,
    }
}

/// Selects by the family at run time. Both values are loaded before: loads in the branches would be
/// merged into one from a computed offset, which the verifier rejects.
#[inline(always)]
fn select_family(family: u32, v4: u32, v6: Address) -> Option<Address> {
    Some(match family_of(family)? {
        Family::V4 => Address::from_v4(v4),
        Family::V6 => v6,
    })
}

/// Returns the address of a sock_addr hook. `family` is the hook's family, and so the field's.
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
    // The field is a port in network order in the lower half of a word.
    u16::from_be(load!((*ctx).user_port) as u16)
}

/// Replaces the address and port of a sock_addr hook.
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

/// Returns the address that a socket is bound to; unspecified if it is not bound.
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

/// Returns the port that a socket is bound to; 0 if it is not bound.
#[inline(always)]
pub fn source_port_of(socket: *const bpf_sock) -> u16 {
    load!((*socket).src_port) as u16
}

/// Returns the local address of a connected socket.
#[inline(always)]
pub fn socket_local(socket: *const bpf_sock) -> Option<Address> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*socket).src_ip6 });
    select_family(load!((*socket).family), load!((*socket).src_ip4), v6)
}

/// Returns the remote address of a connected socket.
#[inline(always)]
pub fn socket_remote(socket: *const bpf_sock) -> Option<Address> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*socket).dst_ip6 });
    select_family(load!((*socket).family), load!((*socket).dst_ip4), v6)
}

/// Returns the local address and port of a sock_ops socket.
#[inline(always)]
pub fn ops_local(ctx: *const bpf_sock_ops) -> Option<(Address, u16)> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*ctx).local_ip6 });
    let address = select_family(load!((*ctx).family), load!((*ctx).local_ip4), v6)?;
    Some((address, load!((*ctx).local_port) as u16))
}

/// Returns the remote address and port of a sock_ops socket.
#[inline(always)]
pub fn ops_remote(ctx: *const bpf_sock_ops) -> Option<(Address, u16)> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*ctx).remote_ip6 });
    let address = select_family(load!((*ctx).family), load!((*ctx).remote_ip4), v6)?;
    Some((address, ops_remote_port(ctx)))
}

/// Returns the remote port of a sock_ops socket.
#[inline(always)]
pub fn ops_remote_port(ctx: *const bpf_sock_ops) -> u16 {
    // Network order in the upper half of the word: after swapping, the port is in the lower half.
    u32::from_be(load!((*ctx).remote_port)) as u16
}

/// Returns the family of a sock_ops socket; a dual-stack listener is V6.
#[inline(always)]
pub fn ops_family(ctx: *const bpf_sock_ops) -> Option<Family> {
    family_of(load!((*ctx).family))
}

/// Returns the source address of the packet of a socket lookup.
#[inline(always)]
pub fn lookup_remote(ctx: *const bpf_sk_lookup) -> Option<Address> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*ctx).remote_ip6 });
    select_family(load!((*ctx).family), load!((*ctx).remote_ip4), v6)
}

/// Returns the destination address of the packet of a socket lookup.
#[inline(always)]
pub fn lookup_local(ctx: *const bpf_sk_lookup) -> Option<Address> {
    // SAFETY: only the field's address is taken.
    let v6 = words(unsafe { &raw const (*ctx).local_ip6 });
    select_family(load!((*ctx).family), load!((*ctx).local_ip4), v6)
}

/// Returns the source port of the packet of a socket lookup.
#[inline(always)]
pub fn lookup_remote_port(ctx: *const bpf_sk_lookup) -> u16 {
    u16::from_be(load!((*ctx).remote_port))
}
