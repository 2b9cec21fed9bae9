//! Keys and values of the maps, with their layouts asserted at compile time, because different
//! compilers build the kernel programs and the agent for different targets. A change of a layout
//! here requires a new [`VERSION`], which is the name of the pin directory.

use core::mem::offset_of;

use crate::address::{Address, Family};
use crate::counter::Counter;

/// The name of the pin directory. Programs of one version can replace each other on the same maps.
pub const VERSION: &str = "v1";

/// [`PodConfig::flags`]: sk_lookup steers inbound connections (full tier).
pub const FLAG_INBOUND: u32 = 1;
/// [`PodConfig::flags`]: without an inbound listener, pass instead of reset.
pub const FLAG_INBOUND_FAIL_OPEN: u32 = 2;
/// [`PodConfig::flags`]: the programs report their decisions about the pod. Set for the time of a
/// trace, and kept by an enrolment during it; programs of earlier versions ignore it.
pub const FLAG_TRACED: u32 = 4;

/// [`PodConfig::flags`]: IPv6 is not redirected in either direction; programs of earlier versions
/// ignore it.
pub const FLAG_PASS_IPV6: u32 = 8;
/// [`PodConfig::flags`]: every socket of the pod that listens is in OPEN_PORTS, while the pod has a
/// [`PortTracking`] that has lost none. Kept by a further enrolment; programs of earlier versions
/// ignore it.
pub const FLAG_PORTS_KNOWN: u32 = 16;

/// [`PortSkipKey`]: destination ports of outbound connections.
pub const OUTBOUND: u8 = 0;
/// [`PortSkipKey`]: local ports of inbound connections.
pub const INBOUND: u8 = 1;

/// Listeners that are stored for each pod, role and family. One is enough for a proxy whose threads
/// share a port with SO_REUSEPORT (the kernel balances over the group of the chosen socket); the
/// others allow one of the group to close first, and an old and a new proxy to overlap.
pub const LISTENER_SLOTS: u8 = 4;

/// PODS: the settings of an enrolled pod, written by user space and only read by the programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PodConfig {
    /// Outbound IPv4 is redirected to this address; unspecified when the pod has no IPv4 address.
    pub v4: Address,
    /// Outbound IPv6 is redirected to this address; unspecified when the pod has no IPv6 address.
    pub v6: Address,
    /// The proxy's uid in the initial user namespace.
    pub proxy_uid: u32,
    /// [`FLAG_INBOUND`], [`FLAG_INBOUND_FAIL_OPEN`], [`FLAG_TRACED`], [`FLAG_PASS_IPV6`] and
    /// [`FLAG_PORTS_KNOWN`].
    pub flags: u32,
    /// The proxy's inbound port.
    pub inbound_port: u16,
    /// The proxy's outbound port.
    pub outbound_port: u16,
}

/// PROXIES: the state of a pod's proxy, as the programs have observed it. User space creates it,
/// and updates it only for listeners that opened before the programs were attached; see
/// `mesh-agent::ebpf::listeners`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProxyState {
    /// The cgroup of the proxy's processes; 0 before one has listened.
    pub cgroup: u64,
    /// Changes with every registered listener. Distinguishes sockets that were bound before from
    /// those that were bound after; not a count, because BPF code increments without atomicity.
    pub registrations: u64,
}

/// ADDRESSES: all addresses of enrolled pods (the value is unused).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AddressKey {
    /// The cookie of the pod's network namespace.
    pub cookie: u64,
    /// The address.
    pub address: Address,
}

/// PORT_SKIPS, a longest-prefix-match map. All fields are bytes, because the match starts at the
/// first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct PortSkipKey {
    /// The cookie of the pod's network namespace, in native byte order.
    pub cookie: [u8; 8],
    /// [`OUTBOUND`] or [`INBOUND`].
    pub direction: u8,
    /// The port in network byte order.
    pub port: [u8; 2],
}

/// SUBNET_SKIPS, a longest-prefix-match map: sources of inbound connections that bypass the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SubnetSkipKey {
    /// The cookie of the pod's network namespace, in native byte order.
    pub cookie: [u8; 8],
    /// The address of the subnet.
    pub address: [u8; 16],
}

/// The role of a proxy listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// The listener of outbound connections.
    Outbound = 0,
    /// The listener of inbound connections.
    Inbound = 1,
}

/// LISTENERS: the proxy's listening sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ListenerKey {
    /// The cookie of the pod's network namespace.
    pub cookie: u64,
    /// A [`Role`].
    pub role: u8,
    /// The [`Family`] of the socket; a dual-stack listener is V6.
    pub family: u8,
    /// A number below [`LISTENER_SLOTS`].
    pub slot: u8,
    /// Zero.
    pub pad: [u8; 5],
}

/// IN_FLIGHT: a redirected connection between connect and accept, by its client side. The local
/// address is part of the key, because two sockets may share a port on different addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FlowKey {
    /// The cookie of the pod's network namespace.
    pub cookie: u64,
    /// The local address of the client.
    pub address: Address,
    /// The local port of the client.
    pub port: u32,
    /// The port that it connects to. Programs of earlier versions, which redirect to the proxy's
    /// outbound port only, write zero for it.
    pub target: u32,
}

/// The socket in whose storage an [`OriginalDst`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Side {
    /// The application's socket: getpeername returns the destination.
    Client = 1,
    /// The proxy's accepted socket: SO_ORIGINAL_DST returns the destination.
    Accepted = 2,
    /// The application's socket, whose destination is not in IN_FLIGHT for lack of room.
    Untracked = 3,
}

/// ORIGINAL_DST (socket storage) and the value of IN_FLIGHT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OriginalDst {
    /// The original destination's address.
    pub address: Address,
    /// The original destination's port.
    pub port: u16,
    /// A [`Side`].
    pub side: u16,
}

/// BINDERS (socket storage): the process that bound a socket to a proxy port with the proxy's uid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Binder {
    /// The cgroup of the process.
    pub cgroup: u64,
    /// [`ProxyState::registrations`] at the time of the bind.
    pub registrations: u64,
}

/// OPEN_PORTS: a port with the address that it is bound to. The value is the number of sockets that
/// listen on it. An entry stays until the pod is removed, so that no socket is lost while another
/// CPU removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PortKey {
    /// The cookie of the pod's network namespace.
    pub cookie: u64,
    /// The address; unspecified, of the socket's family, for a socket that is bound to none.
    pub address: Address,
    /// The port.
    pub port: u32,
    /// Zero.
    pub pad: u32,
}

/// PORT_TRACKING: a pod whose listening sockets are recorded. Created by user space, written by the
/// programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortTracking {
    /// The pod's entries in OPEN_PORTS.
    pub ports: i64,
    /// Not zero after a socket could not be recorded: the pod's ports are not known any more.
    pub lost: i64,
    /// Connections to ports without a listener: [`Counter::InboundClosed`].
    pub refused: i64,
}

/// OPENED (socket storage): the port that a listening socket has in OPEN_PORTS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OpenedPort {
    /// The address of the [`PortKey`].
    pub address: Address,
    /// The port of the [`PortKey`].
    pub port: u32,
}

/// STATS: one slot for each of the first [`Counter`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PodStats {
    /// The counts, by [`Counter::index`].
    pub counts: [u64; Counter::IN_STATS],
}

/// GUARD, the only entry: the guard ignores connection requests that bypass the proxy. The values
/// are plain numbers, so that programs never read a value that its type does not have.
pub const GUARD_OFF: u32 = 0;
/// GUARD: the guard counts them.
pub const GUARD_COUNT: u32 = 1;
/// GUARD: the guard counts and drops them.
pub const GUARD_DROP: u32 = 2;

/// GUARD_STATS: connection requests that bypassed the proxy, in packets, not connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GuardStats {
    /// Counted and forwarded.
    pub passed: u64,
    /// Counted and dropped.
    pub dropped: u64,
}

impl PortSkipKey {
    /// Bits of the key before the port.
    pub const PORT_OFFSET_BITS: u32 = 72;
    /// Bits of a key with a whole port.
    pub const BITS: u32 = 88;

    /// Returns the key of a port.
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
    /// Bits of a key with a whole address.
    pub const BITS: u32 = 192;

    /// Returns the key of an address.
    #[inline(always)]
    pub const fn new(cookie: u64, address: &Address) -> SubnetSkipKey {
        SubnetSkipKey {
            cookie: cookie.to_ne_bytes(),
            address: address.octets(),
        }
    }
}

impl ListenerKey {
    /// Returns the key of a listener.
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

impl PortKey {
    /// Returns the key of a port with an address.
    #[inline(always)]
    pub const fn new(cookie: u64, address: Address, port: u16) -> PortKey {
        PortKey {
            cookie,
            address,
            port: port as u32,
            pad: 0,
        }
    }
}

impl FlowKey {
    /// Returns the key of a connection to this port of a pod with this outbound port.
    #[inline(always)]
    pub const fn new(
        cookie: u64,
        (address, port): (Address, u16),
        target: u16,
        outbound_port: u16,
    ) -> FlowKey {
        FlowKey {
            cookie,
            address,
            port: port as u32,
            target: if target == outbound_port {
                0
            } else {
                target as u32
            },
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
    assert!(offset_of!(FlowKey, target) == 28);
    assert!(size_of::<OriginalDst>() == 20);
    assert!(offset_of!(OriginalDst, port) == 16);
    assert!(size_of::<Binder>() == 16);
    assert!(offset_of!(Binder, registrations) == 8);
    assert!(size_of::<GuardStats>() == 16);
    assert!(offset_of!(GuardStats, dropped) == 8);
    assert!(size_of::<PortKey>() == 32);
    assert!(offset_of!(PortKey, address) == 8);
    assert!(offset_of!(PortKey, port) == 24);
    assert!(size_of::<PortTracking>() == 24);
    assert!(offset_of!(PortTracking, lost) == 8);
    assert!(offset_of!(PortTracking, refused) == 16);
    assert!(size_of::<OpenedPort>() == 20);
    assert!(offset_of!(OpenedPort, port) == 16);
    // Pinned by earlier versions with this size.
    assert!(size_of::<PodStats>() == 8 * 16);
};

#[cfg(feature = "user")]
mod user {
    //! Allows aya to copy these types to and from the kernel.

    use super::{
        AddressKey, FlowKey, GuardStats, ListenerKey, OriginalDst, PodConfig, PodStats, PortKey,
        PortSkipKey, PortTracking, ProxyState, SubnetSkipKey,
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
        PortKey,
        PortSkipKey,
        PortTracking,
        ProxyState,
        SubnetSkipKey
    );
}
