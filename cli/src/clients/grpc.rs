//! gRPC over an established stream.

use std::time::Duration;

use anyhow::Context as _;
use hyper_util::rt::TokioIo;
use mesh_api::grpc::{Channel, Endpoint};

use crate::clients::connection::Connection;

/// A peer that has gone without closing its connection, as the pod of a removed network namespace,
/// is noticed within the sum of both.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns a channel over the connection. `server` is the name of the server for error messages.
pub(crate) async fn channel(connection: Connection, server: &str) -> anyhow::Result<Channel> {
    connect(endpoint()?, connection, server).await
}

/// Returns a channel for calls without a time limit, to a server that responds to pings.
pub(crate) async fn long_lived_channel(
    connection: Connection,
    server: &str,
) -> anyhow::Result<Channel> {
    let endpoint = endpoint()?.keep_alive(KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT);
    connect(endpoint, connection, server).await
}

/// The stream is already established, and the URI is a placeholder.
fn endpoint() -> anyhow::Result<Endpoint> {
    Ok(Endpoint::new("controller")?)
}

async fn connect(
    endpoint: Endpoint,
    connection: Connection,
    server: &str,
) -> anyhow::Result<Channel> {
    let mut io = Some(TokioIo::new(connection.io));
    // The channel cannot reconnect after the stream has closed.
    let connector = tower::service_fn(move |_: http::Uri| {
        let io = io.take();
        async move { io.ok_or_else(|| std::io::Error::other("the connection closed")) }
    });
    endpoint
        .connect_over(connector)
        .await
        .with_context(|| format!("connect to {server}"))
}
