//! What the proxy knows about a message besides its start line, header section and body.

use bytes::Bytes;
use http::Extensions;
use mesh_http2::RawTarget;

/// The context of a message. It is one extension, and exists only if a field differs from its
/// default: the first extension of a message costs an allocation, and few messages need one.
#[derive(Clone, Debug)]
pub(crate) struct MessageContext {
    /// In a request: its request line had an absolute URI, so the destination application must
    /// receive one. Set by [`uri::record_form`](super::uri::record_form) for a request received
    /// over HTTP/1, and by [`orig_proto::downgrade`](super::orig_proto::downgrade) for one carried
    /// over HTTP/2; read by `uri` and `orig_proto`.
    pub(crate) is_absolute_form: bool,
    /// In an HTTP/1.1 request: it asks for another protocol, and so for its own connection. Set by
    /// `upgrade::take_request`; read by `client`, `retry` and `orig_proto`. `CONNECT` is recognised
    /// by its method.
    pub(crate) requests_upgrade: bool,
    /// In an HTTP/1.1 request: it offers TLS (RFC 2817, section 3.1), which a server may ignore.
    /// Set by `upgrade::take_request`; read by `client`.
    pub(crate) offers_tls: bool,
    /// In a request: its target, if a URI cannot represent it. Set by both servers; read by `uri`,
    /// and through it by both clients, `orig_proto` and `inbound`.
    pub(crate) raw_target: Option<Box<RawTarget>>,
    /// In a response: the client's connection closes after it. Set by `synthetic_response::error`,
    /// by `outbound::http::endpoint` if the peer's proxy requests it, and by `http1::server` for an
    /// invalid response; read by both servers.
    pub(crate) closes_connection: bool,
    /// In a response received over HTTP/1: its reason phrase, unless it is the standard one. Set by
    /// `client::http1`, and read by `http1::server`.
    pub(crate) reason: Option<Bytes>,
}

static DEFAULT: MessageContext = MessageContext {
    is_absolute_form: false,
    requests_upgrade: false,
    offers_tls: false,
    raw_target: None,
    closes_connection: false,
    reason: None,
};

impl MessageContext {
    pub(crate) fn of(extensions: &Extensions) -> &Self {
        extensions.get().unwrap_or(&DEFAULT)
    }

    /// Returns the context to set a field.
    pub(crate) fn of_mut(extensions: &mut Extensions) -> &mut Self {
        extensions.get_or_insert_with(|| DEFAULT.clone())
    }
}
