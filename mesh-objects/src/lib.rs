//! The objects that decide about traffic, as the mesh understands them.
//!
//! [`convert`] reads an object from YAML or JSON and returns its record; [`model`] has the records.
//! The controllers and the command line read objects only through this package, so that an object
//! means the same to both. [`policy`] decides the effect of a set of records, [`inventory`] which
//! pods belong to an object, and which of them a tap reaches. There is no I/O here.

pub mod convert;
pub mod inventory;
pub mod model;
pub mod policy;
pub mod store;
