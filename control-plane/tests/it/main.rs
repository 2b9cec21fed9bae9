//! The controllers as processes: real folders, real gRPC clients, real signals.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and shows the log of the controller"
)]

mod cluster;
mod controller;
mod destination;
mod identity;
mod lifecycle;
mod manifests;
mod policy;
