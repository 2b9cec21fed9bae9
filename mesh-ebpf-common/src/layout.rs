//! Keys and values of the maps, with their layouts asserted at compile time: the kernel programs
//! and the agent are compiled by different compilers for different targets. A change of a layout
//! here needs a new [`VERSION`], which is the name of the pin directory.

use core::mem::offset_of;

use crate::{
    address::{Address, Family},
    counter::Counter,
};

/// Names the pin directory. Programs of one version may replace each other against the same maps.
pub const VERSION: &str = "v1";

/// [`PodConfig::flags`]: sk_lookup steers inbound connections (full tier).
pub const FLAG_INBOUND: u32 = 1;
/// [`PodConfig::flags`]: without an inbound listener, pass instead of reset.
pub const FLAG_INBOUND_FAIL_OPEN: u32 = 2;

/// [`PortSkipKey`]: destination ports of outbound connections.
pub const OUTBOUND: u8 = 0;
/// [`PortSkipKey`]: local ports of inbound connections.
pub const INBOUND: u8 = 1;

/// Listeners remembered per pod, role and family. One is enough for a proxy whose threads share a
/// port with SO_REUSEPORT (the kernel balances over the group of whichever socket is chosen); the
/// others let one of the group close first, and let an old and a new proxy overlap.
pub const LISTENER_SLOTS: u8 = 4;

/// PODS: what user space says about an enrolled pod. The programs only read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PodConfig {
    /// Where outbound IPv4 is redirected to; unspecified when the pod has no IPv4 address.
    pub v4: Address,
    /// Where outbound IPv6 is redirected to; unspecified when the pod has no IPv6 address.
    pub v6: Address,
    /// The proxy's uid in the initial user namespace.
    pub proxy_uid: u32,
    pub flags: u32,
    pub inbound_port: u16,
    pub outbound_port: u16,
}

/// PROXIES: what the programs learnt about a pod's proxy. User space creates it, and writes it
/// again only for listeners that opened unseen; see `mesh-agent::ebpf::listeners`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProxyState {
    /// The cgroup whose processes are the proxy; 0 before one listened.
    pub cgroup: u64,
    /// Changes with every listener that is registered. Tells a socket that was bound before from
    /// one that was bound after; not a count, because BPF code increments without atomicity.
    pub registrations: u64,
}

/// ADDRESSES: all addresses of enrolled pods (the value says nothing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AddressKey {
    pub cookie: u64,
    pub address: Address,
}

/// PORT_SKIPS, a longest-prefix-match map: bytes, because the match is from the first byte on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct PortSkipKey {
    pub cookie: [u8; 8],
    pub direction: u8,
    /// Network byte order.
    pub port: [u8; 2],
}

/// SUBNET_SKIPS, a longest-prefix-match map. Sources of inbound connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SubnetSkipKey {
    pub cookie: [u8; 8],
    pub address: [u8; 16],
}

/// Which of the proxy's two listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    Outbound = 0,
    Inbound = 1,
}

/// LISTENERS: the proxy's listening sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ListenerKey {
    pub cookie: u64,
    /// A [`Role`].
    pub role: u8,
    /// A [`Family`]: that of the socket, so a dual-stack listener is V6.
    pub family: u8,
    pub slot: u8,
    pub pad: [u8; 5],
}

/// IN_FLIGHT: a redirected connection between connect and accept, by its client side. The local
/// address is part of the key: two sockets may share a port on different addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FlowKey {
    pub cookie: u64,
    pub address: Address,
    pub port: u32,
    pub pad: u32,
}

/// Whose storage an [`OriginalDst`] is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Side {
    /// The application's socket: getpeername shows the destination.
    Client = 1,
    /// The proxy's accepted socket: SO_ORIGINAL_DST returns the destination.
    Accepted = 2,
}

/// ORIGINAL_DST (socket storage) and the value of IN_FLIGHT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OriginalDst {
    pub address: Address,
    pub port: u16,
    /// A [`Side`].
    pub side: u16,
}

/// BINDERS (socket storage): who bound a socket to a proxy port with the proxy's uid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Binder {
    pub cgroup: u64,
    /// [`ProxyState::registrations`] at that moment.
    pub registrations: u64,
}

/// STATS: one slot per [`Counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PodStats {
    pub counts: [u64; Counter::COUNT],
}

/// GUARD, the only entry: what the guard does with a connection request that goes around the proxy.
/// A plain number, so that a program never meets a value that its type does not have.
pub const GUARD_OFF: u32 = 0;
pub const GUARD_COUNT: u32 = 1;
pub const GUARD_DROP: u32 = 2;

/// GUARD_STATS: connection requests that went around the proxy, packets and not connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GuardStats {
    /// Seen and let through.
    pub passed: u64,
    pub dropped: u64,
}

impl PortSkipKey {
    /// Bits of the key before the port.
    pub const PORT_OFFSET_BITS: u32 = 72;
    pub const BITS: u32 = 88;

    #[inline(always)]
    pub const fn new(cookie: u64, direction: u8, port: u16) -> PortSkipKey {
        PortSkipKey {
            cookie: cookie.to_ne_bytes(),
            direction,
            port: port.to_be_bytes(),
        }
    }
}

impl SubnetSkipKey {
    /// Bits of the key before the address.
    pub const ADDRESS_OFFSET_BITS: u32 = 64;
    pub const BITS: u32 = 192;

    #[inline(always)]
    pub const fn new(cookie: u64, address: &Address) -> SubnetSkipKey {
        SubnetSkipKey {
            cookie: cookie.to_ne_bytes(),
            address: address.octets(),
        }
    }
}

impl ListenerKey {
    #[inline(always)]
    pub const fn new(cookie: u64, role: Role, family: Family, slot: u8) -> ListenerKey {
        ListenerKey {
            cookie,
            role: role as u8,
            family: family as u8,
            slot,
            pad: [0; 5],
        }
    }
}

impl FlowKey {
    #[inline(always)]
    pub const fn new(cookie: u64, address: Address, port: u16) -> FlowKey {
        FlowKey {
            cookie,
            address,
            port: port as u32,
            pad: 0,
        }
    }
}

const _: () = {
    assert!(size_of::<Address>() == 16 && align_of::<Address>() == 4);
    assert!(size_of::<PodConfig>() == 44);
    assert!(offset_of!(PodConfig, v6) == 16);
    assert!(offset_of!(PodConfig, proxy_uid) == 32);
    assert!(offset_of!(PodConfig, flags) == 36);
    assert!(offset_of!(PodConfig, inbound_port) == 40);
    assert!(offset_of!(PodConfig, outbound_port) == 42);
    assert!(size_of::<ProxyState>() == 16);
    assert!(offset_of!(ProxyState, registrations) == 8);
    assert!(size_of::<AddressKey>() == 24);
    assert!(offset_of!(AddressKey, address) == 8);
    assert!(size_of::<PortSkipKey>() == 11 && align_of::<PortSkipKey>() == 1);
    assert!(offset_of!(PortSkipKey, port) * 8 == PortSkipKey::PORT_OFFSET_BITS as usize);
    assert!(size_of::<PortSkipKey>() * 8 == PortSkipKey::BITS as usize);
    assert!(size_of::<SubnetSkipKey>() == 24 && align_of::<SubnetSkipKey>() == 1);
    assert!(offset_of!(SubnetSkipKey, address) * 8 == SubnetSkipKey::ADDRESS_OFFSET_BITS as usize);
    assert!(size_of::<SubnetSkipKey>() * 8 == SubnetSkipKey::BITS as usize);
    assert!(size_of::<ListenerKey>() == 16);
    assert!(offset_of!(ListenerKey, slot) == 10);
    assert!(size_of::<FlowKey>() == 32);
    assert!(offset_of!(FlowKey, address) == 8);
    assert!(offset_of!(FlowKey, port) == 24);
    assert!(size_of::<OriginalDst>() == 20);
    assert!(offset_of!(OriginalDst, port) == 16);
    assert!(size_of::<Binder>() == 16);
    assert!(offset_of!(Binder, registrations) == 8);
    assert!(size_of::<GuardStats>() == 16);
    assert!(offset_of!(GuardStats, dropped) == 8);
    assert!(size_of::<PodStats>() == 8 * Counter::COUNT);
};

#[cfg(feature = "user")]
mod user {
    //! Leave for aya to copy these types to and from the kernel.

    use super::{
        AddressKey, FlowKey, GuardStats, ListenerKey, OriginalDst, PodConfig, PodStats,
        PortSkipKey, ProxyState, SubnetSkipKey,
    };

    macro_rules! plain_old_data {
        ($($name:ident),+) => {
            // SAFETY: `repr(C)`, integers only, and no padding (the assertions above sum every
            // byte).
            $(unsafe impl aya::Pod for $name {})+
        };
    }

    plain_old_data!(
        AddressKey,
        FlowKey,
        GuardStats,
        ListenerKey,
        OriginalDst,
        PodConfig,
        PodStats,
        PortSkipKey,
        ProxyState,
        SubnetSkipKey
    );
}
