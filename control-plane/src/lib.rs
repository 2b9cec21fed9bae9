//! The mesh controllers: identity, destination, policy, injectors and the viz extension's.
//!
//! Data flows in one direction: a [`source`] reads objects and converts them to
//! [records](mesh_objects::model); the [`index`] stores the records and computes endpoints,
//! profiles and policies without I/O; [`serve`] sends these to proxies over gRPC. [`identity`]
//! issues certificates; trust roots publishes its trust anchors, and [`bootstrap`] creates anchors
//! and issuer. [`daemon`] runs the parts of one process, as configured by [`config`].

pub mod bootstrap;
mod certificate;
pub mod cluster;
pub mod config;
pub mod daemon;
mod heartbeat;
pub mod identity;
pub mod index;
mod injector;
pub mod metrics_api;
pub mod namespace_metadata;
pub mod serve;
pub mod source;
mod status;
mod tap;
mod tap_injector;
mod trust_bundle;
mod validator;
mod web;
mod webhook;
