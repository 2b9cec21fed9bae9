//! The parts of the viz extension as processes, with real directories, gRPC clients and signals.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints the log of the program"
)]

mod metrics_api;
mod programs;
mod web;
