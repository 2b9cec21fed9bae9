//! How commands talk to daemons once they have a stream: HTTP, TLS and the proxies' API.

pub(crate) mod controllers;
pub(crate) mod http;
pub(crate) mod metrics;
pub(crate) mod tls;

use anyhow::Context as _;
use serde::de::DeserializeOwned;

/// Streams that are open at the same time. Each is a connection of the API server and of a kubelet;
/// more would be felt there before it helped here.
pub(crate) const AT_ONCE: usize = 16;

/// Reads what `who` answered.
pub(crate) fn read_json<T: DeserializeOwned>(body: &str, who: &str) -> anyhow::Result<T> {
    serde_json::from_str(body)
        .with_context(|| format!("the answer of {who} cannot be read (another version?): {body}"))
}
