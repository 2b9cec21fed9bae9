//! What the command does next, a pure function of the rotation and the flags.

use mesh_core::anchor_rotation::{Change, Next, Step};

use crate::rotation::InProgress;
use crate::rotation::owner::Owner;

/// How far the command goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// It changes nothing.
    pub(super) is_status: bool,
    /// It makes one change.
    pub(super) is_single: bool,
    /// The last step, which it completes.
    pub(super) last: Option<Step>,
}

/// The writers of the objects, if they are other programs.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    pub(super) anchors: Option<Owner>,
    pub(super) issuer: Option<Owner>,
}

/// What the command does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Stores a new rotation.
    Start,
    Make(Change),
    /// Waits for workloads, or stops if it may not wait any longer.
    Wait,
    /// The goal is reached, or only shown.
    Stop,
    /// Another program has to make the change.
    LeaveTo(Change),
}

impl Owners {
    /// Returns the program that has to make a change, if it is another one.
    pub(super) fn of(&self, change: Change) -> Option<&Owner> {
        match change {
            Change::AddAnchor | Change::RemoveAnchor => self.anchors.as_ref(),
            Change::SwitchIssuer
            | Change::AppendCrossCertificate
            | Change::DeleteOldKeys
            | Change::Finish => self.issuer.as_ref(),
        }
    }
}

/// Returns the next action. `made` says whether this command has made a change already.
pub(super) fn action(
    goal: Goal,
    found: Option<&InProgress>,
    owners: &Owners,
    made: bool,
) -> Action {
    let Some(found) = found else {
        // A rotation that has ended meanwhile is not begun again.
        return if goal.is_status || made {
            Action::Stop
        } else {
            Action::Start
        };
    };
    let last = goal.last.unwrap_or(Step::Finish);
    match &found.next {
        _ if goal.is_single && made => Action::Stop,
        next if next.step() > last => Action::Stop,
        Next::Wait(..) => Action::Wait,
        // Another program or command has to take the step.
        Next::Change(_) if goal.is_status && goal.last.is_some() => Action::Wait,
        Next::Change(_) if goal.is_status => Action::Stop,
        Next::Change(change) if found.stored.is_none() || owners.of(*change).is_some() => {
            Action::LeaveTo(*change)
        }
        Next::Change(change) => Action::Make(*change),
    }
}

#[cfg(test)]
mod tests;
