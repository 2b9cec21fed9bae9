//! Mirrors of worlds: this cluster in memory, the processes that write it, and the objects of the
//! target clusters.

mod federated;
mod gateways;
mod headless;
mod limits;
mod links;
mod mirrors;
mod reports;
mod taken_over;
mod world;
