//! The objects that decide about traffic, as the mesh understands them.
//!
//! [`convert`] reads an object from YAML or JSON and returns its record; [`model`] has the records.
//! The controllers and the command line read objects only through this package, so that an object
//! means the same to both. [`policy`] decides the effect of a set of records. There is no I/O here.

pub mod convert;
pub mod model;
pub mod policy;
