//! The request that sends the report.
//!
//! It is sent once, on a connection of its own, and redirections are not followed: the report goes
//! to the server that the user named, or nowhere.

use std::io;
use std::time::Duration;

use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use mesh_k8s::heartbeat::{Receiver, Report};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::tls::{self, TlsError};

/// Why the receiver has not accepted the report.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("cannot connect to it")]
    Connect(#[source] io::Error),
    #[error("no secure connection")]
    Tls(#[source] TlsError),
    #[error("the connection failed")]
    Http(#[source] hyper::Error),
    #[error("invalid request")]
    Request(#[source] http::Error),
    #[error("no response within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("it responded with {0}: redirections are not followed; use the URL of the destination")]
    Redirection(StatusCode),
    #[error("it responded with {status}: {text}")]
    Status { status: StatusCode, text: String },
}

/// The deadline of the whole exchange, with the handshakes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The size of the response's header section.
const MAX_HEADERS: usize = 16 << 10;

/// The size of a body that explains an error; a longer one is not shown.
const MAX_BODY: usize = 16 << 10;

/// The characters of it that are shown.
const MAX_TEXT: usize = 200;

/// Sends the report. Any 2xx response accepts it.
pub(super) async fn send(receiver: &Receiver, report: &Report) -> Result<(), SendError> {
    let exchange = tokio::time::timeout(TIMEOUT, exchange(receiver, report)).await;
    exchange.unwrap_or(Err(SendError::Timeout))
}

async fn exchange(receiver: &Receiver, report: &Report) -> Result<(), SendError> {
    let request = Request::get(receiver.target(report))
        .header(HOST, receiver.authority())
        .body(Empty::new())
        .map_err(SendError::Request)?;
    let stream = TcpStream::connect((receiver.host(), receiver.port()))
        .await
        .map_err(SendError::Connect)?;
    if !receiver.is_https() {
        return respond(stream, request).await;
    }
    let stream = tls::connect(stream, receiver.host())
        .await
        .map_err(SendError::Tls)?;
    respond(stream, request).await
}

async fn respond<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<(), SendError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(SendError::Http)?;
    // The set ends the task when it is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let response = sender
        .send_request(request)
        .await
        .map_err(SendError::Http)?;
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    if status.is_redirection() {
        return Err(SendError::Redirection(status));
    }
    let text = text(response.into_body()).await;
    Err(SendError::Status { status, text })
}

/// Returns the beginning of a body. Control characters, which a log must not have, are spaces.
async fn text(body: impl Body<Data = Bytes, Error = hyper::Error>) -> String {
    let Ok(collected) = Limited::new(body, MAX_BODY).collect().await else {
        return "(no readable body)".to_owned();
    };
    let bytes = collected.to_bytes();
    let text = String::from_utf8_lossy(&bytes);
    let characters = text.trim().chars().take(MAX_TEXT);
    characters
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests;
