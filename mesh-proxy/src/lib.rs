//! The per-pod proxy.

pub mod error;
pub mod http;
pub mod telemetry;
pub mod transport;
