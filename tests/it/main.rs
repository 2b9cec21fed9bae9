//! The integration tests: one binary, one module per story.
//!
//! They drive the programs of this repository from outside, as a user would: processes, sockets,
//! files and network namespaces. What needs root says so and is skipped without it; everything else
//! of a test's surroundings is made by the test and removed with it.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and a skipped one says why on its output"
)]

mod harness;
mod mesh;
mod redirect;
