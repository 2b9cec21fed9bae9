//! Bundles of trust domains, which clusters exchange by the SPIFFE standard of federation
//! (docs/adr/0228): their [`document`], and the [`client`] of their servers.
//!
//! The identity service fetches the bundles of linked clusters and serves its own.

pub mod client;
pub mod document;
pub mod tls;
