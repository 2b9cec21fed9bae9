//! The next action for each state of a rotation and each flag.

use mesh_cluster::certificate::authority::CertificateAndKey;
use mesh_core::anchor_rotation::{Blocker, Reason};
use mesh_k8s::kinds::ObjectMeta;

use super::*;
use crate::rotation::stored::Stored;
use crate::rotation::{Direction, Roots, Subject};

const ALL: Goal = Goal {
    is_status: false,
    is_single: false,
    last: None,
};
const ONE: Goal = Goal {
    is_single: true,
    ..ALL
};
const SHOW: Goal = Goal {
    is_status: true,
    ..ALL
};

fn to(last: Step) -> Goal {
    Goal {
        last: Some(last),
        ..ALL
    }
}

fn gate(last: Step) -> Goal {
    Goal {
        last: Some(last),
        ..SHOW
    }
}

fn wait(change: Change) -> Next<Subject> {
    let blocker = Blocker {
        name: None,
        reason: Reason::NotSent,
    };
    Next::Wait(change, vec![blocker])
}

fn rotation(next: Next<Subject>, is_stored: bool) -> InProgress {
    let empty = || CertificateAndKey {
        certificate: String::new(),
        key: String::new(),
    };
    let stored = Stored {
        meta: ObjectMeta::default(),
        direction: Direction::Forward,
        is_compromised: false,
        old_anchors: String::new(),
        anchor: empty(),
        issuer: empty(),
        cross_certificate: None,
        replaced: None,
    };
    InProgress {
        stored: is_stored.then_some(stored),
        roots: Roots {
            old: Vec::new(),
            new: Vec::new(),
            direction: Direction::Forward,
        },
        is_compromised: false,
        next,
        subjects: Vec::new(),
        is_partial: false,
    }
}

#[test]
fn change_is_made_up_to_the_goal() {
    let (add, switch, remove) = (
        Change::AddAnchor,
        Change::SwitchIssuer,
        Change::RemoveAnchor,
    );
    let now = Next::Change;
    for (goal, next, made, expected) in [
        (ALL, now(add), false, Action::Make(add)),
        (ALL, now(remove), true, Action::Make(remove)),
        (ALL, wait(switch), true, Action::Wait),
        (ONE, now(add), false, Action::Make(add)),
        (ONE, now(switch), true, Action::Stop),
        (ONE, wait(switch), true, Action::Stop),
        (ONE, wait(switch), false, Action::Wait),
        (to(Step::Start), now(add), true, Action::Stop),
        (to(Step::Add), now(add), false, Action::Make(add)),
        // Both anchors are not everywhere yet.
        (to(Step::Add), wait(switch), true, Action::Wait),
        (to(Step::Add), now(switch), true, Action::Stop),
        (to(Step::Add), wait(remove), false, Action::Stop),
        (to(Step::Switch), wait(remove), false, Action::Wait),
        (to(Step::Switch), now(remove), false, Action::Stop),
        (SHOW, now(add), false, Action::Stop),
        (SHOW, wait(switch), false, Action::Wait),
        (gate(Step::Add), now(add), false, Action::Wait),
        (gate(Step::Add), wait(switch), false, Action::Wait),
        (gate(Step::Add), now(switch), false, Action::Stop),
    ] {
        let found = rotation(next, true);
        let found_action = action(goal, Some(&found), &Owners::default(), made);
        assert_eq!(found_action, expected, "{goal:?} {:?} {made}", found.next);
    }
}

#[test]
fn ended_rotation_is_not_begun_again() {
    let none = Owners::default();
    assert_eq!(action(ALL, None, &none, false), Action::Start);
    assert_eq!(action(ALL, None, &none, true), Action::Stop);
    assert_eq!(action(SHOW, None, &none, false), Action::Stop);
}

#[test]
fn change_of_an_object_that_another_program_writes_is_left_to_it() {
    let owner = Some(Owner::CertManager("issuer".to_owned()));
    let owners = Owners {
        anchors: None,
        issuer: owner,
    };
    let (add, switch) = (Change::AddAnchor, Change::SwitchIssuer);
    for (next, is_stored, expected) in [
        (add, true, Action::Make(add)),
        (switch, true, Action::LeaveTo(switch)),
        // Without a stored anchor this command can only follow.
        (add, false, Action::LeaveTo(add)),
    ] {
        let found = rotation(Next::Change(next), is_stored);
        assert_eq!(action(ALL, Some(&found), &owners, false), expected);
    }
}
