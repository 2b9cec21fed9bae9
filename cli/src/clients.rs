//! Clients of the daemons over an established stream: HTTP, TLS and the control-plane API.

pub(crate) mod controllers;
pub(crate) mod http;
pub(crate) mod metrics;
pub(crate) mod tls;

use anyhow::Context as _;
use serde::de::DeserializeOwned;

/// Maximum number of concurrent streams. Each occupies a connection of the API server and of a
/// kubelet.
pub(crate) const MAX_CONCURRENT: usize = 16;

/// Parses the response of `server`.
pub(crate) fn read_json<T: DeserializeOwned>(body: &str, server: &str) -> anyhow::Result<T> {
    serde_json::from_str(body).with_context(|| {
        format!("cannot parse the response of {server} (another version?): {body}")
    })
}
