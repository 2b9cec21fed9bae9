//! A model of the rotation of trust anchors: an operator, the replicas of the identity service, the
//! record of numbers, and proxies (docs/adr/0173, 0174, 0226). The decisions are `mesh_core`'s,
//! also the operator's.
//!
//! Every order of their steps is checked, with replicas whose files are late, a rotation that is
//! aborted and begun again, and a record that is lost or restored from a backup:
//!
//! * Two proxies that have certificates can connect to each other at every step.
//! * A proxy never takes a bundle with a lower number than the one it has.
//! * A higher number has anchors that the operator has written later.
//! * A container that starts again with the anchors of its environment can get a certificate.

use std::time::{Duration, SystemTime};

use mesh_core::anchor_rotation::{
    Anchors, Change, Cluster, Delivery, InUse, Next, Proxy as Follower, Replica as Issuing,
    Root as Signed, Rotation as Properties, Workload, next,
};
use mesh_core::trust_bundle::{PublishStep, TrustBundle, publish_step};
use mesh_core::trust_domain::ForeignAnchors;
use mesh_models::violated;
use stateright::{Model, Property};

/// The anchors that verify a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Root {
    Old,
    New,
}

/// What the model adds to or takes from the protocol.
#[derive(Clone, Copy, Debug)]
struct Rotation {
    /// Which part has every order of steps. Both together have too many.
    part: Part,
    /// The operator makes a change when `meshctl identity rotate` does, not before.
    operator_waits: bool,
    /// The operator knows the issuer of each replica.
    operator_sees_replicas: bool,
    /// A replica reads the record before the source.
    record_is_read_first: bool,
    /// The issuer's chain has a cross-certificate.
    is_cross_signed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Replicas that number the anchors: each request is a step. Without proxies.
    Numbers,
    /// Proxies that receive them, from replicas that send two requests and decide at once.
    Connections,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction {
    /// To the new anchor.
    Forward,
    /// The rotation was aborted.
    Back,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// In seconds. Each change of an operator takes at least one.
    time: u64,
    /// The anchors that the operator has written, and how often.
    source: &'static str,
    source_version: u8,
    /// The root of the issuer that the operator has written.
    issuer: Root,
    direction: Direction,
    /// The operator has aborted a rotation before.
    was_aborted: bool,
    /// The record was lost or restored, or a container has started again.
    had_fault: bool,
    record: Option<TrustBundle>,
    record_version: u8,
    /// Each number, with the version of the source whose anchors it has, in the order of writes.
    numbered: Vec<(u64, u8)>,
    replicas: [Replica; 2],
    proxies: [Proxy; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    /// The files, which the kubelet updates together.
    anchors: &'static str,
    issuer: Root,
    /// The bundle that it sends.
    sent: Option<TrustBundle>,
    reading: Reading,
}

/// How far a replica is with the two requests before its decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Reading {
    Idle,
    Record(Option<TrustBundle>, u8),
    Source(&'static str, u8),
    Both(Option<TrustBundle>, u8, &'static str, u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Proxy {
    anchors: &'static str,
    bundle: Option<TrustBundle>,
    /// The highest number that it has taken since its start.
    highest: u64,
    /// The root of its certificate; `None` after a start.
    certificate: Option<Root>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The operator writes both anchors or one of them.
    Anchors(&'static str),
    /// The operator replaces the issuer.
    Issuer(Root),
    /// The operator aborts the rotation.
    Abort,
    /// The aborted rotation ends.
    End,
    LoseRecord,
    /// Restores the first record.
    RestoreRecord,
    /// The kubelet updates the files of a replica.
    Files(usize),
    /// A replica sends its next request to the API server, or decides.
    Step(usize),
    /// A proxy receives the bundle of a replica.
    Receive(usize, usize),
    /// A proxy gets a certificate from a replica.
    Certify(usize, usize),
    /// The container of a proxy starts again.
    Restart(usize),
}

const OLD: &str = "old";
const BOTH: &str = "old new";
const NEW: &str = "new";

/// The number of the first bundle.
const START: u64 = 100;

impl Rotation {
    const PROTOCOL: Self = Self {
        part: Part::Connections,
        operator_waits: true,
        operator_sees_replicas: true,
        record_is_read_first: true,
        is_cross_signed: true,
    };

    /// Whether a proxy with these anchors accepts a certificate of this root.
    fn accepts(self, anchors: &str, root: Root) -> bool {
        match root {
            Root::Old => anchors != NEW,
            Root::New => anchors != OLD || self.is_cross_signed,
        }
    }

    /// The next steps of the operator.
    fn operate(self, state: &State, actions: &mut Vec<Action>) {
        // The record of numbers has to stand every order of changes.
        let waits = self.operator_waits && self.part == Part::Connections;
        let (target, only) = match state.direction {
            Direction::Forward => (Root::New, NEW),
            Direction::Back => (Root::Old, OLD),
        };
        let is_forward = state.direction == Direction::Forward;
        let properties = Properties {
            is_cross_signed: is_forward && self.is_cross_signed,
            is_compromised: false,
        };
        let change = match next(properties, &[self.observe(state, target)]) {
            Next::Wait(..) if waits => None,
            Next::Change(change) | Next::Wait(change, _) => Some(change),
        };
        match change {
            Some(Change::AddAnchor) => actions.push(Action::Anchors(BOTH)),
            Some(Change::SwitchIssuer) => actions.push(Action::Issuer(target)),
            Some(Change::RemoveAnchor) => actions.push(Action::Anchors(only)),
            Some(Change::Finish) if !is_forward => actions.push(Action::End),
            _ => {}
        }
        // The issuer is not a part of numbers.
        let can_abort = self.part == Part::Connections || state.issuer == Root::Old;
        if is_forward && !state.was_aborted && state.source == BOTH && can_abort {
            actions.push(Action::Abort);
        }
    }

    /// Returns what the operator sees of a rotation to this root.
    fn observe(self, state: &State, target: Root) -> Cluster<usize> {
        let signed = |root: Root| {
            if root == target {
                Signed::New
            } else {
                Signed::Old
            }
        };
        let relative = |anchors: &str| {
            let (old, new) = (anchors != NEW, anchors != OLD);
            match target {
                Root::New => Anchors { old, new },
                Root::Old => Anchors { old: new, new: old },
            }
        };
        let is_sent = |record: &TrustBundle| record.anchors == state.source;
        let workload = |(name, proxy): (usize, &Proxy)| Workload {
            name,
            starts_with: relative(OLD),
            proxy: match proxy.certificate {
                Some(root) => Follower::Running {
                    anchors: if proxy.bundle == state.record {
                        InUse::Sent
                    } else {
                        InUse::Late
                    },
                    certificate: Ok(signed(root)),
                },
                None => Follower::Unknown("no certificate".to_owned()),
            },
        };
        let proxies = match self.part {
            Part::Numbers => &[],
            Part::Connections => &state.proxies[..],
        };
        let replicas = if self.operator_sees_replicas {
            &state.replicas[..]
        } else {
            &[]
        };
        Cluster {
            anchors: relative(state.source),
            anchors_age: u64::MAX,
            delivery: if state.record.as_ref().is_some_and(is_sent) {
                Delivery::Sent
            } else {
                Delivery::NotSent
            },
            issuer: signed(state.issuer),
            has_cross_certificate: self.is_cross_signed,
            has_old_keys: false,
            replicas: replicas
                .iter()
                .enumerate()
                .map(|(name, replica)| Issuing {
                    name,
                    issues: Ok((signed(replica.issuer), u64::MAX)),
                })
                .collect(),
            workloads: proxies.iter().enumerate().map(workload).collect(),
        }
    }

    fn read(self, state: &mut State, replica: usize) {
        let record = || (state.record.clone(), state.record_version);
        let source = (state.source, state.source_version);
        let reading = match state.replicas[replica].reading.clone() {
            Reading::Idle if self.record_is_read_first => {
                let (record, version) = record();
                Reading::Record(record, version)
            }
            Reading::Idle => Reading::Source(source.0, source.1),
            Reading::Record(record, version) => Reading::Both(record, version, source.0, source.1),
            Reading::Source(source, of) => {
                let (record, version) = record();
                Reading::Both(record, version, source, of)
            }
            Reading::Both(last, version, source, of) => {
                decide(self.part, state, replica, (last, version), (source, of));
                Reading::Idle
            }
        };
        state.replicas[replica].reading = reading;
    }
}

/// Numbers the anchors as a replica does after both requests.
fn decide(
    part: Part,
    state: &mut State,
    replica: usize,
    (last, version): (Option<TrustBundle>, u8),
    (source, source_version): (&str, u8),
) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(state.time);
    let verified = state.replicas[replica].anchors;
    match publish_step(
        last,
        Some(source),
        verified,
        &ForeignAnchors::new(),
        None,
        now,
    ) {
        PublishStep::Send(bundle) => state.replicas[replica].sent = Some(bundle),
        PublishStep::Write(bundle) => {
            // The write names the version that was read.
            if version == state.record_version {
                if part == Part::Numbers {
                    state.numbered.push((bundle.number, source_version));
                }
                state.record = Some(bundle.clone());
                state.record_version += 1;
                state.replicas[replica].sent = Some(bundle);
            }
        }
        PublishStep::Wait => {}
    }
}

fn text(anchors: &str) -> &'static str {
    [OLD, BOTH, NEW]
        .into_iter()
        .find(|it| *it == anchors)
        .unwrap_or(OLD)
}

impl Model for Rotation {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let bundle = TrustBundle {
            number: START,
            anchors: OLD.to_owned(),
            foreign: ForeignAnchors::new(),
            denied: None,
        };
        let replica = Replica {
            anchors: OLD,
            issuer: Root::Old,
            sent: Some(bundle.clone()),
            reading: Reading::Idle,
        };
        let proxy = Proxy {
            anchors: OLD,
            bundle: Some(bundle.clone()),
            highest: START,
            certificate: Some(Root::Old),
        };
        vec![State {
            time: START,
            source: OLD,
            source_version: 0,
            issuer: Root::Old,
            direction: Direction::Forward,
            was_aborted: false,
            had_fault: false,
            record: Some(bundle),
            record_version: 0,
            numbered: vec![(START, 0)],
            replicas: [replica.clone(), replica],
            proxies: [proxy.clone(), proxy],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.operate(state, actions);
        if !state.had_fault {
            actions.extend([Action::LoseRecord, Action::RestoreRecord]);
        }
        for (at, replica) in state.replicas.iter().enumerate() {
            // The service does not use anchors that do not verify its issuer.
            let is_verified = match state.issuer {
                Root::Old => state.source != NEW,
                Root::New => state.source != OLD,
            };
            if is_verified && (replica.anchors, replica.issuer) != (state.source, state.issuer) {
                actions.push(Action::Files(at));
            }
            actions.push(Action::Step(at));
            if self.part == Part::Numbers {
                continue;
            }
            for (of, proxy) in state.proxies.iter().enumerate() {
                if !self.accepts(proxy.anchors, replica.issuer) {
                    continue;
                }
                if replica.sent.is_some() && proxy.certificate.is_some() {
                    actions.push(Action::Receive(of, at));
                }
                actions.push(Action::Certify(of, at));
            }
        }
        if self.part == Part::Connections && !state.had_fault {
            // The proxies are alike.
            actions.push(Action::Restart(0));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Anchors(anchors) => {
                state.time += 1;
                state.source = anchors;
                state.source_version += 1;
            }
            Action::Issuer(root) => {
                state.time += 1;
                state.issuer = root;
            }
            Action::Abort => {
                state.direction = Direction::Back;
                state.was_aborted = true;
            }
            Action::End => state.direction = Direction::Forward,
            Action::LoseRecord | Action::RestoreRecord => {
                state.time += 1;
                state.had_fault = true;
                state.record_version += 1;
                let first = TrustBundle {
                    number: START,
                    anchors: OLD.to_owned(),
                    foreign: ForeignAnchors::new(),
                    denied: None,
                };
                state.record = (action == Action::RestoreRecord).then_some(first);
            }
            Action::Files(replica) => {
                let replica = &mut state.replicas[replica];
                (replica.anchors, replica.issuer) = (last.source, last.issuer);
            }
            Action::Step(replica) => {
                let requests = match self.part {
                    Part::Numbers => 1,
                    Part::Connections => 3,
                };
                (0..requests).for_each(|_| self.read(&mut state, replica));
            }
            Action::Receive(proxy, replica) => {
                let bundle = last.replicas[replica].sent.clone()?;
                let proxy = &mut state.proxies[proxy];
                if bundle.replaces(proxy.bundle.as_ref()) == Ok(true) {
                    proxy.highest = proxy.highest.max(bundle.number);
                    proxy.anchors = text(&bundle.anchors);
                    proxy.bundle = Some(bundle);
                }
            }
            Action::Certify(proxy, replica) => {
                state.proxies[proxy].certificate = Some(last.replicas[replica].issuer);
            }
            Action::Restart(proxy) => {
                state.proxies[proxy] = Proxy {
                    anchors: OLD,
                    bundle: None,
                    highest: 0,
                    certificate: None,
                };
                state.had_fault = true;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "proxies can connect to each other",
                |model: &Self, state: &State| {
                    let [one, two] = &state.proxies;
                    let accepts = |by: &Proxy, of: &Proxy| {
                        of.certificate
                            .is_none_or(|root| model.accepts(by.anchors, root))
                    };
                    let are_ready = one.certificate.is_some() && two.certificate.is_some();
                    !are_ready || accepts(one, two) && accepts(two, one)
                },
            ),
            Property::always("a lower number is never taken", |_, state: &State| {
                let mut proxies = state.proxies.iter();
                proxies.all(|it| it.bundle.as_ref().map_or(0, |it| it.number) == it.highest)
            }),
            Property::always("a higher number has later anchors", |_, state: &State| {
                let pairs = state.numbered.windows(2);
                let mut pairs = pairs.map(|pair| (pair[0], pair[1]));
                pairs.all(|(before, after)| {
                    // The same anchors may get the same number again, after a loss.
                    before == after || before.0 < after.0 && before.1 <= after.1
                })
            }),
            Property::always(
                "a container that starts again gets a certificate",
                |model: &Self, state: &State| {
                    let is_served = |proxy: &Proxy| {
                        let mut replicas = state.replicas.iter();
                        replicas.any(|it| model.accepts(proxy.anchors, it.issuer))
                    };
                    let mut proxies = state.proxies.iter();
                    proxies.all(|it| it.certificate.is_some() || is_served(it))
                },
            ),
            Property::sometimes("the rotation is complete", |model: &Self, state: &State| {
                let has_new = |bundle: &TrustBundle| bundle.anchors == NEW;
                let are_sent = state
                    .replicas
                    .iter()
                    .all(|it| it.sent.as_ref().is_some_and(has_new));
                are_sent
                    && (model.part == Part::Numbers
                        || state.proxies.iter().all(|it| it.anchors == NEW))
            }),
        ]
    }
}

const NONE: [&str; 0] = [];

#[test]
fn anchors_are_exchanged_without_a_failed_connection() {
    assert_eq!(violated(Rotation::PROTOCOL), NONE);
}

#[test]
fn replicas_number_anchors_in_the_order_of_their_changes() {
    let numbers = Rotation {
        part: Part::Numbers,
        ..Rotation::PROTOCOL
    };
    assert_eq!(violated(numbers), NONE);
}

#[test]
fn operator_who_does_not_wait_separates_proxies() {
    let violated = violated(Rotation {
        operator_waits: false,
        ..Rotation::PROTOCOL
    });
    assert!(violated.contains(&"proxies can connect to each other"));
}

#[test]
fn operator_who_does_not_see_the_issuers_of_replicas_separates_proxies() {
    let violated = violated(Rotation {
        operator_sees_replicas: false,
        ..Rotation::PROTOCOL
    });
    assert_eq!(violated, ["proxies can connect to each other"]);
}

#[test]
fn replica_that_reads_the_source_first_numbers_old_anchors() {
    let violated = violated(Rotation {
        part: Part::Numbers,
        record_is_read_first: false,
        ..Rotation::PROTOCOL
    });
    assert_eq!(violated, ["a higher number has later anchors"]);
}

#[test]
fn container_that_starts_again_needs_the_cross_certificate() {
    let violated = violated(Rotation {
        is_cross_signed: false,
        ..Rotation::PROTOCOL
    });
    assert_ne!(violated, NONE);
}
