//! Questions to the node agent: one JSON line each way on its unix socket.

use std::path::Path;

use anyhow::Context;
use mesh_core::node::{Answer, NodeStatus, PodStatus, Request};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use crate::exit::Failure;

pub(crate) async fn status(socket: &Path) -> anyhow::Result<NodeStatus> {
    match ask(socket, &Request::Status).await? {
        Answer::Status(status) => Ok(*status),
        other => anyhow::bail!("the node agent answered something else than its status: {other:?}"),
    }
}

pub(crate) async fn pods(socket: &Path) -> anyhow::Result<Vec<PodStatus>> {
    match ask(socket, &Request::Pods).await? {
        Answer::Pods(pods) => Ok(pods),
        other => anyhow::bail!("the node agent answered something else than its pods: {other:?}"),
    }
}

async fn ask(socket: &Path, request: &Request) -> anyhow::Result<Answer> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| Failure::Unreachable(format!("the node agent does not answer on {}: {error}; is mesh-agent running, and are you root?", socket.display())))?;
    let mut stream = BufReader::new(stream);
    let line = serde_json::to_string(request)?;
    stream.write_all(format!("{line}\n").as_bytes()).await?;
    let mut answer = String::new();
    stream
        .read_line(&mut answer)
        .await
        .context("read the node agent's answer")?;
    serde_json::from_str(&answer).with_context(|| {
        format!("the node agent's answer cannot be read (another version?): {answer}")
    })
}
