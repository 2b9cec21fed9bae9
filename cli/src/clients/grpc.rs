//! gRPC over an established stream.

use anyhow::Context as _;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};

use crate::mesh::connection::Connection;

/// Returns a channel over the connection. `server` is the name of the server for error messages.
pub(crate) async fn channel(connection: Connection, server: &str) -> anyhow::Result<Channel> {
    let mut io = Some(TokioIo::new(connection.io));
    // The stream is already established and the URI is a placeholder. The channel cannot reconnect
    // after the stream has closed.
    let connector = tower::service_fn(move |_: http::Uri| {
        let io = io.take();
        async move { io.ok_or_else(|| std::io::Error::other("the connection closed")) }
    });
    let endpoint = Endpoint::from_static("http://controller");
    endpoint
        .connect_with_connector(connector)
        .await
        .with_context(|| format!("connect to {server}"))
}
