//! The agent's unix socket: one JSON request line, one JSON answer line, then the connection
//! closes. The lines are the types of [`mesh_core::node`].
//!
//! [`client`] is synchronous, for the plugin; [`server`] runs in the agent. Only root may speak:
//! the socket's mode says so, and the server asks the kernel who connected.

pub mod client;
pub mod server;

/// A request names one pod and its annotations; Kubernetes allows 256 KiB of those.
const MAX_REQUEST: u64 = 1024 * 1024;
/// The longest answer lists the pods of a node; a pod takes less than a KiB.
const MAX_ANSWER: u64 = 16 * 1024 * 1024;
