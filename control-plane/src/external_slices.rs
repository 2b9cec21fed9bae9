//! Writes the EndpointSlices of ExternalWorkloads, as in Linkerd.
//!
//! ```text
//!   source ── Change ──▶ ExternalSlices ──▶ desired_slices (pure) ──▶ Writer
//! ```
//!
//! Kubernetes selects pods alone. With slices of this controller, everything that reads slices
//! finds workloads outside of the cluster too: the destination controller, kube-proxy, CoreDNS,
//! ingress controllers.

mod desired;
mod manifest;
mod objects;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    desired::is_accepted,
    objects::{ExternalSlices, rights},
};
