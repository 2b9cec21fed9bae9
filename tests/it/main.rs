//! The integration tests: one binary, one module per topic.
//!
//! They drive the programs of this repository from outside, as a user would: processes, sockets,
//! files and network namespaces. Tests that need root are skipped without it; each test creates and
//! removes its environment.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a failed precondition fails the test, which shows its measurements"
)]

mod harness;
mod links;
mod machines;
mod mesh;
mod observability;
mod packages;
mod port_forward;
mod redirect;
mod rotation;
mod viz;
