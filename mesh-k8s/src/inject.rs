//! The pod patch.
