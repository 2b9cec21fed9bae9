//! HTTP/1 GET on a new connection, for the admin ports of proxies, controllers and agents.

use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;

use crate::exit::Failure;
use crate::mesh::{Connection, Mesh, MeshPod};

/// Admin ports respond within milliseconds, even with the metrics of a thousand targets.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Time to wait for the reason of a closed stream. The kubelet sends it when it closes the stream.
const FAILURE_REASON_TIMEOUT: Duration = Duration::from_millis(200);

/// Returns the body of a 200 response from a port of a pod.
pub(crate) async fn get_from_pod(
    mesh: &Mesh,
    pod: &MeshPod,
    port: u16,
    path: &str,
) -> anyhow::Result<String> {
    let connection = mesh.connect(pod, port).await?;
    get(connection, &format!("{pod} port {port}"), path).await
}

/// Returns status and body of any response. `server` is the name of the server for error messages.
async fn get_any_status(
    connection: Connection,
    server: &str,
    path: &str,
) -> anyhow::Result<(http::StatusCode, String)> {
    let Connection { io, failure_reason } = connection;
    let work = tokio::time::timeout(REQUEST_TIMEOUT, exchange(io, path)).await;
    let outcome = work.map_err(|_elapsed| {
        Failure::TimedOut(format!(
            "no response from {server} to GET {path} within {} s",
            REQUEST_TIMEOUT.as_secs()
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

/// Returns the body of a 200 response. `server` is the name of the server for error messages.
pub(crate) async fn get(
    connection: Connection,
    server: &str,
    path: &str,
) -> anyhow::Result<String> {
    let (status, body) = get_any_status(connection, server, path).await?;
    anyhow::ensure!(
        status == http::StatusCode::OK,
        "GET {path} from {server} returned {status}: {}",
        body.trim()
    );
    Ok(body)
}

async fn exchange(
    io: Box<dyn crate::mesh::Io>,
    path: &str,
) -> anyhow::Result<(http::StatusCode, String)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    let request = http::Request::get(path)
        .header(http::header::HOST, "localhost")
        .body(Empty::<Bytes>::new())?;
    let work = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok::<_, hyper::Error>((status, body))
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
                Err(error) => break Err(error),
            },
        }
    }
    .context("the connection failed")?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
