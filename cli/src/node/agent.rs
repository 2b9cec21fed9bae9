//! Client of the node agent: one JSON line in each direction on its Unix socket.

use std::path::Path;

use anyhow::Context;
use mesh_core::node::{NodeStatus, PodStatus, Request, Response};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::exit::Failure;

pub(crate) async fn status(socket: &Path) -> anyhow::Result<NodeStatus> {
    match request(socket, &Request::Status).await? {
        Response::Status(status) => Ok(*status),
        other => {
            anyhow::bail!("unexpected response of the node agent, expected its status: {other:?}")
        }
    }
}

pub(crate) async fn pods(socket: &Path) -> anyhow::Result<Vec<PodStatus>> {
    match request(socket, &Request::Pods).await? {
        Response::Pods(pods) => Ok(pods),
        other => {
            anyhow::bail!("unexpected response of the node agent, expected its pods: {other:?}")
        }
    }
}

pub(crate) async fn request(socket: &Path, request: &Request) -> anyhow::Result<Response> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| Failure::Unreachable(format!("cannot connect to the node agent at {}: {error}; is mesh-agent running, and are you root?", socket.display())))?;
    let mut stream = BufReader::new(stream);
    let line = serde_json::to_string(request)?;
    stream.write_all(format!("{line}\n").as_bytes()).await?;
    let mut line = String::new();
    stream
        .read_line(&mut line)
        .await
        .context("read the node agent's response")?;
    serde_json::from_str(&line).with_context(|| {
        format!("cannot parse the node agent's response (another version?): {line}")
    })
}
