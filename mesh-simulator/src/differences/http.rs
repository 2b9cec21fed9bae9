//! Differences of messages of HTTP.

use super::Difference;
use super::ends::{
    is_after_chunks, is_after_response, is_code_of_cancelling, is_end_of_hop, is_end_of_stream,
    is_pooling,
};
use super::exchanges::{
    is_corrected, is_failed_exchange, is_refused_request, is_refused_response, is_repeated,
};
use super::fields::{
    is_authority, is_case_of_name, is_field_of_mesh, is_hop_by_hop, is_offer_of_h2c, is_order,
    is_reason, is_span, is_version,
};

pub(super) static ROWS: [Difference; 20] = [
    Difference {
        name: "offers-of-h2c",
        what: "An offer to upgrade to `h2c` does not reach the server, which responds over HTTP/1.1.",
        why: "Security: what follows the upgrade would pass the policy as one tunnel, with requests that it does not \
              allow (request smuggling). RFC 9113 §3.1 has made the upgrade obsolete, and RFC 9110 §7.8 lets a server \
              ignore it.",
        affected: "Clients that offer it, as Java's `HttpClient` does, use HTTP/1.1. HTTP/2 with prior knowledge is \
                   forwarded.",
        script: "http1/fields/upgrade-offer",
        removal: "Accepting the upgrade in the proxy, which would then forward each stream as a request.",
        applies: is_offer_of_h2c,
    },
    Difference {
        name: "hop-by-hop-fields",
        what: "`connection` and the fields that it lists, `keep-alive`, `proxy-connection`, `transfer-encoding` and \
               `upgrade` are the proxy's own on each connection.",
        why: "RFC 9110 §7.6.1: intermediaries must remove or replace them, because they describe one connection.",
        affected: "Applications that read these fields, for example to count requests on a connection.",
        script: "http1/connection-options",
        removal: "Not possible for an intermediary of HTTP.",
        applies: is_hop_by_hop,
    },
    Difference {
        name: "names-in-lower-case",
        what: "Names of fields of HTTP/1 arrive in lower case.",
        why: "RFC 9110 §5.1: names are case-insensitive; HTTP/2, between proxies, has lower case only.",
        affected: "Applications that compare names of fields exactly.",
        script: "http1/names-in-capitals",
        removal: "The proxy would have to keep each name as it was written, and carry it over HTTP/2.",
        applies: is_case_of_name,
    },
    Difference {
        name: "order-of-fields",
        what: "Lines of one name that others separate follow each other, in the place of the first.",
        why: "RFC 9110 §5.3: the order of fields with different names is not significant, and the one of lines of one name is \
              kept.",
        affected: "Servers that take the order of fields for a fingerprint of the client.",
        script: "http1/fields/lines-apart",
        removal: "A map of fields that keeps lines apart: http's `HeaderMap` groups them.",
        applies: is_order,
    },
    Difference {
        name: "fields-of-the-mesh",
        what: "Fields that begin with `l5d-`: the proxies add and remove them, as docs/reference/proxy-policy.md lists.",
        why: "Security: an application or a client outside the mesh must not state an identity (`l5d-client-id`).",
        affected: "Applications that use fields of this prefix for themselves.",
        script: "http1/fields-of-the-mesh",
        removal: "Carrying the proxies' information outside the message.",
        applies: is_field_of_mesh,
    },
    Difference {
        name: "spans-of-the-mesh",
        what: "With tracing, the parent in the trace context of a sampled request is the proxy's span.",
        why: "W3C Trace Context §3.4: who participates in a trace replaces the parent.",
        affected: "Servers that compare the parent with the client's span.",
        script: "http1/fields/trace-context",
        removal: "Not possible for a participant of the trace.",
        applies: is_span,
    },
    Difference {
        name: "status-line-of-http-1.0",
        what: "A response of an HTTP/1.0 server, and a response to an HTTP/1.0 request, may have the other version of \
               HTTP/1.",
        why: "RFC 9110 §2.5 and §6.2: the version is the one of the sender of the message, which is the proxy.",
        affected: "Clients that print the version.",
        script: "http1/version-1.0",
        removal: "Carrying the server's version over HTTP/2 between proxies.",
        applies: is_version,
    },
    Difference {
        name: "chunks-to-http-1.0",
        what: "A chunked response to a request of HTTP/1.0 arrives without chunks, and its connection ends with it.",
        why: "RFC 9112 §6.1: a server must not send chunks to a client of HTTP/1.0, which does not know them. The end of \
              the connection is the only framing without a length.",
        affected: "Clients that announce HTTP/1.0, know chunks, and ask to keep the connection.",
        script: "http1/chunks-to-http-1.0",
        removal: "Holding the response until its length is known.",
        applies: is_after_chunks,
    },
    Difference {
        name: "reason-phrase",
        what: "The reason phrase of a response may be the standard one of its status.",
        why: "RFC 9112 §4: clients ignore it, and HTTP/2 has none.",
        affected: "Clients that print the phrase.",
        script: "http1/reason-phrase",
        removal: "A field between proxies that carries the phrase.",
        applies: is_reason,
    },
    Difference {
        name: "authority-and-host",
        what: "A request of HTTP/2 with `host` and without `:authority` gets both.",
        why: "RFC 9113 §8.3.1: an intermediary may generate `:authority`.",
        affected: "None known.",
        script: "http2/host-in-place-of-authority",
        removal: "Forwarding a request without `:authority`, which many servers refuse.",
        applies: is_authority,
    },
    Difference {
        name: "failed-exchanges",
        what: "A client gets 502 or 504 where the server refuses the connection, or ends it without a response.",
        why: "RFC 9110 §15.6.3: the status of a gateway without a valid response.",
        affected: "Clients that treat an ended connection otherwise than a 502, for example when they retry.",
        script: "http1/server-leaves",
        removal: "Ending the client's connection in place of a response. Linkerd's proxy responds 502, too.",
        applies: is_failed_exchange,
    },
    Difference {
        name: "refused-requests",
        what: "An ambiguous or malformed request does not reach the server; the proxy responds 400, 431, 501 or 505.",
        why: "Security, and RFC 9112 §11.2: two programs that read a request in two ways enable request smuggling \
              (docs/reference/proxy-http1.md lists what is refused).",
        affected: "Clients that send such requests to servers that accept them.",
        script: "http1/broken/two-lengths",
        removal: "Nothing: such requests are ambiguous.",
        applies: is_refused_request,
    },
    Difference {
        name: "refused-responses",
        what: "A malformed response becomes a 502, or ends where it becomes malformed.",
        why: "Security, and RFC 9112 §11.1: two programs that read a response in two ways enable response splitting \
              (docs/reference/proxy-http1.md lists what is refused).",
        affected: "Clients of such servers that accept more than a strict reader.",
        script: "http1/broken-responses/no-status",
        removal: "Correcting more responses, where all clients agree on their meaning.",
        applies: is_refused_response,
    },
    Difference {
        name: "corrected-responses",
        what: "The inbound proxy corrects the form of its application's responses: blanks before colons, bare line \
               feeds, contradictory framing. Equal lengths are forwarded once by every proxy.",
        why: "RFC 9112 §2.2, §5.1, §6.3 and RFC 9110 §8.6 ask for it, so that all recipients read the same.",
        affected: "None known: the meaning stays.",
        script: "http1/broken-responses/length-and-chunked",
        removal: "Forwarding ambiguous messages as they are, which the next proxy refuses.",
        applies: is_corrected,
    },
    Difference {
        name: "repeated-requests",
        what: "A server gets a request without a body once more when it has refused it (`REFUSED_STREAM`, GOAWAY), and an \
               idempotent one also when it has ended a connection that it had responded on, without a byte of another \
               response, even if the client had closed its side.",
        why: "RFC 9113 §8.7, RFC 9110 §9.2.2 and RFC 9112 §9.3.1 allow it: the server has not processed the request, or may have \
              closed an idle connection before the request arrived. Decision 0211 says which requests are repeated.",
        affected: "Servers that close a connection to refuse a request.",
        script: "http1/server-leaves-later",
        removal: "A sign that the server has received the request, which HTTP/1 does not have.",
        applies: is_repeated,
    },
    Difference {
        name: "early-responses",
        what: "When a server of HTTP/1 has responded before the end of a request, it does not get the rest.",
        why: "RFC 9112 §9.6: the rest is read and discarded within limits, so that the client gets the response.",
        affected: "Servers that respond first and then read the request.",
        script: "http1/early-response",
        removal: "Forwarding a request of any length after its response.",
        applies: is_after_response,
    },
    Difference {
        name: "ends-of-connections",
        what: "The end of a server's connection between messages, its GOAWAY and its `connection: close` do not end the \
               client's connection, whose later requests are responded to. The proxies send their own GOAWAY.",
        why: "RFC 9110 §7.6.1, RFC 9112 §9.3 and RFC 9113 §6.8: they are about one connection.",
        affected: "Clients that take the end of the connection for a signal of the server.",
        script: "http1/server-closes",
        removal: "One connection to the server for each of a client.",
        applies: is_end_of_hop,
    },
    Difference {
        name: "ends-of-streams",
        what: "The end of a connection of HTTP/2 reaches the peer as a reset of its streams, and a gRPC client as the status \
               `UNAVAILABLE`. A GOAWAY reaches the client of a stream that it excludes as `REFUSED_STREAM`.",
        why: "RFC 9113 §5.4.2 and §6.8: a connection of the proxy carries streams of other clients. gRPC's libraries report a \
              lost connection with this status, and a reset with another.",
        affected: "Peers that tell a connection error from a stream error.",
        script: "http2/client-leaves",
        removal: "One connection to the server for each of a client.",
        applies: is_end_of_stream,
    },
    Difference {
        name: "codes-of-cancelled-requests",
        what: "A client's reset after the end of its request reaches the server as `CANCEL`, whatever its code.",
        why: "RFC 9113 §7: the code only says why, and servers stop in the same way.",
        affected: "Servers that count the reasons of their clients.",
        script: "http2/reset-codes/client-after-request",
        removal: "Handing the code to the exchange with the server before the request's task is dropped.",
        applies: is_code_of_cancelling,
    },
    Difference {
        name: "pooled-connections",
        what: "The number of connections to an HTTP server, and when a connection without a request is closed.",
        why: "RFC 9112 §9.3 and RFC 9110 §7.6.1: connections are between two hops, and a proxy reuses its own.",
        affected: "Servers that keep state for each connection, as NTLM does.",
        script: "http1/two-connections",
        removal: "One connection to the server for each of a client, which costs a handshake for each.",
        applies: is_pooling,
    },
];
