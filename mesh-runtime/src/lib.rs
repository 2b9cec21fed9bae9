//! Shared infrastructure of the daemons: logs, metrics, an admin server, graceful drain, supervised
//! tasks, termination signals, files that others read, the build's description, the state of TCP
//! connections, and the buffer of what unauthorized peers send.
//!
//! It is independent of proxies, clusters and kernels, and parses no command line: each daemon has
//! its own `config`. The programs create these parts in their `main` and pass them down.

pub mod admin;
pub mod bounded_buffer;
pub mod build_info;
pub mod descriptors;
pub mod drain;
pub mod file;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod open_connections;
pub mod signal;
mod sync;
pub mod task;
pub mod tcp_info;
