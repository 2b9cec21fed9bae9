//! The control-plane client: names, connections and long-lived streams.
//!
//! Runs on the control thread. [`Client`] is a gRPC transport over mutual TLS to one control-plane
//! service; [`follow`] reopens a response stream for as long as its messages are needed.
//! [`crate::discovery`] and [`crate::identity`] send their requests through them.

pub(crate) mod backoff;
pub(crate) mod client;
pub(crate) mod dns;
pub(crate) mod follow;
pub(crate) mod stream;

use tonic::Status;

pub(crate) use self::client::{Client, Trust};

/// Maximum size of a message in bytes. A Service with ten thousand endpoints exceeds tonic's
/// default of 4 MiB.
pub(crate) const MAX_MESSAGE: usize = 64 * 1024 * 1024;

/// Returns the reason of a failed call for logs: the local error chain, or the status of the
/// service.
pub(crate) fn reason(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(cause) => mesh_runtime::log::chain(cause),
        None => format!("{} ({:?})", status.message(), status.code()),
    }
}

#[cfg(test)]
mod tests;
