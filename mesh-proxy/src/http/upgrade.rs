//! `Upgrade` (WebSocket and other protocols) and `CONNECT`: requests that turn their connection
//! into a tunnel.
//!
//! [`take_request`] recognises them and returns what a response must accept. Then [`super::http1`]
//! passes on both connections with the input it has already read, and [`run_tunnel`] copies bytes
//! between them until both directions have ended. Tunnels within HTTP/2 are ordinary bodies.
//! Handlers are not involved.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Method, StatusCode, Version};
use mesh_planted::Bug;
use mesh_runtime::drain::Watch;

use super::headers::{has_connection_option, strip_connection_headers};
use super::message_context::MessageContext;
use super::revocable::RevocableRequest;
use super::{Request, uri};
use crate::transport::{self, Io, Scratch};

/// A request with an invalid target. Answered with 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidTarget;

/// What a request may turn its connection into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpgradeRequest {
    Upgrade,
    Connect,
}

impl UpgradeRequest {
    /// Whether a response of this status accepts the request.
    pub(super) fn is_accepted_by(self, status: StatusCode) -> bool {
        match self {
            Self::Connect => status.is_success(),
            Self::Upgrade => {
                status == StatusCode::SWITCHING_PROTOCOLS || Bug::RefusalIsTunnel.is_planted()
            }
        }
    }
}

/// Removes hop-by-hop headers from a request, and returns what it may become.
pub(super) fn take_request(request: &mut Request) -> Result<Option<UpgradeRequest>, InvalidTarget> {
    check_target(request)?;
    let protocol = requested_protocol(request);
    strip_connection_headers(request.headers_mut());
    if let Some(protocol) = &protocol {
        let offers_tls = is_offer_of_tls(request.method(), protocol);
        if !Bug::UpgradeNotForwarded.is_planted() {
            set_protocols(request.headers_mut(), protocol.clone());
        }
        let context = MessageContext::of_mut(request.extensions_mut());
        context.offers_tls = offers_tls;
        context.requests_upgrade = !offers_tls;
    }
    Ok(match protocol {
        _ if *request.method() == Method::CONNECT => Some(UpgradeRequest::Connect),
        Some(_) => Some(UpgradeRequest::Upgrade),
        None => None,
    })
}

/// Returns the protocol of an upgrade. `h2c` does not count: the proxy supports HTTP/2 itself, and
/// the handshake would bypass it.
fn requested_protocol(request: &Request) -> Option<HeaderValue> {
    let headers = request.headers();
    if request.version() != Version::HTTP_11 || !has_connection_option(headers, &UPGRADE) {
        return None;
    }
    let protocol = headers.get(UPGRADE)?;
    let mut tokens = protocol.to_str().ok()?.split(',').map(str::trim);
    (!tokens.any(|token| token.eq_ignore_ascii_case("h2c"))).then(|| protocol.clone())
}

/// Whether the client only offers TLS with a request that the server may answer without it (RFC
/// 2817, section 3.1). Some clients do so with each request. With OPTIONS the client requires TLS
/// (section 3.2).
fn is_offer_of_tls(method: &Method, protocols: &HeaderValue) -> bool {
    let mut protocols = protocols.as_bytes().split(|byte| *byte == b',');
    *method != Method::OPTIONS
        && protocols.all(|protocol| {
            let name = protocol.trim_ascii().first_chunk::<4>();
            name.is_some_and(|name| name.eq_ignore_ascii_case(b"tls/"))
        })
}

/// Rejects authority-form without `CONNECT`, and `CONNECT` without authority-form or without a
/// valid port (RFC 9110, section 9.3.6).
fn check_target(request: &Request) -> Result<(), InvalidTarget> {
    if request.version() == Version::HTTP_2 {
        return Ok(());
    }
    let connect = request.method() == Method::CONNECT;
    let authority_form = uri::is_authority_form(request.uri());
    let lacks_port = || matches!(request.uri().port_u16(), None | Some(0));
    if connect != authority_form || (connect && lacks_port()) {
        return Err(InvalidTarget);
    }
    Ok(())
}

/// Removes hop-by-hop headers from a response that was received over HTTP/1. A 426 keeps its
/// `upgrade`.
pub(super) fn strip_response_headers(headers: &mut HeaderMap, status: StatusCode) {
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let protocols = required_protocols(headers, status);
        strip_connection_headers(headers);
        if let Some(protocols) = protocols {
            set_protocols(headers, protocols);
        }
    }
}

/// Returns the protocols that the server requires, which a 426 names (RFC 9110, section 15.5.22).
pub(super) fn required_protocols(headers: &HeaderMap, status: StatusCode) -> Option<HeaderValue> {
    if status != StatusCode::UPGRADE_REQUIRED || !headers.contains_key(UPGRADE) {
        return None;
    }
    let values = headers.get_all(UPGRADE).iter().map(HeaderValue::as_bytes);
    let list = values.collect::<Vec<_>>().join(&b", "[..]);
    HeaderValue::from_maybe_shared(Bytes::from(list)).ok()
}

/// Adds `upgrade`, and lists it in `connection`.
pub(super) fn set_protocols(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocols);
}

/// Runs the tunnel until it ends or is no longer allowed. Dropping the future resets both
/// connections.
pub(super) async fn until_revoked(
    tunnel: impl Future<Output = ()>,
    revocable: Option<RevocableRequest>,
) {
    let Some(revocable) = revocable else {
        return tunnel.await;
    };
    tokio::select! {
        biased;
        // First, so that no byte is copied that the policy no longer allows.
        () = revocable.revoked() => {
            tracing::info!("Tunnel ended: the policy no longer allows it");
        }
        () = tunnel => {}
    }
}

/// Copies between two connections until both directions have ended. The drain waits for it.
pub(super) async fn run_tunnel(
    client: Io,
    server: Io,
    scratch: &Scratch,
    half_closed_idle: Duration,
    drain: &Watch,
) {
    let copied = transport::copy::duplex(client, server, scratch, half_closed_idle, drain);
    if let Err(error) = copied.await {
        tracing::debug!(%error, "Tunnel failed");
    }
}
