//! The mesh controllers: identity, destination, policy, the proxy injector, and the service mirror.
//!
//! Data flows in one direction: a [`source`](mesh_cluster::source) reads objects and converts them
//! to [records](mesh_objects::model); the [`index`] stores the records and computes endpoints,
//! profiles and policies without I/O; [`serve`] sends these to proxies over gRPC. [`identity`]
//! issues certificates; trust roots publishes its trust anchors, and [`bootstrap`] creates anchors
//! and issuer. [`daemon`] runs the parts of one process, as configured by [`config`].

pub mod bootstrap;
pub mod config;
pub mod daemon;
mod external_slices;
mod heartbeat;
pub mod identity;
pub mod index;
mod injector;
mod machines;
mod mirror;
mod remote;
pub mod serve;
#[cfg(feature = "simulation")]
pub mod simulation;
mod status;
mod trust_bundle;
mod validator;
mod writer;
