//! Decides from the DaemonSets of agents whether a stopping agent is uninstalled, only restarted,
//! or replaced by agents in another namespace: the first deletes its DaemonSet, the second keeps
//! it, and the third deletes it when another one exists. Without I/O; a model of the protocol
//! compiles this file too (models/tests/handover.rs).

use std::collections::BTreeMap;
use std::fmt;

use mesh_core::annotation::CONTROL_PLANE_COMPONENT;

/// More DaemonSets of agents than this in a cluster are not kept; an agent that is told to go then
/// assumes a successor. A mesh has one, and two while it moves.
pub(crate) const MAX_SETS: usize = 64;

/// The DaemonSet of an agent. Its successors have the same name, and the label of the component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSetRef {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum OwnState {
    #[default]
    NotSeen,
    Present,
    /// Deleted or marked for deletion, and it existed before.
    Deleting,
}

/// The DaemonSets of agents, as the watch has reported them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct WatchState {
    pub(crate) own: OwnState,
    pub(crate) sets: Sets,
    /// The DaemonSets of a list that is not complete.
    pub(crate) listing: Sets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SetState {
    Present,
    /// Agents of another namespace replace its pods.
    Moved,
    Deleting,
}

/// The DaemonSets of agents in all namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sets {
    by_namespace: BTreeMap<String, SetState>,
    has_more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QueryResult {
    Found(Sets),
    /// Request denied, or no response.
    Unknown(String),
}

/// What a stopping agent does with the mesh on its node, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownAction {
    /// Leave everything in place: pods stay redirected, and the next agent adopts them.
    Keep(String),
    Uninstall(String),
}

pub(crate) fn label_selector() -> String {
    format!("{CONTROL_PLANE_COMPONENT}=mesh-agent")
}

impl WatchState {
    /// Applies a change of the DaemonSets.
    pub(crate) fn see(&mut self, own: &DaemonSetRef, change: impl FnOnce(&mut Sets)) {
        change(&mut self.sets);
        self.own = match self.sets.by_namespace.get(&own.namespace) {
            Some(SetState::Present | SetState::Moved) => OwnState::Present,
            Some(SetState::Deleting) => OwnState::Deleting,
            // A DaemonSet that never existed may belong to another installation, or be misspelt.
            None if self.own == OwnState::NotSeen => OwnState::NotSeen,
            None => OwnState::Deleting,
        };
    }
}

impl Sets {
    pub(crate) fn insert(&mut self, namespace: &str, state: SetState) {
        if self.by_namespace.len() < MAX_SETS || self.by_namespace.contains_key(namespace) {
            self.by_namespace.insert(namespace.to_owned(), state);
        } else {
            self.has_more = true;
        }
    }

    pub(crate) fn remove(&mut self, namespace: &str) {
        self.by_namespace.remove(namespace);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_namespace.len()
    }

    /// Returns the DaemonSet that remains when the own one is deleted.
    fn successor(&self, own: &DaemonSetRef) -> Option<String> {
        let mut others = self.by_namespace.iter();
        let found = others.find(|(namespace, state)| {
            **namespace != own.namespace && **state == SetState::Present
        });
        match found {
            Some((namespace, _)) => Some(format!("DaemonSet {namespace}/{}", own.name)),
            None => self
                .has_more
                .then(|| format!("one of more than {MAX_SETS} DaemonSets {}", own.name)),
        }
    }
}

/// The costly error is to uninstall when a restart or a replacement was meant: every pod of the
/// node would then be in clear text. The other error leaves a plugin that still works.
pub(crate) fn decide(
    state: &WatchState,
    result: &QueryResult,
    own: &DaemonSetRef,
) -> ShutdownAction {
    let (sets, end) = match result {
        QueryResult::Found(sets) => match sets.by_namespace.get(&own.namespace) {
            Some(SetState::Present) => return ShutdownAction::Keep(format!("{own} exists")),
            Some(SetState::Moved) => {
                return ShutdownAction::Keep(format!("the agents of {own} have moved"));
            }
            Some(SetState::Deleting) => (sets, "is being deleted"),
            None if state.own == OwnState::NotSeen => {
                return ShutdownAction::Keep(format!(
                    "{own} was never seen; check MESH_AGENT_NAMESPACE and MESH_AGENT_DAEMONSET, and its label {}",
                    label_selector()
                ));
            }
            None => (sets, "was deleted"),
        },
        QueryResult::Unknown(_) if state.own == OwnState::Deleting => (&state.sets, "was deleted"),
        QueryResult::Unknown(why) => {
            return ShutdownAction::Keep(format!(
                "it is unknown whether {own} still exists ({why}); if the mesh was uninstalled, run mesh-agent uninstall on this node"
            ));
        }
    };
    match sets.successor(own) {
        Some(successor) => {
            ShutdownAction::Keep(format!("{own} {end}, and {successor} replaces it"))
        }
        None => ShutdownAction::Uninstall(format!("{own} {end}")),
    }
}

impl fmt::Display for DaemonSetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DaemonSet {}/{}", self.namespace, self.name)
    }
}
