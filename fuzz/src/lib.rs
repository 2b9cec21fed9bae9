//! The proxy's engine in one thread and without a network: for fuzz targets, which are functions of
//! bytes that panic when the proxy violates an invariant, and for counting the instructions of
//! fixed workloads (`workload`).
//!
//! The fuzzer (`main.rs`, which only `cargo xtask fuzz` builds) and the test that replays the
//! corpora (`tests/replay.rs`) call the same functions. The module of each target documents its
//! oracle; docs/fuzzing.md is the overview.

#![expect(clippy::expect_used, reason = "a target reports findings by panicking")]

mod app;
mod frame;
mod input;
mod memory;
mod oracle;
mod proxy_chain;
mod silent;
mod targets;
mod test_env;
mod tls;
mod workload;

pub use silent::silent_connection;
pub use workload::{WORKLOADS, Workload};

/// A fuzz target.
#[derive(Debug)]
pub struct Target {
    /// Also the directory of its inputs below `fuzz/corpus`.
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// All targets, the fast ones first.
pub const TARGETS: [Target; 12] = [
    Target {
        name: "authority",
        run: targets::authority::run,
    },
    Target {
        name: "chunked",
        run: targets::chunked::run,
    },
    Target {
        name: "detect",
        run: targets::detect::run,
    },
    Target {
        name: "transport-header",
        run: targets::transport_header::run,
    },
    Target {
        name: "http1-request",
        run: targets::http1_request::run,
    },
    Target {
        name: "http1-response",
        run: targets::http1_response::run,
    },
    Target {
        name: "http2",
        run: targets::http2::run,
    },
    Target {
        name: "http2-response",
        run: targets::http2_response::run,
    },
    Target {
        name: "orig-proto",
        run: targets::orig_proto::run,
    },
    Target {
        name: "tls-handshake-client",
        run: tls::handshake::client,
    },
    Target {
        name: "tls-handshake-server",
        run: tls::handshake::server,
    },
    Target {
        name: "tls-records",
        run: tls::records::run,
    },
];

/// Returns the target with this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
