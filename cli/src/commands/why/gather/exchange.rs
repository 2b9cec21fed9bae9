//! HTTP/1 on the connection of the client's pod, or none: then it is watched for a while.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt as _;

use super::super::facts::{Exchange, RequestLine, Response};
use crate::mesh::agent_process::AgentProcess;

/// Marks the request, so that it is found in taps and logs.
pub(super) const MARKER: &str = "l5d-why-id";

/// A proxy that responds itself explains the response in this header.
const PROXY_ERROR: &str = "l5d-proxy-error";

/// How long a connection without a request is watched: a proxy that refuses an opaque connection
/// closes it within a round trip, but not before it has dialled the server.
const WATCH_TIME: Duration = Duration::from_secs(1);

/// The bytes of a body that are read.
const MAX_BODY: u64 = 16 << 20;

/// Watches whether the peer closes the connection.
pub(super) async fn watch(mut process: AgentProcess) -> Exchange {
    let started = Instant::now();
    let mut byte = [0; 1];
    let read = tokio::time::timeout(WATCH_TIME, process.output.read(&mut byte)).await;
    match read {
        Ok(Ok(0) | Err(_)) => Exchange::Closed(started.elapsed()),
        // The server speaks first.
        Ok(Ok(_)) | Err(_) => Exchange::Open(started.elapsed()),
    }
}

/// Sends the request and reads the response to its end.
pub(super) async fn send(
    mut process: AgentProcess,
    request: &RequestLine,
    authority: &str,
    timeout: Duration,
) -> Exchange {
    let started = Instant::now();
    let io = tokio::io::join(&mut process.output, &mut process.input);
    let work = exchange(io, request, authority);
    let reason = match tokio::time::timeout(timeout, work).await {
        Ok(Ok((status, proxy_error, body_bytes))) => {
            return Exchange::Response(Response {
                status,
                proxy_error,
                after: started.elapsed(),
                body_bytes,
            });
        }
        Ok(Err(error)) => format!("{error:#}"),
        Err(_elapsed) => format!("none within {} s", timeout.as_secs_f64()),
    };
    Exchange::NoResponse {
        reason,
        after: started.elapsed(),
    }
}

async fn exchange(
    io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    request: &RequestLine,
    authority: &str,
) -> anyhow::Result<(http::StatusCode, Option<String>, u64)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    let host = authority.strip_suffix(":80").unwrap_or(authority);
    let message = http::Request::builder()
        .method(&request.method)
        .uri(&request.path)
        .header(http::header::HOST, host)
        .header(http::header::USER_AGENT, USER_AGENT)
        .header(MARKER, &request.marker)
        .body(Empty::<Bytes>::new())?;
    let work = async {
        let response = sender.send_request(message).await?;
        let status = response.status();
        let error = response.headers().get(PROXY_ERROR);
        let error = error.map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
        let bytes = count(response.into_body()).await?;
        anyhow::Ok((status, error, bytes))
    };
    tokio::pin!(connection, work);
    let mut closed = false;
    loop {
        tokio::select! {
            result = &mut work => return result,
            // The connection may close before the response has been read; the sender then returns
            // the buffered response or the error.
            result = &mut connection, if !closed => match result {
                Ok(()) => closed = true,
                Err(error) => return Err(error.into()),
            },
        }
    }
}

const USER_AGENT: &str = concat!("meshctl-why/", env!("CARGO_PKG_VERSION"));

/// Counts the bytes of a body up to [`MAX_BODY`].
async fn count(mut body: Incoming) -> anyhow::Result<u64> {
    let mut bytes = 0;
    while bytes < MAX_BODY
        && let Some(frame) = body.frame().await
    {
        if let Ok(data) = frame?.into_data() {
            bytes += data.len() as u64;
        }
    }
    Ok(bytes)
}
