//! Fetches the bundle of a trust domain from its server.
//!
//! Each request has a connection of its own, and redirections are not followed: the server that the
//! ConfigMap names is the only one that is asked.

use std::io;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use mesh_k8s::foreign_domain::{BundleEndpoint, MAX_DOCUMENT};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::document::{self, BundleDocument, DocumentError};
use super::tls::{self, TlsError};

/// Why no bundle was received.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("cannot connect to {server}")]
    Connect { server: String, source: io::Error },
    #[error("cannot authenticate {server}")]
    Tls { server: String, source: TlsError },
    #[error("the connection failed")]
    Http(#[source] hyper::Error),
    #[error("invalid request")]
    Request(#[source] http::Error),
    #[error("it responded with {0}")]
    Status(StatusCode),
    #[error("its response has more than {MAX_DOCUMENT} bytes")]
    TooLarge,
    #[error("its response cannot be read")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("its response is refused")]
    Document(#[from] DocumentError),
    #[error("no response within {} s", TIMEOUT.as_secs())]
    Timeout,
}

/// The deadline of the whole exchange, with the handshakes.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The size of the response's header section.
const MAX_HEADERS: usize = 16 << 10;

/// Fetches the bundle. `trusted` is the last one, in PEM, by which a server with an identity of
/// the trust domain is authenticated.
pub async fn fetch(
    endpoint: &BundleEndpoint,
    trusted: &str,
    program: &str,
) -> Result<BundleDocument, FetchError> {
    let exchange = exchange(endpoint, trusted, program);
    let exchange = tokio::time::timeout(TIMEOUT, Box::pin(exchange)).await;
    exchange.unwrap_or(Err(FetchError::Timeout))
}

async fn exchange(
    endpoint: &BundleEndpoint,
    trusted: &str,
    program: &str,
) -> Result<BundleDocument, FetchError> {
    let BundleEndpoint { host, port, .. } = endpoint;
    let authority = format!("{host}:{port}");
    let request = Request::get(&endpoint.path)
        .header(HOST, &authority)
        .header(USER_AGENT, program)
        .body(Empty::<Bytes>::new())
        .map_err(FetchError::Request)?;
    // A literal address of IPv6 has brackets in a URL.
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((bare, *port)).await;
    let stream = stream.map_err(|source| FetchError::Connect {
        server: authority.clone(),
        source,
    })?;
    let stream = tls::connect(stream, bare, &endpoint.profile, trusted).await;
    let stream = stream.map_err(|source| FetchError::Tls {
        server: authority,
        source,
    })?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(FetchError::Http)?;
    // The set ends the task when it is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let response = sender.send_request(request).await;
    let response = response.map_err(FetchError::Http)?;
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(response.status()));
    }
    let body = Limited::new(response.into_body(), MAX_DOCUMENT);
    let body = body.collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            FetchError::TooLarge
        } else {
            FetchError::Body(error)
        }
    })?;
    Ok(document::read(&body.to_bytes())?)
}

#[cfg(test)]
mod tests;
