//! The index: from objects to what proxies want to know.
//!
//! ```text
//!   source ── Change ──▶ Store ──▶ views: pure functions of the store, recomputed when something
//!                          │       they depend on was touched, published when the value changed
//!                          └─────▶ subscribers (gRPC streams) hold a watch::Receiver each
//! ```
//!
//! Nothing here is async or does I/O. A test makes an index, applies objects and looks at a
//! receiver. [`DestinationIndex`] answers the destination service, [`PolicyIndex`] the policy
//! service; each process runs the one it serves.

#[cfg(test)]
mod agreement;
mod destination;
#[cfg(test)]
mod fixture;
mod inbound;
mod outbound;
mod policy;
mod profile;
mod services;
mod settings;
mod store;
mod views;
mod workloads;

pub use self::{
    destination::{DestinationIndex, EndpointsError, Watched},
    outbound::{OutboundError, OutboundKey},
    policy::{InboundKey, PolicyIndex},
    profile::{ProfileError, ProfileKey},
    services::{EndpointSet, EndpointsKey},
    settings::{DestinationSettings, PolicySettings},
    store::{Store, Touched},
};
