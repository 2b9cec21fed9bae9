//! Privileged tests of the node agent and its CNI plugin: real network namespaces, real packet
//! filters, real kernel programs, Debian's CNI plugins.
//!
//! They run as root and print "skipped: reason" otherwise. Everything they create is removed on
//! success and on failure.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "all of this program is a test: a panic is how it fails, and its output says what was skipped"
)]

mod agent;
mod chain;
mod daemon;
mod dial;
mod network;
mod packet_filter;
mod plugin;
mod runtime;
mod sandbox;
mod successor;
