//! The counters of a pod, one for each verdict. The programs increment them, the agent exports them
//! as metrics.

/// The result for one connection, listener or lookup of an enrolled pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Counter {
    /// connect(2) was redirected to the proxy's outbound listener.
    OutboundRedirected = 0,
    /// The proxy's own connect(2).
    OutboundProxy = 1,
    /// Destination port in the skip list.
    OutboundSkippedPort = 2,
    /// Loopback, unspecified or one of the pod's own addresses.
    OutboundLocal = 3,
    /// Multicast, broadcast, link-local multicast or port 0. A proxy cannot connect to these.
    OutboundUnroutable = 4,
    /// The pod has no address of the destination's family, or the family is not redirected.
    OutboundNoAddress = 5,
    /// The socket is bound to an address that is not the pod's (IP_TRANSPARENT).
    OutboundForeignSource = 6,
    /// Redirected, but the original destination could not be published, because the pod has reached
    /// its limit of connections in flight or the kernel has no memory: the proxy rejects the
    /// connection.
    OutboundUntracked = 7,
    /// A redirected connection found no outbound listener and was reset.
    OutboundRefused = 8,
    /// Assigned to the proxy's inbound listener.
    InboundSteered = 9,
    /// Local port in the skip list.
    InboundSkippedPort = 10,
    /// Source in a skipped subnet, or of a family that is not redirected.
    InboundSkippedSubnet = 11,
    /// From the pod itself (loopback or one of its own addresses).
    InboundLocal = 12,
    /// No inbound listener: reset.
    InboundRefused = 13,
    /// No inbound listener and the pod fails open: reached the application in clear text.
    InboundFailedOpen = 14,
    /// A process other than the proxy bound or listened on a proxy port, or the proxy did with a
    /// socket that cannot be a steering target (Multipath TCP).
    ListenerRejected = 15,
    /// No socket of the pod listens on the port: reset, as without the mesh.
    InboundClosed = 16,
}

impl Counter {
    /// The number of counters.
    pub const COUNT: usize = 17;

    /// The number of counters in [`PodStats`](crate::layout::PodStats), the first ones. The map
    /// keeps the layout of earlier versions, whose pins stay in use; later counters are in
    /// [`PortTracking`](crate::layout::PortTracking).
    pub const IN_STATS: usize = 16;

    /// All counters, in order of their index.
    pub const ALL: [Counter; Counter::COUNT] = [
        Counter::OutboundRedirected,
        Counter::OutboundProxy,
        Counter::OutboundSkippedPort,
        Counter::OutboundLocal,
        Counter::OutboundUnroutable,
        Counter::OutboundNoAddress,
        Counter::OutboundForeignSource,
        Counter::OutboundUntracked,
        Counter::OutboundRefused,
        Counter::InboundSteered,
        Counter::InboundSkippedPort,
        Counter::InboundSkippedSubnet,
        Counter::InboundLocal,
        Counter::InboundRefused,
        Counter::InboundFailedOpen,
        Counter::ListenerRejected,
        Counter::InboundClosed,
    ];

    /// Returns the index in [`PodStats::counts`](crate::layout::PodStats::counts), if it is below
    /// [`Counter::IN_STATS`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the `direction` label of the agent's metric: `outbound`, `inbound` or `listener`.
    pub const fn direction(self) -> &'static str {
        match self {
            Counter::OutboundRedirected
            | Counter::OutboundProxy
            | Counter::OutboundSkippedPort
            | Counter::OutboundLocal
            | Counter::OutboundUnroutable
            | Counter::OutboundNoAddress
            | Counter::OutboundForeignSource
            | Counter::OutboundUntracked
            | Counter::OutboundRefused => "outbound",
            Counter::InboundSteered
            | Counter::InboundSkippedPort
            | Counter::InboundSkippedSubnet
            | Counter::InboundLocal
            | Counter::InboundRefused
            | Counter::InboundFailedOpen
            | Counter::InboundClosed => "inbound",
            Counter::ListenerRejected => "listener",
        }
    }

    /// Returns the counter's name in a trace: direction and verdict, joined by hyphens.
    #[cfg(any(feature = "user", test))]
    pub fn name(self) -> String {
        format!("{}-{}", self.direction(), self.verdict().replace('_', "-"))
    }

    /// Returns the `verdict` label of the agent's metric.
    pub const fn verdict(self) -> &'static str {
        match self {
            Counter::OutboundRedirected => "redirected",
            Counter::OutboundProxy => "proxy",
            Counter::OutboundSkippedPort | Counter::InboundSkippedPort => "skipped_port",
            Counter::OutboundLocal | Counter::InboundLocal => "local",
            Counter::OutboundUnroutable => "unroutable",
            Counter::OutboundNoAddress => "no_address",
            Counter::OutboundForeignSource => "foreign_source",
            Counter::OutboundUntracked => "untracked",
            Counter::OutboundRefused | Counter::InboundRefused => "refused",
            Counter::InboundSteered => "steered",
            Counter::InboundSkippedSubnet => "skipped_subnet",
            Counter::InboundFailedOpen => "failed_open",
            Counter::ListenerRejected => "rejected",
            Counter::InboundClosed => "closed_port",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_joined_by_hyphens() {
        assert_eq!(Counter::OutboundRedirected.name(), "outbound-redirected");
        assert_eq!(Counter::InboundFailedOpen.name(), "inbound-failed-open");
    }

    #[test]
    fn counters_have_unique_indices_and_labels() {
        for (slot, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(counter.index(), slot);
            for other in &Counter::ALL[slot + 1..] {
                assert_ne!(
                    (counter.direction(), counter.verdict()),
                    (other.direction(), other.verdict()),
                );
            }
        }
    }
}
