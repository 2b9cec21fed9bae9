//! Every decision the kernel programs take, as pure functions of what they see. Map lookups come in
//! as closures, so that the cheap questions are asked first and the tables in `tests` need no
//! kernel.

use crate::{
    address::{Address, Family},
    counter::Counter,
    layout::{Binder, FLAG_INBOUND, OriginalDst, PodConfig, ProxyState, Role, Side},
    packet::TcpSyn,
};

/// Where a proxy connects to find out whether its pod is redirected (`mesh-proxy::redirection`):
/// documentation addresses (RFC 5737 and 3849), which are routed nowhere. A connection to them
/// reaches the outbound listener whoever makes it, also the proxy, and whatever ports the pod
/// skips.
pub const CHECK_V4: [u8; 4] = [192, 0, 2, 1];
pub const CHECK_V6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];
/// The port that Linkerd's network validator connects to; here it only has to be none that anybody
/// wants to reach there.
pub const CHECK_PORT: u16 = 20001;

/// One connect(2) of an enrolled pod.
#[derive(Clone, Copy, Debug)]
pub struct ConnectAttempt {
    pub destination: Address,
    pub port: u16,
    /// The address the socket is bound to; unspecified when it is not.
    pub source: Address,
    /// Bound to the loopback interface by SO_BINDTODEVICE.
    pub on_loopback: bool,
    pub by_proxy: bool,
}

/// What connect(2) shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// Go where the application wants.
    Direct(Counter),
    /// Go to this address at the proxy's outbound port.
    Redirect(Address),
}

/// One socket lookup in an enrolled pod's network namespace.
#[derive(Clone, Copy, Debug)]
pub struct SocketLookup {
    pub remote: Address,
    pub local: Address,
    pub local_port: u16,
}

/// Who gets an arriving connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupVerdict {
    /// Whoever would get it without us.
    Pass(Counter),
    /// The proxy's listener of this role.
    Proxy(Role),
}

/// What getsockopt(SO_ORIGINAL_DST) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginalDstSource {
    /// Whatever the kernel says without us.
    Native,
    /// The destination stored with the socket.
    Stored,
    /// The socket's own local address: nothing rewrote an inbound connection.
    Local,
}

/// Is the calling process the pod's proxy? Its cgroup says so, once a listener taught it to us.
/// Before that there is no proxy, and [`may_connect`] says who connects as one.
#[inline(always)]
pub fn is_proxy(proxy: &ProxyState, cgroup: u64) -> bool {
    proxy.cgroup != 0 && proxy.cgroup == cgroup
}

/// Does this lead to the check address?
#[inline(always)]
pub fn is_check(destination: &Address, port: u16) -> bool {
    const V4: Address = Address::from_v4(u32::from_ne_bytes(CHECK_V4));
    const V6: Address = Address::from_segments(CHECK_V6);
    port == CHECK_PORT && (destination.same(&V4) || destination.same(&V6))
}

/// Where does this connect(2) go? First the check address, then iptables' order: the proxy, what
/// stays in the pod, the skip list, the rest to the proxy.
#[inline(always)]
pub fn outbound(
    pod: &PodConfig,
    attempt: &ConnectAttempt,
    is_own: impl Fn(&Address) -> bool,
    is_skipped: impl Fn(u16) -> bool,
) -> Outbound {
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
    if attempt.destination.same(&target) || is_own(&attempt.destination) {
        return Outbound::Direct(Counter::OutboundLocal);
    }
    if !may_use_source(&attempt.source, &target, is_own) {
        return Outbound::Direct(Counter::OutboundForeignSource);
    }
    Outbound::Redirect(target)
}

/// The pod's own address of the destination's family: the application keeps its source address and
/// its interface binding. A socket bound to `lo` cannot reach that address, so it gets loopback.
#[inline(always)]
fn redirect_target(pod: &PodConfig, attempt: &ConnectAttempt) -> Address {
    match (attempt.destination.family(), attempt.on_loopback) {
        (Family::V4, false) => pod.v4,
        (Family::V6, false) => pod.v6,
        (Family::V4, true) => Address::LOOPBACK_V4,
        (Family::V6, true) => Address::LOOPBACK_V6,
    }
}

/// Loopback where the pod has no address of the family, so that a pod without IPv4 is checked by
/// the IPv4 address too.
#[inline(always)]
fn check_target(pod: &PodConfig, attempt: &ConnectAttempt) -> Address {
    let target = redirect_target(pod, attempt);
    match (target.is_unspecified(), attempt.destination.family()) {
        (false, _) => target,
        (true, Family::V4) => Address::LOOPBACK_V4,
        (true, Family::V6) => Address::LOOPBACK_V6,
    }
}

/// A source that is not the pod's (IP_TRANSPARENT) cannot complete a handshake inside the pod. Of
/// the loopback addresses only the first of each family is a source: with sixteen million of them
/// a pod could have more connections in flight than it has ports.
#[inline(always)]
fn may_use_source(source: &Address, target: &Address, is_own: impl Fn(&Address) -> bool) -> bool {
    source.is_unspecified()
        || source.same(target)
        || source.same(&Address::LOOPBACK_V4)
        || source.same(&Address::LOOPBACK_V6)
        || is_own(source)
}

/// Who gets a connection that arrives in the pod's network namespace?
#[inline(always)]
pub fn inbound(
    pod: &PodConfig,
    lookup: &SocketLookup,
    is_own: impl Fn(&Address) -> bool,
    is_skipped_port: impl Fn(u16) -> bool,
    is_skipped_source: impl Fn(&Address) -> bool,
) -> LookupVerdict {
    let from_pod =
        lookup.remote.is_loopback() || lookup.remote.same(&lookup.local) || is_own(&lookup.remote);
    if from_pod {
        // On loopback the listener is found without us.
        if lookup.local_port == pod.outbound_port && !lookup.local.is_loopback() {
            return LookupVerdict::Proxy(Role::Outbound);
        }
        return LookupVerdict::Pass(Counter::InboundLocal);
    }
    if is_skipped_port(lookup.local_port) {
        return LookupVerdict::Pass(Counter::InboundSkippedPort);
    }
    if is_skipped_source(&lookup.remote) {
        return LookupVerdict::Pass(Counter::InboundSkippedSubnet);
    }
    LookupVerdict::Proxy(Role::Inbound)
}

/// Does a request for a connection, seen as it leaves the pod, go around the proxy? Whatever
/// [`outbound`] sends to the proxy goes through loopback and is not seen, so this is what it never
/// met, and what it left alone for other reasons than the pod's own lists.
#[inline(always)]
pub fn bypasses_proxy(
    request: &TcpSyn,
    by_proxy: bool,
    is_own: impl Fn(&Address) -> bool,
    is_skipped_port: impl Fn(u16) -> bool,
    is_skipped_source: impl Fn(&Address) -> bool,
) -> bool {
    if by_proxy || is_check(&request.destination, request.port) || is_skipped_port(request.port) {
        return false;
    }
    // A subnet that happens to hold the pod as well says nothing about the pod's own connections.
    is_own(&request.source) || !is_skipped_source(&request.source)
}

/// The proxy's listener that belongs on this port.
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

/// May a process of `cgroup`, with the proxy's uid, bind a proxy port? Always if that cgroup is the
/// proxy already; another one only when the proxy has no listener open. Otherwise it could join the
/// listener's SO_REUSEPORT group, for which the same uid suffices, and take a share of its
/// connections.
#[inline(always)]
pub fn may_bind(proxy: &ProxyState, cgroup: u64, any_listener: impl FnOnce() -> bool) -> bool {
    proxy.cgroup == cgroup || !any_listener()
}

/// May a listener be registered, and its binder's cgroup so become the proxy? Not when another
/// proxy has listened since the socket was bound.
#[inline(always)]
pub fn may_register(proxy: &ProxyState, binder: &Binder) -> bool {
    proxy.cgroup == binder.cgroup || proxy.registrations == binder.registrations
}

/// May a process that is not known to be the proxy connect as a proxy does? If it has the proxy's
/// uid and no proxy listens: the same that [`may_bind`] asks for, so that this gives a process
/// nothing that it could not take by opening the ports. A proxy that dials its control plane before
/// it listens is recognised so.
#[inline(always)]
pub fn may_connect(has_proxys_uid: bool, any_listener: impl FnOnce() -> bool) -> bool {
    has_proxys_uid && !any_listener()
}

/// The family a getsockopt call asks the original destination for, if it does. 80 is
/// SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST; at other levels the same number means other things.
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

/// Whose address answers? A connection on the outbound port without a stored destination was made
/// to the proxy itself: answering with the local address would send the proxy into a loop.
#[inline(always)]
pub fn original_dst(
    pod: &PodConfig,
    stored: Option<&OriginalDst>,
    by_proxy: bool,
    local_port: u16,
) -> OriginalDstSource {
    match stored {
        Some(stored) if stored.side == Side::Accepted as u16 => OriginalDstSource::Stored,
        Some(_) => OriginalDstSource::Native,
        // Where a packet filter redirects inbound connections, it knows; the local address is 4143.
        None if pod.flags & FLAG_INBOUND == 0 => OriginalDstSource::Native,
        None if by_proxy && local_port != pod.outbound_port => OriginalDstSource::Local,
        None => OriginalDstSource::Native,
    }
}

#[cfg(test)]
mod tests;
