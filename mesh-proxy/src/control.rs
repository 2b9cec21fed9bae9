//! Talking to the control plane: names, connections and long-lived streams.
//!
//! Runs on the control thread. [`Client`] is a gRPC transport over mutual TLS for one control-plane
//! service; [`follow`] keeps one stream of answers alive for as long as somebody wants them.
//! [`crate::discovery`] and [`crate::identity`] ask their questions through these.

pub mod backoff;
pub mod client;
pub mod dns;
pub mod follow;
pub mod stream;

use tonic::Status;

pub use self::client::{Client, Trust};

/// Largest message that is accepted. tonic's default of 4 MiB is reached by a Service with ten
/// thousand endpoints.
pub const MAX_MESSAGE: usize = 64 * 1024 * 1024;

/// Why a call failed, for people: what this proxy found when it tried, or what the service
/// answered.
pub fn reason(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(cause) => mesh_runtime::log::chain(cause),
        None => format!("{} ({:?})", status.message(), status.code()),
    }
}

#[cfg(test)]
mod tests;
