//! Differences of connections without messages.

use mesh_proxy::simulation::Feature;

use super::{Context, Difference, accepted, sibling};
use crate::facts::{Aspect, Change, Facts, Subject};
use crate::script::{Protocol, Side};

pub(super) static ROWS: [Difference; 4] = [
    Difference {
        name: "unseen-client",
        what: "A server does not see a connection whose client resets it before the proxy has opened one to the server.",
        why: "The proxy opens its connection when it knows the destination and, with detection, the protocol. A client that \
          has reset its connection by then reads nothing, and RFC 9293 §3.10.7.4 promises delivery of nothing.",
        affected: "Servers that count or log connections without bytes; port scans and TCP health checks that reset.",
        script: "tcp/reset-at-once",
        removal: "A connection to the server before detection, which would reach servers that the policy has not authorized \
              yet.",
        applies: is_unseen_client,
    },
    Difference {
        name: "refused-after-accepting",
        what: "A client whose server refuses connections is connected first, and then reset.",
        why: "The proxy accepts the connection before it knows the destination; RFC 9293 has no way to refuse after that \
          but RST.",
        affected: "Clients that probe whether a port is open by connecting alone.",
        script: "tcp/refused",
        removal: "A decision in the kernel: `mesh_open_ports` refuses for the pod's own ports already (ADR 0186).",
        applies: is_refused_late,
    },
    Difference {
        name: "unfinished-client-hello",
        what: "A client that sends the beginning of a ClientHello, and not the rest within the detection time, is reset.",
        why: "Security: the proxy does not know the client's identity, and holds the client's bytes in its memory (ADR 0160).",
        affected: "Clients that stop within a ClientHello, and protocols that begin with the bytes 0x16 0x03 or whose first message is the byte 0x16.",
        script: "tcp/unfinished-client-hello",
        removal: "Forwarding such a connection as opaque plaintext where the policy admits clients without an identity.",
        applies: is_unfinished_hello,
    },
    Difference {
        name: "only-http-is-limited",
        what: "A port with detection and a rate limit or an attached route refuses everything but HTTP.",
        why: "Security: a client could go round the limit by bytes that are not HTTP, or by silence (ADR 0161).",
        affected: "Ports that serve HTTP and another protocol, and have a HTTPLocalRateLimitPolicy or a route.",
        script: "tcp/client-first",
        removal: "Nothing: who attaches a limit to requests wants that nothing else passes by.",
        applies: is_not_http,
    },
];

fn is_unseen_client(context: &Context<'_>, change: &Change) -> bool {
    let is_about_connections = change.key.peer == Side::Server
        && matches!(change.key.subject, Subject::Peer | Subject::Connection(_));
    let unseen = accepted(context.direct).saturating_sub(accepted(context.mesh));
    let resets = resetting_clients(context.direct);
    is_about_connections && unseen > 0 && unseen <= resets && change.mesh.as_deref() != Some(b"FIN")
}

fn is_not_http(context: &Context<'_>, _: &Change) -> bool {
    let mut received = context.mesh.iter().filter(|(key, _)| {
        key.peer == Side::Server && matches!(key.aspect, Aspect::Bytes | Aspect::Tunnel)
    });
    context.features.contains(&Feature::RateLimit)
        && context.position.has_server_proxy()
        && context.protocol == Protocol::Tcp
        && received.all(|(_, bytes)| bytes.is_empty())
}

fn is_unfinished_hello(context: &Context<'_>, change: &Change) -> bool {
    let mut received = context.direct.iter().filter(|(key, _)| {
        let is_servers = key.peer == Side::Server && key.aspect == Aspect::Bytes;
        is_servers && matches!(key.subject, Subject::Connection(_))
    });
    context.position.has_server_proxy()
        && accepted(context.mesh) < accepted(context.direct)
        && received.any(|(_, bytes)| is_within_hello(bytes))
        && match change.key.peer {
            Side::Server => true,
            Side::Client => {
                sibling(context.mesh, &change.key, Aspect::Ending) == Some(b"RST".as_slice())
            }
        }
}

/// Whether bytes end within a ClientHello, which may have several records (RFC 8446, sections 4 and
/// 5.1).
fn is_within_hello(bytes: &[u8]) -> bool {
    let number = |octets: &[u8]| {
        octets
            .iter()
            .fold(0, |n, octet| n << 8 | usize::from(*octet))
    };
    let mut rest = bytes;
    let mut message = Vec::new();
    while let [0x16, 3, _, high, low, content @ ..] = rest {
        let length = number(&[*high, *low]);
        let Some((record, others)) = content.split_at_checked(length) else {
            return true;
        };
        message.extend_from_slice(record);
        rest = others;
        if let [1, a, b, c, body @ ..] = message.as_slice()
            && body.len() >= number(&[*a, *b, *c])
        {
            return false;
        }
    }
    // Less than the header of a record.
    !bytes.is_empty() && rest.len() < 5 && [0x16, 3].iter().zip(rest).all(|(a, b)| a == b)
}

fn is_refused_late(context: &Context<'_>, change: &Change) -> bool {
    let fact = |facts: &Facts, aspect| {
        let value = sibling(facts, &change.key, aspect);
        value.map(<[u8]>::to_vec)
    };
    let is_clients =
        change.key.peer == Side::Client && matches!(change.key.subject, Subject::Connection(_));
    is_clients
        && fact(context.direct, Aspect::Refused).is_some()
        && fact(context.mesh, Aspect::Bytes).is_none_or(|bytes| bytes.is_empty())
        && [Aspect::Ending, Aspect::IdleEnding]
            .into_iter()
            .any(|ending| fact(context.mesh, ending).as_deref() == Some(b"RST"))
}

/// Clients that have closed their connection and have received nothing.
fn resetting_clients(facts: &Facts) -> usize {
    let keys = facts.iter().filter(|(key, value)| {
        key.peer == Side::Client
            && key.aspect == Aspect::Ending
            && value.as_slice() == b"closed here"
            && sibling(facts, key, Aspect::Bytes).is_none_or(<[u8]>::is_empty)
    });
    keys.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_hellos_are_measured_over_records() {
        let whole = b"\x16\x03\x01\x00\x03\x01\x00\x00\x16\x03\x01\x00\x03\x02hi";
        for end in 1..whole.len() {
            assert!(is_within_hello(&whole[..end]), "{end}");
        }
        assert!(!is_within_hello(whole));
        for other in [&b""[..], b"\x17\x03\x01", b"\x16\x03\x01\x00\x01\x01GET /"] {
            assert!(!is_within_hello(other), "{other:?}");
        }
    }
}
