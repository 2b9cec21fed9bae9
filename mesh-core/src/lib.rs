//! Domain types and pure decisions of the mesh.
//!
//! What the proxy, the controllers, the node agent and the command line share: names, policies,
//! routes, endpoints, and the functions that decide with them. Nothing here does I/O, uses a wire
//! format or a Kubernetes struct, or needs an async runtime; every decision is a function of its
//! arguments and is tested with tables.

#![warn(missing_docs)]

pub mod anchor_rotation;
pub mod annotation;
pub mod backend;
pub mod deny_list;
pub mod endpoint;
pub mod exposition;
pub mod identity;
pub mod labels;
pub mod locality;
pub mod machine;
pub mod meta;
pub mod names;
pub mod node;
pub mod policy;
pub mod ports;
pub mod profile;
pub mod redirection;
pub mod resilience;
pub mod retry;
pub mod rights;
pub mod route;
pub mod tap;
pub mod trace;
pub mod trust_bundle;
pub mod trust_domain;
pub mod units;
