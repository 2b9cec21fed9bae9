//! The controllers as processes, with real directories, gRPC clients and signals.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod denied_identities;
mod destination;
mod heartbeat;
mod identity;
mod lifecycle;
#[path = "../shared/manifests.rs"]
mod manifests;
#[path = "../shared/messages.rs"]
mod messages;
mod policy;
mod service_mirror;
mod trust_bundles;
