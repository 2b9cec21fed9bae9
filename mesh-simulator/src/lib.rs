//! The oracle of transparency: *scripts* say what a client and a server do, `world` plays them on
//! the simulated network, `compare` says how two runs differ, and `differences` which differences
//! are allowed. docs/simulation.md explains the use.

pub mod check;
pub mod compare;
mod copies;
pub mod corpus;
pub mod differences;
pub mod facts;
pub mod generate;
mod http1;
mod http2;
pub mod message;
pub mod observation;
mod peer;
pub mod planted;
pub mod pods;
pub mod report;
pub mod requests;
mod retries;
pub mod script;
pub mod shrink;
mod websocket;
pub mod world;

/// Counts what simulated proxies hold.
#[global_allocator]
static HEAP: mesh_simnet::Heap = mesh_simnet::Heap;
