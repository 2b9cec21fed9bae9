//! The per-pod proxy. The program calls [`run`]; everything else is private, except what `fuzzing`
//! exports.

pub mod admin;
pub mod app;
pub mod balance;
mod classify;
pub mod config;
pub mod context;
pub mod control;
pub mod discovery;
pub mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod host_name;
pub mod http;
pub mod identity;
pub mod idle;
pub mod inbound;
pub mod memory;
pub mod outbound;
pub mod rate_limit;
pub mod redirection;
pub mod telemetry;
pub mod tls;
pub mod transport;
pub mod worker;

pub use self::app::run;
pub use self::config::Config;

#[cfg(test)]
mod fake_control_plane;
#[cfg(test)]
mod tests;
