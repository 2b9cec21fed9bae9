//! GET over a fresh HTTP/1 connection: for the admin ports of proxies and controllers.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::exit::Failure;

/// An admin port that takes longer is not reachable; a scrape of a thousand targets takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The status and body of the answer.
pub(crate) async fn get(
    addr: SocketAddr,
    path: &str,
) -> anyhow::Result<(http::StatusCode, String)> {
    let answer = tokio::time::timeout(PATIENCE, exchange(addr, path)).await;
    answer.map_err(|_elapsed| {
        Failure::TimedOut(format!(
            "http://{addr}{path} did not answer within {} s",
            PATIENCE.as_secs()
        ))
    })?
}

async fn exchange(addr: SocketAddr, path: &str) -> anyhow::Result<(http::StatusCode, String)> {
    let stream = TcpStream::connect(addr).await.map_err(|error| {
        Failure::Unreachable(format!(
            "cannot connect to {addr}: {error}; is the pod running? `meshctl local status` shows it"
        ))
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = http::Request::get(path)
        .header(http::header::HOST, addr.to_string())
        .body(Empty::<Bytes>::new())?;
    let work = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok::<_, hyper::Error>((status, body))
    };
    tokio::pin!(connection);
    let (status, body) = tokio::select! {
        answer = work => answer,
        // The connection's end before the answer's: the sender then has the reason.
        result = &mut connection => match result {
            Ok(()) => anyhow::bail!("{addr} closed the connection without an answer to GET {path}"),
            Err(error) => Err(error),
        },
    }
    .with_context(|| format!("GET http://{addr}{path}"))?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// The body, when the answer is 200.
pub(crate) async fn get_ok(addr: SocketAddr, path: &str) -> anyhow::Result<String> {
    let (status, body) = get(addr, path).await?;
    anyhow::ensure!(
        status == http::StatusCode::OK,
        "GET http://{addr}{path}: {status}: {}",
        body.trim()
    );
    Ok(body)
}
