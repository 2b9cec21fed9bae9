//! The index: computes endpoints, profiles and policies from objects.
//!
//! ```text
//!   source ── Change ──▶ Store ──▶ views: pure functions of the store, recomputed when an object
//! //!                          │       they depend on changed, published when the value changed
//!                          └─────▶ subscribers (gRPC streams) hold a watch::Receiver each
//! ```
//!
//! Nothing here is async or does I/O. A test creates an index, applies objects and reads a
//! receiver. [`DestinationIndex`] serves the destination service, [`PolicyIndex`] the policy
//! service; each process has one of them.

mod candidates;
mod destination;
mod endpoint_views;
mod external_endpoints;
mod membership;
mod placement;
mod pod_endpoints;
mod policy;
mod profile;
mod selection;
mod services;
mod settings;
#[cfg(test)]
pub(crate) mod tests;
mod version;
mod views;

pub use self::{
    destination::{DestinationIndex, EndpointsError, Subscription},
    policy::{InboundKey, PolicyIndex},
    profile::{ProfileError, ProfileKey, ProfileTarget},
    selection::EndpointsKey,
    services::{EndpointSet, ServiceEndpoint},
    settings::DestinationSettings,
    version::{Messages, Version},
};
pub(crate) use self::{
    membership::{Membership, Preference},
    placement::Places,
};
