//! What commands are about, without a connection: scopes, pods, resources in the notation of
//! kubectl, and reports of node agents. Clients, [`crate::cluster`], [`crate::node`] and
//! [`crate::mesh`] build on it.

pub(crate) mod agent;
pub(crate) mod pod;
pub(crate) mod resource;
pub(crate) mod scope;
pub(crate) mod tap_state;

pub(crate) use self::{agent::AgentReport, pod::MeshPod, scope::Scope, tap_state::TapState};
