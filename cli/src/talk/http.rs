//! GET over a fresh HTTP/1 connection: for the admin ports of proxies, controllers and agents.

use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;

use crate::{
    exit::Failure,
    mesh::{Connection, Mesh, MeshPod},
};

/// An admin port that takes longer is not reachable; a scrape of a thousand targets takes
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a stream that ended is asked for its reason. It is on its way when the stream ends.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The body of the answer of a pod's port, when the answer is 200.
pub(crate) async fn get_ok_from(
    mesh: &Mesh,
    pod: &MeshPod,
    port: u16,
    path: &str,
) -> anyhow::Result<String> {
    let connection = mesh.connect(pod, port).await?;
    get_ok(connection, &format!("{pod} port {port}"), path).await
}

/// `whom` is for the reader of an error.
async fn get(
    connection: Connection,
    whom: &str,
    path: &str,
) -> anyhow::Result<(http::StatusCode, String)> {
    let Connection { io, trouble } = connection;
    let work = tokio::time::timeout(PATIENCE, exchange(io, path)).await;
    let outcome = work.map_err(|_elapsed| {
        Failure::TimedOut(format!(
            "{whom} did not answer GET {path} within {} s",
            PATIENCE.as_secs()
        ))
    })?;
    let error = match outcome {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    let said = match trouble {
        Some(trouble) => tokio::time::timeout(LAST_WORDS, trouble)
            .await
            .ok()
            .flatten(),
        None => None,
    };
    match said {
        Some(reason) => {
            Err(Failure::Unreachable(format!("{whom} cannot be reached: {}", reason.trim())).into())
        }
        None => Err(error.context(format!("GET {path} of {whom}"))),
    }
}

/// The body, when the answer is 200.
pub(crate) async fn get_ok(
    connection: Connection,
    whom: &str,
    path: &str,
) -> anyhow::Result<String> {
    let (status, body) = get(connection, whom, path).await?;
    anyhow::ensure!(
        status == http::StatusCode::OK,
        "{whom} answers {status} to GET {path}: {}",
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
    let mut ended = false;
    let (status, body) = loop {
        tokio::select! {
            answer = &mut work => break answer,
            // The connection may end before the answer has been read; the sender then has what
            // came, or the reason.
            result = &mut connection, if !ended => match result {
                Ok(()) => ended = true,
                Err(error) => break Err(error),
            },
        }
    }
    .context("the connection broke")?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
