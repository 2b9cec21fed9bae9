//! `Upgrade` (WebSocket and whatever else) and `CONNECT`: requests that turn their connection into a tunnel.
//!
//! [`accept`] recognises them as they arrive and keeps hyper's promise of the client's connection; [`join`] is given the final response and, when the far
//! side agreed, copies bytes between both connections until they end. The handlers in between need not know.

use std::rc::Rc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, StatusCode, Version};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use mesh_runtime::drain::Watch;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::TaskTracker;

use super::headers::{connection_lists, strip_connection_headers};
use super::{Request, Response, uri};
use crate::transport::{self, Io, Scratch};

/// Marks (as an extension) an HTTP/1.1 request that asks for another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Requested;

/// A request that no server could understand. Answered with 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadTarget;

/// What the client may be switched to once the far side has agreed.
pub(super) struct Tunnel {
    client: OnUpgrade,
    method: Method,
}

/// Whether `request` asks for an upgrade; `CONNECT` is recognised by its method.
pub fn is_requested(request: &Request) -> bool {
    request.extensions().get::<Requested>().is_some()
}

/// Cleans a request's connection headers, and returns the tunnel it may become.
pub(super) fn accept(request: &mut Request) -> Result<Option<Tunnel>, BadTarget> {
    check_target(request)?;
    let method = request.method().clone();
    let wanted = wanted_protocol(request);
    strip_connection_headers(request.headers_mut());
    if let Some(protocol) = &wanted {
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
        request.extensions_mut().insert(Requested);
    }
    if wanted.is_none() && method != Method::CONNECT {
        return Ok(None);
    }
    let client = hyper::upgrade::on(request);
    Ok(Some(Tunnel { client, method }))
}

/// The protocol of a genuine upgrade. `h2c` is none: the proxy speaks HTTP/2 itself and the handshake would bypass it.
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

/// Starts the tunnel when `response` agrees to it. The drain is told of the tunnel and waits for it.
pub(super) fn join(
    tunnel: Tunnel,
    response: &mut Response,
    tasks: &TaskTracker,
    scratch: Rc<Scratch>,
    drain: Watch,
) {
    let agreed = match tunnel.method {
        Method::CONNECT => response.status().is_success(),
        _ => response.status() == StatusCode::SWITCHING_PROTOCOLS,
    };
    if !agreed {
        return;
    }
    if tunnel.method == Method::CONNECT {
        response.headers_mut().remove(CONTENT_LENGTH);
        response.headers_mut().remove(TRANSFER_ENCODING);
    }
    let server = hyper::upgrade::on(response);
    tasks.spawn_local(async move {
        match futures_util::future::try_join(tunnel.client, server).await {
            Ok((client, server)) => copy(client, server, &scratch, &drain).await,
            Err(error) => tracing::debug!(%error, "The connection could not be upgraded"),
        }
    });
}

/// Copies until both directions have ended.
async fn copy(client: Upgraded, server: Upgraded, scratch: &Scratch, drain: &Watch) {
    match (into_io(client), into_io(server)) {
        (Ok(client), Ok(server)) => {
            if let Err(error) = transport::copy::duplex(client, server, scratch, drain).await {
                tracing::debug!(%error, "Upgraded connection failed");
            }
        }
        // A tunnel within an HTTP/2 stream is no connection of its own.
        (Ok(client), Err(server)) => copy_stream(client, TokioIo::new(server)).await,
        (Err(client), Ok(server)) => copy_stream(TokioIo::new(client), server).await,
        (Err(client), Err(server)) => {
            copy_stream(TokioIo::new(client), TokioIo::new(server)).await;
        }
    }
}

/// The connection under an upgrade, with what hyper has read from it in front.
fn into_io(upgraded: Upgraded) -> Result<Io, Upgraded> {
    let parts = upgraded.downcast::<TokioIo<Io>>()?;
    let mut io = parts.io.into_inner();
    io.push_replay(&parts.read_buf);
    Ok(io)
}

async fn copy_stream(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut server: impl AsyncRead + AsyncWrite + Unpin,
) {
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut server).await {
        tracing::debug!(%error, "Upgraded stream failed");
    }
}
