//! Each change, and what it waits for.

use super::*;

const OLD: Anchors = Anchors {
    old: true,
    new: false,
};
const BOTH: Anchors = Anchors {
    old: true,
    new: true,
};
const NEW: Anchors = Anchors {
    old: false,
    new: true,
};

const ORDINARY: Rotation = Rotation {
    is_cross_signed: true,
    is_compromised: false,
};
const COMPROMISED: Rotation = Rotation {
    is_cross_signed: false,
    is_compromised: true,
};
/// As by hand, without a cross-certificate.
const PLAIN: Rotation = Rotation {
    is_cross_signed: false,
    is_compromised: false,
};

fn running(anchors: InUse, certificate: Root) -> Proxy {
    Proxy::Running {
        anchors,
        certificate: Ok(certificate),
    }
}

/// Returns a cluster where all have followed.
fn cluster(anchors: Anchors, issuer: Root) -> Cluster<&'static str> {
    Cluster {
        anchors,
        anchors_age: INJECTION_DELAY,
        delivery: Delivery::Sent,
        issuer,
        has_cross_certificate: issuer == Root::New,
        has_old_keys: issuer == Root::New,
        replicas: vec![Replica {
            name: "identity-0",
            issues: Ok((issuer, CERTIFICATE_IN_FLIGHT)),
        }],
        workloads: vec![Workload {
            name: "web-0",
            starts_with: anchors,
            proxy: running(InUse::Sent, issuer),
        }],
    }
}

/// Returns a cluster with one more workload.
fn with(
    mut cluster: Cluster<&'static str>,
    starts_with: Anchors,
    proxy: Proxy,
) -> Cluster<&'static str> {
    cluster.workloads.push(Workload {
        name: "db-0",
        starts_with,
        proxy,
    });
    cluster
}

fn waits_for(change: Change, name: &'static str, reason: Reason) -> Next<&'static str> {
    let name = (!name.is_empty()).then_some(name);
    Next::Wait(change, vec![Blocker { name, reason }])
}

#[test]
fn changes_follow_each_other_when_all_have_followed() {
    let finished = Cluster {
        has_old_keys: false,
        ..cluster(NEW, Root::New)
    };
    let not_cross_signed = Cluster {
        has_cross_certificate: false,
        ..cluster(BOTH, Root::New)
    };
    for (cluster, change, step) in [
        (cluster(OLD, Root::Old), Change::AddAnchor, Step::Add),
        (cluster(BOTH, Root::Old), Change::SwitchIssuer, Step::Switch),
        (
            not_cross_signed.clone(),
            Change::AppendCrossCertificate,
            Step::Switch,
        ),
        (cluster(BOTH, Root::New), Change::RemoveAnchor, Step::Remove),
        (cluster(NEW, Root::New), Change::DeleteOldKeys, Step::Finish),
        (finished, Change::Finish, Step::Finish),
    ] {
        let found = next(ORDINARY, &[cluster]);
        assert_eq!(found, Next::Change(change));
        assert_eq!(found.step(), step);
    }
    let plain = next(PLAIN, &[not_cross_signed]);
    assert_eq!(plain, Next::Change(Change::RemoveAnchor));
}

#[test]
fn change_waits_for_each_workload_that_would_lose_connections() {
    let both = || cluster(BOTH, Root::Old);
    let switched = || cluster(BOTH, Root::New);
    let removed = || cluster(NEW, Root::New);
    let finishing = || Cluster {
        has_old_keys: false,
        ..removed()
    };
    let late = || running(InUse::Late, Root::Old);
    let late_new = || running(InUse::Late, Root::New);
    let kept = || running(InUse::Kept, Root::Old);
    let kept_new = || running(InUse::Kept, Root::New);
    let sent_new = || running(InUse::Sent, Root::New);
    let unknown = || Proxy::Unknown("refused".to_owned());
    let no_certificate = || Proxy::Running {
        anchors: InUse::Sent,
        certificate: Err("refused".to_owned()),
    };
    let refused = || Reason::Unknown("refused".to_owned());
    let go = |change| (change, None);
    let wait = |change, reason| (change, Some(reason));
    let (switch, remove) = (Change::SwitchIssuer, Change::RemoveAnchor);
    let (delete, finish) = (Change::DeleteOldKeys, Change::Finish);
    #[rustfmt::skip] // a table, one row a line
    let table = [
        // Until the issuer is replaced.
        (ORDINARY, with(both(), OLD, late()), wait(switch, Reason::Late)),
        (ORDINARY, with(both(), OLD, unknown()), wait(switch, refused())),
        (ORDINARY, with(both(), OLD, running(InUse::Sent, Root::Old)), go(switch)),
        (ORDINARY, with(both(), OLD, kept()), go(switch)),
        (PLAIN, with(both(), OLD, kept()), wait(switch, Reason::KeepsWithoutNew)),
        (PLAIN, with(both(), BOTH, kept()), go(switch)),
        (ORDINARY, with(both(), Anchors::default(), kept()), wait(switch, Reason::KeepsWithoutNew)),
        (ORDINARY, with(both(), OLD, Proxy::NotRunning), go(switch)),
        (COMPROMISED, with(both(), OLD, Proxy::NotRunning), wait(switch, Reason::StartsWithoutNew)),
        (COMPROMISED, with(both(), OLD, running(InUse::Sent, Root::Old)), go(switch)),
        // Until the old anchor is removed.
        (ORDINARY, with(switched(), BOTH, running(InUse::Sent, Root::Old)), wait(remove, Reason::Certificate)),
        (ORDINARY, with(switched(), BOTH, running(InUse::Sent, Root::Other)), wait(remove, Reason::Certificate)),
        (ORDINARY, with(switched(), BOTH, late_new()), wait(remove, Reason::Late)),
        (ORDINARY, with(switched(), BOTH, no_certificate()), wait(remove, refused())),
        (ORDINARY, with(both(), BOTH, no_certificate()), go(switch)),
        (ORDINARY, with(switched(), OLD, kept()), wait(remove, Reason::Certificate)),
        (ORDINARY, with(switched(), OLD, kept_new()), go(remove)),
        (PLAIN, with(switched(), OLD, kept_new()), wait(remove, Reason::KeepsWithoutNew)),
        (ORDINARY, with(switched(), OLD, Proxy::NotRunning), go(remove)),
        // Until the rotation can no longer be aborted.
        (ORDINARY, with(removed(), BOTH, late_new()), wait(delete, Reason::Late)),
        (ORDINARY, with(removed(), BOTH, unknown()), wait(delete, refused())),
        (ORDINARY, with(removed(), OLD, sent_new()), go(delete)),
        // Until it ends.
        (ORDINARY, with(finishing(), OLD, sent_new()), wait(finish, Reason::StartsWithoutNew)),
        (ORDINARY, with(finishing(), OLD, Proxy::NotRunning), wait(finish, Reason::StartsWithoutNew)),
        (ORDINARY, with(finishing(), BOTH, sent_new()), go(finish)),
        (COMPROMISED, with(finishing(), BOTH, sent_new()), wait(finish, Reason::StartsWithOld)),
        (COMPROMISED, with(finishing(), BOTH, Proxy::NotRunning), wait(finish, Reason::StartsWithOld)),
        (ORDINARY, with(finishing(), OLD, kept_new()), wait(finish, Reason::KeepsWithoutNew)),
        (ORDINARY, with(finishing(), BOTH, kept_new()), wait(finish, Reason::KeepsOld)),
        (ORDINARY, with(finishing(), NEW, kept_new()), go(finish)),
    ];
    for (rotation, cluster, (change, reason)) in table {
        let expected = match reason {
            Some(reason) => waits_for(change, "db-0", reason),
            None => Next::Change(change),
        };
        assert_eq!(
            next(rotation, std::slice::from_ref(&cluster)),
            expected,
            "{cluster:?}"
        );
    }
}

#[test]
fn old_anchor_stays_while_a_replica_issues_by_the_old_issuer() {
    let seconds = CERTIFICATE_IN_FLIGHT;
    for (issues, reason) in [
        (Ok((Root::New, seconds)), None),
        (Ok((Root::New, seconds - 1)), Some(Reason::Replica)),
        (Ok((Root::Old, 9 * seconds)), Some(Reason::Replica)),
        (
            Err("closed".to_owned()),
            Some(Reason::Unknown("closed".to_owned())),
        ),
    ] {
        let mut cluster = cluster(BOTH, Root::New);
        cluster.replicas.push(Replica {
            name: "identity-1",
            issues,
        });
        let expected = match reason {
            Some(reason) => waits_for(Change::RemoveAnchor, "identity-1", reason),
            None => Next::Change(Change::RemoveAnchor),
        };
        assert_eq!(next(ORDINARY, &[cluster]), expected);
    }
}

#[test]
fn every_change_waits_until_the_identity_service_sends_the_anchors() {
    for (anchors, issuer, change) in [
        (BOTH, Root::Old, Change::SwitchIssuer),
        (BOTH, Root::New, Change::RemoveAnchor),
        (NEW, Root::New, Change::DeleteOldKeys),
    ] {
        for (delivery, reason) in [
            (Delivery::NotSent, Reason::NotSent),
            (Delivery::Off, Reason::NotPublished),
        ] {
            let cluster = Cluster {
                delivery,
                ..cluster(anchors, issuer)
            };
            assert_eq!(
                next(ORDINARY, &[cluster]),
                waits_for(change, "", reason.clone())
            );
        }
    }
}

#[test]
fn compromised_anchor_waits_for_the_injector_and_an_ordinary_one_does_not() {
    for (anchors, issuer, change) in [
        (BOTH, Root::Old, Change::SwitchIssuer),
        (NEW, Root::New, Change::Finish),
    ] {
        let recent = Cluster {
            anchors_age: INJECTION_DELAY - 1,
            has_old_keys: false,
            ..cluster(anchors, issuer)
        };
        let waits = waits_for(change, "", Reason::RecentAnchors);
        assert_eq!(next(COMPROMISED, std::slice::from_ref(&recent)), waits);
        assert_eq!(next(ORDINARY, &[recent]), Next::Change(change));
    }
}

#[test]
fn issuer_of_another_anchor_is_not_replaced() {
    let foreign = cluster(BOTH, Root::Other);
    let expected = waits_for(Change::SwitchIssuer, "", Reason::ForeignIssuer);
    assert_eq!(next(ORDINARY, &[foreign]), expected);
}

#[test]
fn no_cluster_is_a_step_ahead_of_another() {
    let late = with(
        cluster(BOTH, Root::Old),
        OLD,
        running(InUse::Late, Root::Old),
    );
    for (clusters, expected) in [
        (
            [cluster(BOTH, Root::Old), cluster(OLD, Root::Old)],
            Next::Change(Change::AddAnchor),
        ),
        (
            [cluster(BOTH, Root::Old), late],
            waits_for(Change::SwitchIssuer, "db-0", Reason::Late),
        ),
        (
            [cluster(BOTH, Root::New), cluster(BOTH, Root::Old)],
            Next::Change(Change::SwitchIssuer),
        ),
        (
            [cluster(NEW, Root::New), cluster(BOTH, Root::New)],
            Next::Change(Change::RemoveAnchor),
        ),
    ] {
        assert_eq!(next(ORDINARY, &clusters), expected);
    }
}

#[test]
fn step_of_a_change_that_waits_is_the_one_before() {
    for (change, reason, step) in [
        (Change::SwitchIssuer, Reason::Late, Step::Add),
        (Change::RemoveAnchor, Reason::Late, Step::Switch),
        (Change::DeleteOldKeys, Reason::Late, Step::Remove),
        (Change::Finish, Reason::Late, Step::Remove),
        (Change::Finish, Reason::NotSent, Step::Remove),
        (Change::Finish, Reason::StartsWithoutNew, Step::Finish),
    ] {
        assert_eq!(waits_for(change, "a", reason).step(), step);
    }
    assert!(Step::ALL.is_sorted());
}
