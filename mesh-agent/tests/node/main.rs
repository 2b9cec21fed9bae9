//! Privileged tests of the node agent and its CNI plugin: real network namespaces, real packet
//! filters, real kernel programs, Debian's CNI plugins.
//!
//! They run as root and print "skipped: reason" otherwise. Everything they create has a unique name
//! and is removed on success and on failure.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "all of this program is a test: a panic is how it fails, and its output says what was skipped"
)]

mod agent;
mod chain;
mod daemon;
mod network;
mod packet_filter;
mod plugin;
mod runtime;
mod sandbox;

/// Prints the reason and returns true when the machine cannot run a privileged test.
fn skipped(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: {test}: it creates network namespaces, which takes root");
    }
    !root
}
