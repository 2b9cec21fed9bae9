//! `Upgrade` (WebSocket and whatever else) and `CONNECT`: requests that turn their connection into
//! a tunnel.
//!
//! [`accept`] recognises them as they arrive, and what it returns says whether a response agrees.
//! Then [`join`] copies bytes between both connections until they end, which [`super::http1`] hands
//! over with what it has read ahead. Tunnels within HTTP/2 are bodies like any other. The handlers
//! in between need not know.

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Method, StatusCode, Version};
use mesh_runtime::drain::Watch;

use super::admitted::Admission;
use super::headers::{connection_lists, strip_connection_headers};
use super::{Request, uri};
use crate::transport::{self, Io, Scratch};

/// Marks (as an extension) an HTTP/1.1 request that asks for another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Requested;

/// A request that no server could understand. Answered with 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadTarget;

/// A request that may become a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Upgrade,
    Connect,
}

impl Wanted {
    /// Whether a response of this status makes it one.
    pub(super) fn is_agreed(self, status: StatusCode) -> bool {
        match self {
            Self::Connect => status.is_success(),
            Self::Upgrade => status == StatusCode::SWITCHING_PROTOCOLS,
        }
    }
}

/// Whether `request` asks for an upgrade; `CONNECT` is recognised by its method.
pub fn is_requested(request: &Request) -> bool {
    request.extensions().get::<Requested>().is_some()
}

/// Cleans a request's connection headers, and says what it may become.
pub(super) fn accept(request: &mut Request) -> Result<Option<Wanted>, BadTarget> {
    check_target(request)?;
    let wanted = wanted_protocol(request);
    strip_connection_headers(request.headers_mut());
    if let Some(protocol) = &wanted {
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
        request.extensions_mut().insert(Requested);
    }
    Ok(match wanted {
        _ if *request.method() == Method::CONNECT => Some(Wanted::Connect),
        Some(_) => Some(Wanted::Upgrade),
        None => None,
    })
}

/// The protocol of a genuine upgrade. `h2c` is none: the proxy speaks HTTP/2 itself and the
/// handshake would bypass it.
fn wanted_protocol(request: &Request) -> Option<HeaderValue> {
    let headers = request.headers();
    if request.version() != Version::HTTP_11 || !connection_lists(headers, &UPGRADE) {
        return None;
    }
    let protocol = headers.get(UPGRADE)?;
    let mut tokens = protocol.to_str().ok()?.split(',').map(str::trim);
    (!tokens.any(|token| token.eq_ignore_ascii_case("h2c"))).then(|| protocol.clone())
}

/// Authority-form and `CONNECT` belong together, and HTTP/1.0 has neither.
fn check_target(request: &Request) -> Result<(), BadTarget> {
    if request.version() == Version::HTTP_2 {
        return Ok(());
    }
    let connect = request.method() == Method::CONNECT;
    let authority_form = uri::is_authority_form(request.uri());
    if connect != authority_form || (connect && request.version() == Version::HTTP_10) {
        return Err(BadTarget);
    }
    Ok(())
}

/// Cleans the connection headers of a response that arrived over HTTP/1.
pub(super) fn clean_response(headers: &mut HeaderMap, status: StatusCode) {
    if status != StatusCode::SWITCHING_PROTOCOLS {
        strip_connection_headers(headers);
    }
}

/// Goes on until the tunnel ends or may not go on. Dropping it closes both connections.
pub(super) async fn while_admitted(joined: impl Future<Output = ()>, admission: Option<Admission>) {
    let Some(admission) = admission else {
        return joined.await;
    };
    tokio::select! {
        () = joined => {}
        () = admission.revoked() => {
            tracing::info!("Tunnel ended: the policy no longer allows it");
        }
    }
}

/// Copies between two connections until both directions have ended. The drain is told of the tunnel
/// and waits for it.
pub(super) async fn join(client: Io, server: Io, scratch: &Scratch, drain: &Watch) {
    if let Err(error) = transport::copy::duplex(client, server, scratch, drain).await {
        tracing::debug!(%error, "Tunnel failed");
    }
}
