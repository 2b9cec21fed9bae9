//! Whole meshes: real programs as pods of a local node, two proxies between them.

mod clients;
mod dashboard;
mod faults;
pub(crate) mod manifests;
mod rolling;
mod tap;
mod viz;
mod why;
