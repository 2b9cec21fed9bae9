//! The per-pod proxy. The program calls [`run`]; everything else is private, except what `fuzzing`
//! and `simulation` export.

#![cfg_attr(
    not(feature = "fuzzing"),
    expect(unreachable_pub, reason = "`fuzzing` exports what is `pub`")
)]

mod access_log;
mod admin;
mod app;
mod balance;
mod classify;
mod config;
mod context;
mod control;
mod discovery;
mod error;
mod filter;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod header_names;
mod host_name;
mod http;
mod identity;
mod inbound;
mod limits;
mod local_reply;
mod outbound;
mod random;
mod redirection;
mod retry;
#[cfg(feature = "simulation")]
pub mod simulation;
mod sync;
mod tap;
mod tap_server;
mod telemetry;
mod time_slice;
mod tls;
mod trace;
mod transport;
mod watch;
mod worker;

pub use self::app::run;
pub use self::config::Config;

#[cfg(test)]
mod tests;
