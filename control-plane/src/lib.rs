//! The mesh controllers: identity, destination and policy.
//!
//! One direction only: a [`source`] reads objects and turns them into the records of the [`model`];
//! the [`index`] keeps the records and computes what proxies want to know, without I/O; [`serve`]
//! hands it out over gRPC. [`identity`] stands beside them and issues certificates; trust roots and
//! [`bootstrap`] bring its anchors to the workloads and into being. [`daemon`] joins the pieces
//! that one process needs, as [`config`] says.

pub mod bootstrap;
pub mod cluster;
pub mod config;
mod convert;
pub mod daemon;
pub mod identity;
pub mod index;
mod injector;
pub mod model;
pub mod serve;
pub mod source;
mod trust_roots;
mod webhook;
