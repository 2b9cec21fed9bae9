//! The controllers in a simulated world: destination, policy and injector, the product's own code,
//! against an API server that delays, repeats, drops, truncates and restarts watches, refuses, and
//! goes back in time. docs/simulation.md explains the use.
//!
//! [`generate`] makes a [`script`] from a seed, [`world`] plays it, and [`oracle`] says which
//! promises it has broken.

pub mod api;
pub mod client;
pub mod generate;
pub mod history;
pub mod objects;
pub mod oracle;
pub mod process;
pub mod record;
pub mod report;
pub mod resources;
pub mod review;
pub mod script;
pub mod shrink;
pub mod store;
pub mod world;
