//! Protocols over an established connection: HTTP, TLS, gRPC, and the APIs of the viz extension.

pub(crate) mod connection;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod identity;
pub(crate) mod metrics_api;
pub(crate) mod prometheus_api;
pub(crate) mod tap;
pub(crate) mod tls;

use anyhow::Context as _;
use futures_util::{StreamExt as _, stream};
use serde::de::DeserializeOwned;

/// Maximum number of concurrent streams. Each occupies a connection of the API server and of a
/// kubelet.
const MAX_CONCURRENT: usize = 16;

/// Runs requests concurrently and returns their results in order.
pub(crate) async fn concurrently<F: Future>(
    requests: impl IntoIterator<Item = F>,
) -> Vec<F::Output> {
    let results = stream::iter(requests).buffered(MAX_CONCURRENT);
    results.collect().await
}

/// Parses the response of `server`.
pub(crate) fn read_json<T: DeserializeOwned>(body: &str, server: &str) -> anyhow::Result<T> {
    serde_json::from_str(body).with_context(|| {
        format!("cannot parse the response of {server} (another version?): {body}")
    })
}
