//! The service mirror: writes mirrors of another cluster's Services, and federated Services with
//! members in several, as in Linkerd.
//!
//! ```text
//!   Links, Services, Endpoints, Namespaces of this cluster ─┐
//!   Services and EndpointSlices of the target cluster ──────┼▶ Mirrors ──▶ plan (pure) ──▶ Writer
//!   addresses of its gateway, and whether that is alive ────┘      └──▶ outcomes: status, events
//! ```
//!
//! A process serves one Link. The target cluster may be unreachable or refuse the credentials at
//! any time: nothing is written until all of its objects were read once, and after that the last
//! known ones count.

mod connection;
mod content;
mod events;
mod federated;
mod follow;
mod gateway;
mod limits;
mod links;
mod objects;
mod packed;
mod plan;
mod planned;
mod probe;
mod publisher;
mod records;
mod rights;
mod status;
mod target;
mod written;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    connection::Connections,
    events::Reporter,
    follow::follow_local,
    gateway::{GatewayTask, ResolveError, SystemResolver},
    links::LinkTask,
    objects::{Mirrors, Settings},
    probe::ProbeTask,
    publisher::Publisher,
    rights::{of_link, of_local_members},
    target::Target,
    written::FIELD_MANAGER,
};
