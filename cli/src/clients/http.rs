//! HTTP/1 GET on a new connection, for the admin ports of proxies, controllers and
//! agents, and for Prometheus.

use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;

use super::connection::{Connection, Io};
use crate::exit::Failure;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Get<'a> {
    /// The name of the server for error messages.
    pub(crate) server: &'a str,
    pub(crate) host: &'a str,
    pub(crate) path: &'a str,
    pub(crate) timeout: Duration,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Admin ports respond within milliseconds, even with the metrics of a thousand targets.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a body. The metrics of a proxy with a thousand targets are a tenth of this.
const MAX_BODY: usize = 32 << 20;

/// Time to wait for the reason of a closed stream. The kubelet sends it when it closes the stream.
const FAILURE_REASON_TIMEOUT: Duration = Duration::from_millis(200);

/// Returns status and body of any response.
pub(crate) async fn get_any_status(
    connection: Connection,
    request: &Get<'_>,
) -> anyhow::Result<(http::StatusCode, String)> {
    let Connection { io, failure_reason } = connection;
    let Get {
        server,
        host,
        path,
        timeout,
    } = *request;
    let work = tokio::time::timeout(timeout, exchange(io, host, path)).await;
    let outcome = work.map_err(|_elapsed| {
        Failure::TimedOut(format!(
            "no response from {server} to GET {path} within {} s",
            timeout.as_secs()
        ))
    })?;
    let error = match outcome {
        Ok(response) => return Ok(response),
        Err(error) => error,
    };
    let reason = match failure_reason {
        Some(failure_reason) => tokio::time::timeout(FAILURE_REASON_TIMEOUT, failure_reason)
            .await
            .ok()
            .flatten(),
        None => None,
    };
    match reason {
        Some(reason) => {
            Err(Failure::Unreachable(format!("cannot reach {server}: {}", reason.trim())).into())
        }
        None => Err(error.context(format!("GET {path} from {server}"))),
    }
}

/// Returns the body of a 200 response from an admin port. `server` is the name of the server for
/// error messages.
pub(crate) async fn get(
    connection: Connection,
    server: &str,
    path: &str,
) -> anyhow::Result<String> {
    let request = Get {
        server,
        host: "localhost",
        path,
        timeout: REQUEST_TIMEOUT,
    };
    let (status, body) = get_any_status(connection, &request).await?;
    anyhow::ensure!(
        status == http::StatusCode::OK,
        "GET {path} from {server} returned {status}: {}",
        body.trim()
    );
    Ok(body)
}

async fn exchange(
    io: Box<dyn Io>,
    host: &str,
    path: &str,
) -> anyhow::Result<(http::StatusCode, String)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    let request = http::Request::get(path)
        .header(http::header::HOST, host)
        .body(Empty::<Bytes>::new())?;
    let work = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        Ok::<_, BoxError>((status, body?.to_bytes()))
    };
    tokio::pin!(connection, work);
    let mut closed = false;
    let (status, body) = loop {
        tokio::select! {
            result = &mut work => break result,
            // The connection may close before the response has been read; the sender then returns
            // the buffered response or the error.
            result = &mut connection, if !closed => match result {
                Ok(()) => closed = true,
                Err(error) => break Err(error.into()),
            },
        }
    }
    .map_err(|error| anyhow::Error::from_boxed(error).context("the connection failed"))?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Requests a body of `size` bytes.
    async fn get_body(size: usize) -> anyhow::Result<String> {
        let (client, mut server) = tokio::io::duplex(1 << 20);
        let serve = async move {
            let mut request = [0; 1024];
            let _read = server.read(&mut request).await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n");
            // The client may have read enough.
            let _ended = server.write_all(head.as_bytes()).await;
            let _ended = server.write_all(&vec![b'a'; size]).await;
        };
        let (body, ()) = tokio::join!(get(Connection::new(client), "the test", "/"), serve);
        body
    }

    #[tokio::test]
    async fn size_of_a_body_is_bounded() {
        assert_eq!(get_body(MAX_BODY).await.unwrap().len(), MAX_BODY);
        let error = get_body(MAX_BODY + 1).await.unwrap_err();
        assert!(format!("{error:#}").contains("limit"), "{error:#}");
    }
}
