//! What every daemon of the mesh needs and none should write twice: logs, metrics, an admin server,
//! graceful drain, supervised tasks, termination signals and the build's own description.
//!
//! Nothing here knows about proxies, clusters or kernels, and nothing here parses a command line:
//! each daemon has its own `config`. The programs build these pieces in their `main` and hand them
//! down.

pub mod admin;
pub mod build_info;
pub mod descriptors;
pub mod drain;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod signal;
pub mod task;
