//! The proxy's engine in one thread, without a network: for fuzz targets, each a function of bytes
//! that panics when the proxy has done what it must not do, and for counting the instructions of
//! work that is always the same (`work`).
//!
//! The same functions are called by the fuzzer (`main.rs`, which only `cargo xtask fuzz` builds)
//! and by the ordinary test that replays the kept inputs (`tests/replay.rs`). What each target
//! holds the proxy against is in its own module; see docs/fuzzing.md for the whole.

#![expect(
    clippy::expect_used,
    reason = "a target says what is wrong by panicking"
)]

mod app;
mod hops;
mod input;
mod judge;
mod memory;
mod silent;
mod targets;
mod tls;
mod wire;
mod work;
mod world;

pub use silent::silent_connection;
pub use work::{WORKS, Work};

/// One thing to hold the proxy against.
#[derive(Debug)]
pub struct Target {
    /// Also the folder of its inputs, below `fuzz/corpus`.
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// All of them, the quick ones first.
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

/// The target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
