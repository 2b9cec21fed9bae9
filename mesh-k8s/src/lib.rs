//! Kubernetes objects the mesh reads and writes, and the pod patch.
//!
//! Kubernetes structs stay in this crate and in the code that reads objects: the controllers, the
//! local node and the command line read objects through these types and accessors and convert them
//! to domain types. [`inject`] computes the pod patch as a pure function. The admission webhook,
//! `meshctl inject` and the local node share it, so that all of them patch a pod in the same way.

#![warn(missing_docs)]

mod connection_routes;
pub mod crd;
pub mod denied_identities;
pub mod foreign_domain;
pub mod heartbeat;
pub mod inject;
pub mod invalid;
pub mod kinds;
pub mod known_annotations;
pub mod machine;
pub mod manifest;
pub mod pod;
pub mod profile;
pub mod select;
pub mod spelling;
pub mod traffic_annotations;
pub mod trust;
pub mod validate;
pub mod values;
