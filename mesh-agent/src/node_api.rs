//! The agent's unix socket: a client sends one JSON request line, the agent responds with one JSON
//! line and closes the connection. The response to a request for a trace has further lines. The
//! lines are the types of [`mesh_core::node`].
//!
//! [`client`] is synchronous, for the plugin; [`server`] runs in the agent. Only root may connect:
//! the socket's mode requires it, and the server checks the peer's credentials.

pub mod client;
mod line;
pub mod server;
mod trace;

/// A request names one pod and its annotations; Kubernetes allows 256 KiB of those.
const MAX_REQUEST: u64 = 1024 * 1024;
/// The longest response lists the pods of a node; a pod takes less than 1 KiB.
const MAX_RESPONSE: u64 = 16 * 1024 * 1024;
