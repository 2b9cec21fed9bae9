//! Kubernetes objects the mesh reads and writes, and the pod patch.
//!
//! Kubernetes structs end here: the watching code of the controllers, the local node and the
//! command line read objects through this crate's types and accessors and hand domain types on.
//! [`inject`] is the pod patch as a pure function, shared by the admission webhook,
//! `meshctl inject` and the local node, so that a pod looks the same wherever it was patched.

pub mod crd;
pub mod inject;
pub mod kinds;
pub mod manifest;
pub mod pod;
pub mod select;
pub mod values;
