//! The controllers as processes, with real directories, gRPC clients and signals.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints the log of the controller"
)]

mod cluster;
mod destination;
mod heartbeat;
mod identity;
mod lifecycle;
mod manifests;
mod policy;
