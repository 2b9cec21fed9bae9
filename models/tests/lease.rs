//! A model of the Lease that elects the writer of statuses: two replicas and an API server
//! (docs/adr/0144). The decisions and durations are mesh-cluster's.
//!
//! Every order of their steps in the first seconds is checked. Requests are served late, or their
//! responses are lost; a replica is killed, starts again or releases the Lease; the Lease is
//! deleted. The clocks of the replicas show any times, but a second is equally long on both:
//!
//! * Two replicas never have a write of a status in flight at the same time.
//! * If requests are served, a status is written at most 15 s after the writer was lost.

use std::sync::OnceLock;
use std::time::Duration;

use mesh_models::violated;
use stateright::{Model, Property};
use tokio::time::Instant;

use self::lease::rules::{
    HOLD_DURATION, MAX_WRITE_DURATION, Observation, POLL_INTERVAL, RENEW_INTERVAL, REQUEST_TIMEOUT,
    RETRY_INTERVAL, Record, Step, held_until, lasts,
};

#[path = "../../mesh-cluster/src/api_server/lease"]
mod lease {
    #[allow(unreachable_pub, reason = "the file is also part of a library")]
    pub(crate) mod rules;
}

/// What the model adds to or takes from the protocol.
#[derive(Clone, Copy, Debug)]
struct Election {
    /// Every request is served and answered within the second.
    is_reliable: bool,
    /// A write names the version of the Lease that was read.
    writes_have_version: bool,
    /// A write of a status begins only if it ends before leadership does.
    writes_end_in_time: bool,
    /// The seconds that are checked.
    horizon: u8,
}

/// Times are in seconds since the start of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    lease: Option<Lease>,
    /// The number of writes of the Lease, which are its versions.
    versions: u8,
    replicas: [Replica; 2],
    /// A replica was killed or drained, or the Lease deleted.
    had_fault: bool,
    /// For how long a route has had no status, while a replica runs and requests are served.
    unreported: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    version: u8,
    holder: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    activity: Activity,
    observed: Option<(Lease, u8)>,
    until: Option<u8>,
    /// When the write of a status that is in flight was sent.
    writing: Option<u8>,
    /// A patch of this version that no process waits for any more.
    late: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Activity {
    /// The next step is due at this time.
    Waits(u8),
    Reads {
        sent: u8,
        is_lost: bool,
    },
    Claims {
        sent: u8,
        version: u8,
        is_lost: bool,
    },
    /// SIGTERM: it writes no more, and releases the Lease when its last write has ended.
    Drains,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Second,
    /// A replica sends a request to read the Lease.
    Read(usize),
    /// The API server serves the request of a replica, which receives the response.
    Serve(usize),
    /// As `Serve`, but the response is lost.
    ServeLost(usize),
    /// The API server serves a claim after its replica has given up.
    ServeLate(usize),
    TimeOut(usize),
    Write(usize),
    EndWrite(usize),
    Kill(usize),
    Start(usize),
    Drain(usize),
    Release(usize),
    Delete,
}

const NAMES: [&str; 2] = ["a", "b"];

/// The promise of docs/adr/0144, in seconds.
const MOST_UNREPORTED: u8 = 15;

fn at(seconds: u8) -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_secs(seconds.into())
}

fn seconds(duration: Duration) -> u8 {
    u8::try_from(duration.as_secs()).unwrap_or(u8::MAX)
}

impl Lease {
    fn record(self) -> Record {
        Record {
            // 0 is the version of a Lease that was deleted.
            version: (self.version != 0).then(|| self.version.to_string()),
            holder: self.holder.map(|at| NAMES[usize::from(at)].to_owned()),
            transitions: 0,
            hold_duration: HOLD_DURATION,
        }
    }
}

impl Replica {
    fn observation(&self) -> Option<Observation> {
        let (lease, since) = self.observed?;
        Some(Observation {
            record: lease.record(),
            since: at(since),
            // The API server of this model never returns to an older state.
            lost: None,
        })
    }

    fn may_write(&self, duration: Duration, now: u8) -> bool {
        lasts(self.until.map(at), duration, at(now))
    }

    fn is_running(&self) -> bool {
        !matches!(self.activity, Activity::Drains | Activity::Ended)
    }

    /// The process is gone. The API server may still have its last requests.
    fn end(&mut self) {
        if let Activity::Claims {
            version, is_lost, ..
        } = self.activity
            && !is_lost
        {
            self.late = Some(version);
        }
        self.activity = Activity::Ended;
        self.until = None;
    }

    /// Follows a read of the Lease.
    fn read(&mut self, index: usize, lease: Option<Lease>, now: u8) {
        let Some(lease) = lease else {
            self.until = None;
            self.activity = match self.deleted(now) {
                Some(remaining) if !remaining.is_zero() => {
                    Activity::Waits(now + seconds(remaining.min(POLL_INTERVAL)))
                }
                // Creates it: the server refuses that if another replica has.
                _ => Activity::Claims {
                    sent: now,
                    version: 0,
                    is_lost: false,
                },
            };
            return;
        };
        let seen = Observation::update(self.observation(), lease.record(), at(now));
        if seen.since == at(now) {
            self.observed = Some((lease, now));
        }
        self.activity = match self.next(index, now) {
            Some(Step::Wait(remaining)) => {
                self.until = None;
                Activity::Waits(now + seconds(remaining.min(POLL_INTERVAL)))
            }
            _ => Activity::Claims {
                sent: now,
                version: lease.version,
                is_lost: false,
            },
        };
    }

    /// Follows a read that found no Lease. Returns how long the replica waits, if it had read one.
    fn deleted(&mut self, now: u8) -> Option<Duration> {
        let observation = self.observation()?.deleted(at(now));
        let (lease, since) = self.observed?;
        let since = if observation.since == at(now) {
            now
        } else {
            since
        };
        self.observed = Some((
            Lease {
                version: 0,
                ..lease
            },
            since,
        ));
        Some(observation.creates_in(at(now)))
    }

    fn next(&self, index: usize, now: u8) -> Option<Step> {
        Some(self.observation()?.next(NAMES[index], at(now)))
    }
}

impl State {
    /// Applies a claim of the Lease. Returns whether it succeeded. Version 0 creates the Lease.
    fn claim(&mut self, index: usize, version: u8, has_version: bool) -> bool {
        let current = self.lease.map_or(0, |lease| lease.version);
        if version != current && (has_version || version == 0) {
            return false;
        }
        self.versions += 1;
        self.lease = Some(Lease {
            version: self.versions,
            // A Lease is created without a holder.
            holder: (version != 0).then_some(index as u8),
        });
        true
    }

    fn serve(&mut self, model: &Election, index: usize, is_lost: bool) {
        let now = self.now;
        match self.replicas[index].activity {
            Activity::Reads { sent, .. } if is_lost => {
                self.replicas[index].activity = Activity::Reads { sent, is_lost };
            }
            Activity::Reads { .. } => {
                let lease = self.lease;
                self.replicas[index].read(index, lease, now);
            }
            Activity::Claims { sent, version, .. } => {
                let is_claimed = self.claim(index, version, model.writes_have_version);
                let lease = self.lease;
                let replica = &mut self.replicas[index];
                if is_lost {
                    replica.activity = Activity::Claims {
                        sent,
                        version,
                        is_lost,
                    };
                } else if !is_claimed || version == 0 {
                    // It reads the Lease again.
                    replica.activity = Activity::Waits(now);
                } else {
                    replica.observed = lease.map(|lease| (lease, sent));
                    replica.until = Some(sent + seconds(held_until(at(0)) - at(0)));
                    replica.activity = Activity::Waits(now + seconds(RENEW_INTERVAL));
                }
            }
            Activity::Waits(_) | Activity::Drains | Activity::Ended => {}
        }
    }
}

impl Model for Election {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let replica = Replica {
            activity: Activity::Waits(0),
            observed: None,
            until: None,
            writing: None,
            late: None,
        };
        vec![State {
            now: 0,
            lease: Some(Lease {
                version: 1,
                holder: None,
            }),
            versions: 1,
            replicas: [replica.clone(), replica],
            had_fault: false,
            unreported: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let now = state.now;
        // The limit of a write passes before a candidate's wait, which began later.
        let has_ended = |replica: &Replica| {
            let age = replica.writing.map_or(0, |sent| now - sent);
            age >= seconds(MAX_WRITE_DURATION)
        };
        if let Some(ended) = state.replicas.iter().position(has_ended) {
            actions.push(Action::EndWrite(ended));
            return;
        }
        let mut is_urgent = false;
        for (at, replica) in state.replicas.iter().enumerate() {
            match replica.activity {
                Activity::Waits(due) if due <= now => {
                    actions.push(Action::Read(at));
                    is_urgent = true;
                }
                Activity::Reads { sent, is_lost } | Activity::Claims { sent, is_lost, .. } => {
                    if now - sent >= seconds(REQUEST_TIMEOUT) {
                        actions.push(Action::TimeOut(at));
                        is_urgent = true;
                    } else if !is_lost {
                        actions.push(Action::Serve(at));
                        is_urgent |= self.is_reliable;
                        // A read whose response is lost changes nothing.
                        let claims = matches!(replica.activity, Activity::Claims { .. });
                        if !self.is_reliable && claims {
                            actions.push(Action::ServeLost(at));
                        }
                    }
                }
                Activity::Drains if replica.writing.is_none() => {
                    actions.push(Action::Release(at));
                    is_urgent = true;
                }
                Activity::Ended => actions.push(Action::Start(at)),
                Activity::Waits(_) | Activity::Drains => {}
            }
            if replica.late.is_some() && !self.is_reliable {
                actions.push(Action::ServeLate(at));
            }
            let duration = if self.writes_end_in_time {
                MAX_WRITE_DURATION
            } else {
                Duration::ZERO
            };
            if replica.writing.is_some() {
                // The longest writes meet most of what others do.
                if self.is_reliable {
                    actions.push(Action::EndWrite(at));
                    is_urgent = true;
                }
            } else if replica.is_running() && replica.may_write(duration, now) {
                actions.push(Action::Write(at));
                is_urgent |= self.is_reliable && state.unreported > 0;
            }
            // The replicas are alike.
            if at == 0 && replica.is_running() && !state.had_fault {
                actions.extend([Action::Kill(at), Action::Drain(at)]);
            }
        }
        let have_read = state.replicas.iter().all(|it| it.observed.is_some());
        // A replica that has not read the Lease creates it at once, which the ADR accepts.
        if have_read && state.lease.is_some() && !state.had_fault {
            actions.push(Action::Delete);
        }
        if !is_urgent {
            actions.push(Action::Second);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let now = state.now;
        match action {
            Action::Second => {
                state.now += 1;
                if self.is_reliable && state.replicas.iter().any(Replica::is_running) {
                    state.unreported += 1;
                }
            }
            Action::Read(at) => {
                let is_lost = false;
                state.replicas[at].activity = Activity::Reads { sent: now, is_lost };
            }
            Action::Serve(at) => state.serve(self, at, false),
            Action::ServeLost(at) => state.serve(self, at, true),
            Action::ServeLate(at) => {
                let version = state.replicas[at].late.take()?;
                state.claim(at, version, self.writes_have_version);
            }
            Action::TimeOut(at) => {
                let replica = &mut state.replicas[at];
                if let Activity::Claims {
                    version,
                    is_lost: false,
                    ..
                } = replica.activity
                {
                    replica.late = Some(version);
                }
                if replica.until.is_some_and(|until| until <= now) {
                    replica.until = None;
                }
                replica.activity = Activity::Waits(now + seconds(RETRY_INTERVAL));
            }
            Action::Write(at) => state.replicas[at].writing = Some(now),
            Action::EndWrite(at) => {
                state.replicas[at].writing = None;
                state.unreported = 0;
            }
            Action::Kill(at) => {
                state.had_fault = true;
                state.unreported = 0;
                state.replicas[at].end();
            }
            Action::Start(at) => {
                let replica = &mut state.replicas[at];
                replica.activity = Activity::Waits(now);
                replica.observed = None;
            }
            Action::Drain(at) => {
                state.had_fault = true;
                state.unreported = 0;
                let replica = &mut state.replicas[at];
                replica.end();
                replica.activity = Activity::Drains;
            }
            Action::Release(at) => {
                state.replicas[at].activity = Activity::Ended;
                if let Some(lease) = &mut state.lease
                    && lease.holder == Some(at as u8)
                {
                    state.versions += 1;
                    *lease = Lease {
                        version: state.versions,
                        holder: None,
                    };
                }
            }
            Action::Delete => {
                // No process starts afterwards: it would not have read the Lease.
                state.had_fault = true;
                state.lease = None;
            }
        }
        Some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.now <= self.horizon
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one replica writes", |_, state: &State| {
                let writing = state.replicas.iter().filter(|it| it.writing.is_some());
                writing.count() <= 1
            }),
            Property::always(
                "statuses are written in time",
                |model: &Self, state: &State| {
                    !model.is_reliable || state.unreported <= MOST_UNREPORTED
                },
            ),
            Property::sometimes("the second replica writes", |_, state: &State| {
                state.replicas[1].writing.is_some()
            }),
        ]
    }
}

const PROTOCOL: Election = Election {
    is_reliable: false,
    writes_have_version: true,
    writes_end_in_time: true,
    horizon: 11,
};

const NONE: [&str; 0] = [];

#[test]
fn one_replica_writes_although_requests_are_lost_and_late() {
    assert_eq!(violated(PROTOCOL), NONE);
}

#[test]
fn writer_that_is_lost_is_replaced_in_time() {
    let reliable = Election {
        is_reliable: true,
        horizon: 40,
        ..PROTOCOL
    };
    assert_eq!(violated(reliable), NONE);
}

#[test]
fn late_claim_without_a_version_makes_two_writers() {
    let unversioned = Election {
        writes_have_version: false,
        ..PROTOCOL
    };
    assert_eq!(violated(unversioned), ["one replica writes"]);
}

#[test]
fn write_that_outlasts_leadership_meets_that_of_the_next_writer() {
    let outlasting = Election {
        writes_end_in_time: false,
        ..PROTOCOL
    };
    assert_eq!(violated(outlasting), ["one replica writes"]);
}
