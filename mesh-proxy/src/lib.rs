//! The per-pod proxy.

pub mod config;
pub mod error;
pub mod http;
pub mod telemetry;
pub mod tls;
pub mod transport;
