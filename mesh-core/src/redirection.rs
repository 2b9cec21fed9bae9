//! What the kernel programs decide about one connection, for `meshctl why`.
//!
//! `mesh-agent trace` prints one [`RedirectionEvent`] as JSON on each line while the pod is traced.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A decision of a kernel program about a connection of a traced pod.
///
/// A redirected connection has three events: its `connect`, without a source; the `lookup` of its
/// first packet, whose destination is the proxy's listener; and the `accept` with source and
/// original destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RedirectionEvent {
    /// Time of the decision, in nanoseconds of the monotonic clock of the node.
    pub monotonic_ns: u64,
    /// The program that decided.
    pub hook: Hook,
    /// The name of the counter that the decision increments, such as `outbound-redirected` or
    /// `outbound-skipped-port`. The lookup and the accept of a redirected connection increment
    /// none, and have its verdict too.
    pub verdict: String,
    /// The address of the client; absent before its port is known.
    #[serde(default)]
    pub source: Option<SocketAddr>,
    /// The address that the client called.
    pub destination: SocketAddr,
    /// The listener of the proxy that the connection goes to instead; absent when it is not
    /// redirected. The pod receives the connection at this address: the listener itself may be
    /// bound to another one.
    #[serde(default)]
    pub redirected_to: Option<SocketAddr>,
}

/// The hook in the kernel that makes a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hook {
    /// connect(2) of the application or of the proxy.
    Connect,
    /// The arrival of a connection's first packet in the pod.
    Lookup,
    /// The end of the handshake with the proxy, which receives the original destination.
    Accept,
    /// A point that only a newer agent reports.
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_read_without_optional_fields_and_with_unknown_hook() {
        let line = r#"{"monotonicNs":1,"hook":"later","verdict":"x","destination":"[::1]:80"}"#;
        let event: RedirectionEvent = serde_json::from_str(line).unwrap();
        assert_eq!(event.hook, Hook::Other);
        assert_eq!((event.source, event.redirected_to), (None, None));
    }
}
