//! Endpoints of Services whose members are in other clusters, which this one is linked with.
//!
//! ```text
//!   Secrets with credentials ──▶ ClusterWatch ──▶ Clusters: an index for each cluster
//!   a client of the Service  ──▶ RemoteDiscovery ──▶ union of the members' endpoints
//! ```
//!
//! Both networks are flat: clients connect to the pods of the other cluster. A cluster that cannot
//! be reached keeps its last endpoints; proxies find out which of them fail.

mod clusters;
mod discovery;
mod link;
mod union;
mod watch;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    clusters::Clusters,
    discovery::RemoteDiscovery,
    watch::{ClusterWatch, rights},
};
