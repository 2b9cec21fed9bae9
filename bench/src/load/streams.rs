//! Messages on long gRPC streams: each stream sends one, waits for its echo, and sends the next.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use clap::Args;
use h2::client::SendRequest;
use tokio::task::JoinSet;

use super::{OPERATION_TIMEOUT, Outcome, grpc, wait_for_capacity};

/// Length of the gRPC message prefix: compressed flag and message length.
const PREFIX: usize = 5;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(long)]
    target: SocketAddr,
    #[arg(long)]
    connections: usize,
    /// Streams over all connections
    #[arg(long)]
    streams: usize,
    /// Bytes in a message
    #[arg(long)]
    size: usize,
    #[arg(long)]
    seconds: f64,
}

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let mut senders = Vec::new();
    for _ in 0..options.connections {
        senders.push(grpc::connect(options.target).await?.0);
    }
    let message = message(options.size)?;
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(options.seconds);
    let mut streams = JoinSet::new();
    for number in 0..options.streams {
        let sender = senders[number % senders.len()].clone();
        streams.spawn(stream(sender, options.target, message.clone(), end));
    }
    let mut outcome = Outcome::default();
    while let Some(stream) = streams.join_next().await {
        match stream.context("a stream panicked")? {
            Ok(messages) => outcome.operations += messages,
            Err(error) => outcome.fail(error),
        }
    }
    outcome.print(start.elapsed())
}

/// Returns a gRPC message of `size` bytes.
fn message(size: usize) -> anyhow::Result<Bytes> {
    let length = u32::try_from(size).context("a message must be shorter than 4 GiB")?;
    let mut message = BytesMut::zeroed(PREFIX + size);
    message[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    Ok(message.freeze())
}

/// Returns the number of messages echoed on one stream until `end`.
async fn stream(
    sender: SendRequest<Bytes>,
    target: SocketAddr,
    message: Bytes,
    end: Instant,
) -> anyhow::Result<u64> {
    let mut sender = sender.ready().await?;
    let request = grpc::request(target, "bench.Echo/Stream").body(())?;
    let (response, mut messages) = sender.send_request(request, false)?;
    wait_for_capacity(&mut messages, message.len()).await?;
    messages.send_data(message.clone(), false)?;
    let response = tokio::time::timeout(OPERATION_TIMEOUT, response).await??;
    if response.status() != 200 {
        bail!("{}", response.status());
    }
    let mut echo = response.into_body();
    let mut done = 0;
    loop {
        let mut missing = message.len();
        while missing > 0 {
            let piece = tokio::time::timeout(OPERATION_TIMEOUT, echo.data()).await?;
            let length = piece.context("the stream ended early")??.len();
            echo.flow_control().release_capacity(length)?;
            missing = missing
                .checked_sub(length)
                .context("the echo is longer than the message")?;
        }
        done += 1;
        if Instant::now() >= end {
            messages.send_data(Bytes::new(), true)?;
            return Ok(done);
        }
        wait_for_capacity(&mut messages, message.len()).await?;
        messages.send_data(message.clone(), false)?;
    }
}
