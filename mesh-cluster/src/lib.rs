//! What the processes beside a cluster's API server share: the controllers (`mesh-controller`) and
//! the viz extension (`mesh-viz`).
//!
//! A [`source`] reads objects from the [API server](api_server) or from directories and converts
//! them to [records](mesh_objects::model). [`webhook`] serves admission reviews, [`prometheus`]
//! queries a Prometheus, [`metadata`] caches the annotations of objects, [`namespace_metadata`] is
//! a command of both programs, [`trust_bundle`] is for the bundles of linked clusters. [`daemon`]
//! runs the parts of one process, whose command line has the [`flags`]; [`calls`] counts its gRPC
//! calls.

pub mod api_server;
pub mod calls;
pub mod certificate;
pub mod daemon;
pub mod flags;
pub mod metadata;
pub mod namespace_metadata;
pub mod program;
pub mod prometheus;
mod random;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod source;
pub mod trust_bundle;
pub mod webhook;
