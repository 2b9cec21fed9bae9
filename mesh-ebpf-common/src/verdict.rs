//! The decisions of the kernel programs, as pure functions of what they observe. Map lookups are
//! passed as closures, so that cheap conditions are checked first and the tables in `tests` need no
//! kernel.

use crate::address::{Address, Family};
use crate::counter::Counter;
use crate::layout::{
    Binder, FLAG_INBOUND, FLAG_PASS_IPV6, OriginalDst, PodConfig, ProxyState, Role, Side,
};
use crate::packet::TcpSyn;

pub mod unit;

/// A proxy connects to this address to verify that its pod is redirected
/// (`mesh-proxy::redirection`): a documentation address (RFC 5737), which is not routed. A
/// connection to it reaches the outbound listener from any process, also from the proxy, and
/// whatever ports the pod skips.
pub const CHECK_V4: [u8; 4] = [192, 0, 2, 1];
/// The same in IPv6 (RFC 3849).
pub const CHECK_V6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];
/// The port of the check address: the same as of Linkerd's network validator.
pub const CHECK_PORT: u16 = 20001;

/// Outbound connections are redirected to ports of the pod's own address. This is the first. They
/// are above the default range of ephemeral ports: a port with an accepted socket is not chosen as
/// the source of another connection.
pub const REDIRECT_PORT_MIN: u16 = 61_000;
/// The number of those ports, which end at 65535.
pub const REDIRECT_PORTS: u16 = u16::MAX - REDIRECT_PORT_MIN + 1;

/// The ports that outbound connections are redirected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectPorts {
    /// The first port.
    pub first: u16,
    /// The number of ports; not zero.
    pub count: u16,
}

impl RedirectPorts {
    /// The ports of a pod, which has all of them for itself.
    pub const OF_POD: RedirectPorts = RedirectPorts {
        first: REDIRECT_PORT_MIN,
        count: REDIRECT_PORTS,
    };

    /// Returns the port of a destination.
    #[inline(always)]
    pub const fn of(self, destination: &Address, port: u16) -> u16 {
        let hash = destination.hash(port);
        self.first + (hash % self.count as u32) as u16
    }
}

/// A connect(2) call of an enrolled pod.
#[derive(Clone, Copy, Debug)]
pub struct ConnectAttempt {
    /// The destination address.
    pub destination: Address,
    /// The destination port.
    pub port: u16,
    /// The address that the socket is bound to; unspecified if it is not bound.
    pub source: Address,
    /// Whether the socket is bound to the loopback interface by SO_BINDTODEVICE.
    pub on_loopback: bool,
    /// Whether the caller is the pod's proxy.
    pub by_proxy: bool,
}

/// The verdict about a connect(2) call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// Connects to the application's destination.
    Direct(Counter),
    /// Connects to this address of the pod, at the port of [`redirect_port`].
    Redirect(Address),
}

/// A socket lookup in an enrolled pod's network namespace.
#[derive(Clone, Copy, Debug)]
pub struct SocketLookup {
    /// The address of the client.
    pub remote: Address,
    /// The address that the client connects to.
    pub local: Address,
    /// The port that the client connects to.
    pub local_port: u16,
}

/// The verdict about an arriving connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupVerdict {
    /// The kernel's own lookup.
    Pass(Counter),
    /// The proxy's listener of this role.
    Proxy(Role),
    /// A reset, as from a host on whose port nothing listens.
    Refuse(Counter),
}

/// The source of the result of getsockopt(SO_ORIGINAL_DST).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginalDstSource {
    /// The kernel's own result.
    Native,
    /// The destination in the socket's storage.
    Stored,
    /// The socket's local address, because an inbound connection was not rewritten.
    Local,
    /// None: the call fails, so that the proxy rejects the connection.
    Lost,
}

/// Whether the calling process is the pod's proxy: its cgroup owns a registered listener. Before
/// the first listener there is no proxy, and [`may_connect`] decides who connects as one.
#[inline(always)]
pub fn is_proxy(proxy: &ProxyState, cgroup: u64) -> bool {
    proxy.cgroup != 0 && proxy.cgroup == cgroup
}

/// Whether the destination is the check address.
#[inline(always)]
pub fn is_check(destination: &Address, port: u16) -> bool {
    const V4: Address = Address::from_v4(u32::from_ne_bytes(CHECK_V4));
    const V6: Address = Address::from_segments(CHECK_V6);
    port == CHECK_PORT && (destination.same(&V4) || destination.same(&V6))
}

/// Whether connections of this family are redirected: the proxy is configured to listen on the
/// family.
#[inline(always)]
pub fn is_redirected(pod: &PodConfig, family: Family) -> bool {
    !matches!(family, Family::V6) || pod.flags & FLAG_PASS_IPV6 == 0
}

/// Returns the verdict about a connect(2) call. Of a redirected family, the check address comes
/// first, then the order of iptables' rules: the proxy, destinations in the pod, the skip list, the
/// rest to the proxy.
#[inline(always)]
pub fn outbound(
    pod: &PodConfig,
    attempt: &ConnectAttempt,
    is_own: impl Fn(&Address) -> bool,
    is_skipped: impl Fn(u16) -> bool,
) -> Outbound {
    redirect(pod, attempt, is_own, is_skipped, || false)
}

/// Decides for [`outbound`]. `is_elsewhere`: the destination is another workload although its
/// address is an own one.
#[inline(always)]
fn redirect(
    pod: &PodConfig,
    attempt: &ConnectAttempt,
    is_own: impl Fn(&Address) -> bool,
    is_skipped: impl Fn(u16) -> bool,
    is_elsewhere: impl FnOnce() -> bool,
) -> Outbound {
    if !is_redirected(pod, attempt.destination.family()) {
        return Outbound::Direct(Counter::OutboundNoAddress);
    }
    if is_check(&attempt.destination, attempt.port) {
        return Outbound::Redirect(check_target(pod, attempt));
    }
    if attempt.by_proxy {
        return Outbound::Direct(Counter::OutboundProxy);
    }
    if attempt.destination.is_loopback() || attempt.destination.is_unspecified() {
        return Outbound::Direct(Counter::OutboundLocal);
    }
    if attempt.port == 0 || attempt.destination.is_group() {
        return Outbound::Direct(Counter::OutboundUnroutable);
    }
    let target = redirect_target(pod, attempt);
    if target.is_unspecified() {
        return Outbound::Direct(Counter::OutboundNoAddress);
    }
    if is_skipped(attempt.port) {
        return Outbound::Direct(Counter::OutboundSkippedPort);
    }
    let has_own_address = attempt.destination.same(&target) || is_own(&attempt.destination);
    if has_own_address && !is_elsewhere() {
        return Outbound::Direct(Counter::OutboundLocal);
    }
    if !may_use_source(&attempt.source, &target, is_own) {
        return Outbound::Direct(Counter::OutboundForeignSource);
    }
    Outbound::Redirect(target)
}

/// Returns the pod's own address of the destination's family, so that the application keeps its
/// source address and its interface binding. A socket bound to `lo` cannot reach that address and
/// gets loopback.
#[inline(always)]
fn redirect_target(pod: &PodConfig, attempt: &ConnectAttempt) -> Address {
    match (attempt.destination.family(), attempt.on_loopback) {
        (Family::V4, false) => pod.v4,
        (Family::V6, false) => pod.v6,
        (Family::V4, true) => Address::LOOPBACK_V4,
        (Family::V6, true) => Address::LOOPBACK_V6,
    }
}

/// Returns the port that a connection to this destination is redirected to. Connections of one
/// source port must differ in it, and so it depends on the destination: connections in TIME-WAIT
/// otherwise use up the source ports of all destinations together. It is the port of the proxy's
/// listener without steering, on loopback and for the check address, and also without room to store
/// the destination: the proxy then rejects the connection.
#[inline(always)]
pub fn redirect_port(
    pod: &PodConfig,
    ports: RedirectPorts,
    attempt: &ConnectAttempt,
    target: &Address,
    has_room: impl FnOnce() -> bool,
) -> u16 {
    if pod.flags & FLAG_INBOUND == 0
        || target.is_loopback()
        || is_check(&attempt.destination, attempt.port)
        || !has_room()
    {
        return pod.outbound_port;
    }
    ports.of(&attempt.destination, attempt.port)
}

/// Returns loopback if the pod has no address of the family, so that a pod without IPv4 can use the
/// IPv4 check address too.
#[inline(always)]
fn check_target(pod: &PodConfig, attempt: &ConnectAttempt) -> Address {
    let target = redirect_target(pod, attempt);
    match (target.is_unspecified(), attempt.destination.family()) {
        (false, _) => target,
        (true, Family::V4) => Address::LOOPBACK_V4,
        (true, Family::V6) => Address::LOOPBACK_V6,
    }
}

/// Whether a handshake inside the pod works with the source, which it does not if the source is not
/// the pod's (IP_TRANSPARENT). Of the loopback addresses, only the first of each family is allowed:
/// with sixteen million of them a pod could have more connections in flight than it has ports.
#[inline(always)]
fn may_use_source(source: &Address, target: &Address, is_own: impl Fn(&Address) -> bool) -> bool {
    source.is_unspecified()
        || source.same(target)
        || source.same(&Address::LOOPBACK_V4)
        || source.same(&Address::LOOPBACK_V6)
        || is_own(source)
}

/// Returns the verdict about a connection that arrives in the pod's network namespace.
/// `is_in_flight`: the connect hook has redirected it. `is_closed`: it is known that no socket of
/// the pod listens for it ([`is_open`]).
#[inline(always)]
pub fn inbound(
    pod: &PodConfig,
    lookup: &SocketLookup,
    is_in_flight: impl FnOnce() -> bool,
    is_own: impl Fn(&Address) -> bool,
    is_skipped_port: impl Fn(u16) -> bool,
    is_skipped_source: impl Fn(&Address) -> bool,
    is_closed: impl FnOnce() -> bool,
) -> LookupVerdict {
    if is_local(lookup, is_own) {
        // On loopback the kernel's own lookup finds the listener.
        if lookup.local_port == pod.outbound_port && !lookup.local.is_loopback() {
            return LookupVerdict::Proxy(Role::Outbound);
        }
        // An application may listen on the port too: its own connections are not in flight.
        if lookup.local_port >= REDIRECT_PORT_MIN && is_in_flight() {
            return LookupVerdict::Proxy(Role::Outbound);
        }
        return LookupVerdict::Pass(Counter::InboundLocal);
    }
    if let Some(skipped) = skipped(pod, lookup, is_skipped_port, is_skipped_source) {
        return LookupVerdict::Pass(skipped);
    }
    // The proxy's own ports are not recorded.
    if listener_role(pod, lookup.local_port).is_none() && is_closed() {
        return LookupVerdict::Refuse(Counter::InboundClosed);
    }
    LookupVerdict::Proxy(Role::Inbound)
}

/// Whether a connection comes from the subject's own host or network namespace.
#[inline(always)]
fn is_local(lookup: &SocketLookup, is_own: impl Fn(&Address) -> bool) -> bool {
    lookup.remote.is_loopback() || lookup.remote.same(&lookup.local) || is_own(&lookup.remote)
}

/// Returns the setting by which a connection from outside does not go to the proxy.
#[inline(always)]
fn skipped(
    pod: &PodConfig,
    lookup: &SocketLookup,
    is_skipped_port: impl Fn(u16) -> bool,
    is_skipped_source: impl Fn(&Address) -> bool,
) -> Option<Counter> {
    if !is_redirected(pod, lookup.local.family()) {
        return Some(Counter::InboundSkippedSubnet);
    }
    if is_skipped_port(lookup.local_port) {
        return Some(Counter::InboundSkippedPort);
    }
    is_skipped_source(&lookup.remote).then_some(Counter::InboundSkippedSubnet)
}

/// Whether a listening socket is recorded. Sockets on loopback serve no client outside of the
/// pod, and the proxy's own ports are always open.
#[inline(always)]
pub fn is_recorded(pod: Option<&PodConfig>, address: &Address, port: u16) -> bool {
    !address.is_loopback() && pod.is_none_or(|pod| listener_role(pod, port).is_none())
}

/// Whether a socket of the pod could accept a connection to this address, by the addresses of the
/// sockets that listen on its port. A socket on `::` counts for IPv4 too: whether it is restricted
/// to IPv6 is not visible. For a loopback address, whose sockets are not recorded, it is unknown
/// and therefore true.
#[inline(always)]
pub fn is_open(local: &Address, listens: impl Fn(&Address) -> bool) -> bool {
    const ANY_V4: Address = Address::from_v4(0);
    listens(&Address::UNSPECIFIED)
        || (matches!(local.family(), Family::V4) && listens(&ANY_V4))
        || local.is_loopback()
        || listens(local)
}

/// Whether a connection request that leaves the pod bypasses the proxy. Connections that
/// [`outbound`] redirects go through loopback and do not leave the pod; so these are requests that
/// it has never processed, or left direct for other reasons than the pod's settings.
#[inline(always)]
pub fn bypasses_proxy(
    pod: &PodConfig,
    request: &TcpSyn,
    by_proxy: bool,
    is_own: impl Fn(&Address) -> bool,
    is_skipped_port: impl Fn(u16) -> bool,
    is_skipped_source: impl Fn(&Address) -> bool,
) -> bool {
    if by_proxy
        || !is_redirected(pod, request.destination.family())
        || is_check(&request.destination, request.port)
        || is_skipped_port(request.port)
    {
        return false;
    }
    // A skipped subnet that contains the pod itself does not apply to the pod's own connections.
    is_own(&request.source) || !is_skipped_source(&request.source)
}

/// Returns the role of a proxy listener on this port.
#[inline(always)]
pub fn listener_role(pod: &PodConfig, port: u16) -> Option<Role> {
    if port == pod.outbound_port {
        Some(Role::Outbound)
    } else if port == pod.inbound_port {
        Some(Role::Inbound)
    } else {
        None
    }
}

/// Whether a process of `cgroup` with the proxy's uid may bind a proxy port: if that cgroup is the
/// proxy already, or the proxy has no open listener. Otherwise the process could join the
/// listener's SO_REUSEPORT group, which only requires the same uid, and receive a share of its
/// connections.
#[inline(always)]
pub fn may_bind(proxy: &ProxyState, cgroup: u64, any_listener: impl FnOnce() -> bool) -> bool {
    proxy.cgroup == cgroup || !any_listener()
}

/// Whether a listener may be registered, and its binder's cgroup become the proxy: not when another
/// proxy has listened since the socket was bound.
#[inline(always)]
pub fn may_register(proxy: &ProxyState, binder: &Binder) -> bool {
    proxy.cgroup == binder.cgroup || proxy.registrations == binder.registrations
}

/// Whether a process that is not known to be the proxy may connect like one: if it has the proxy's
/// uid and no proxy listens. [`may_bind`] requires the same, so that this grants nothing that the
/// process could not get by opening the ports. It covers proxies that connect to their control
/// plane before they listen.
#[inline(always)]
pub fn may_connect(has_proxy_uid: bool, any_listener: impl FnOnce() -> bool) -> bool {
    has_proxy_uid && !any_listener()
}

/// Returns the family if a getsockopt call requests the original destination. 80 is SO_ORIGINAL_DST
/// and IP6T_SO_ORIGINAL_DST; at other levels the same number has other meanings.
#[inline(always)]
pub fn original_dst_family(level: i32, name: i32) -> Option<Family> {
    const SOL_IP: i32 = 0;
    const SOL_IPV6: i32 = 41;
    const SO_ORIGINAL_DST: i32 = 80;
    match (level, name) {
        (SOL_IP, SO_ORIGINAL_DST) => Some(Family::V4),
        (SOL_IPV6, SO_ORIGINAL_DST) => Some(Family::V6),
        _ => None,
    }
}

/// Returns the source of the original destination. A connection to the outbound port without a
/// stored destination was made to the proxy itself: returning the local address would make the
/// proxy connect to itself in a loop. One from the pod to a redirect port without a destination was
/// redirected and could not be stored: the local address is another application's.
#[inline(always)]
pub fn original_dst(
    pod: &PodConfig,
    stored: Option<&OriginalDst>,
    by_proxy: bool,
    local_port: u16,
    is_redirected: impl FnOnce() -> bool,
) -> OriginalDstSource {
    match stored {
        Some(stored) if stored.side == Side::Accepted as u16 => OriginalDstSource::Stored,
        Some(_) => OriginalDstSource::Native,
        // A packet filter that redirects inbound connections provides the destination; the local
        // port is the proxy's.
        None if pod.flags & FLAG_INBOUND == 0 => OriginalDstSource::Native,
        None if by_proxy
            && local_port >= REDIRECT_PORT_MIN
            && listener_role(pod, local_port).is_none()
            && is_redirected() =>
        {
            OriginalDstSource::Lost
        }
        None if by_proxy && local_port != pod.outbound_port => OriginalDstSource::Local,
        None => OriginalDstSource::Native,
    }
}

#[cfg(test)]
mod tests;
