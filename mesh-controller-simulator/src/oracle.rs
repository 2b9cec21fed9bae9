//! The promises of the controllers, and which of them a run has broken.

use std::collections::BTreeMap;
use std::time::Duration;

use tonic::Code;

use crate::api::{Claim, Class, Outcome, Received};
use crate::client::{State, Target};
use crate::record::{Record, Seen};
use crate::script::Answer;

/// The shortest delay after a failure: half of the first back-off of 0.5 s.
const MIN_DELAY: Duration = Duration::from_millis(250);

/// The most requests of a process for one path in [`WINDOW`].
const MAX_REQUESTS: usize = 20;

const WINDOW: Duration = Duration::from_secs(10);

/// How long a process counts itself as the holder of the Lease after it has sent a claim.
const HOLD: Duration = Duration::from_secs(10);

/// The longest write of a status, with the timeout of its client.
const WRITE: Duration = Duration::from_secs(5);

/// The promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// No process ends by itself.
    Runs,
    /// Every process is ready at the end.
    IsReady,
    /// In time after the last fault, every client has what a fresh controller says.
    Converges,
    /// The injector decides as a fresh one.
    Decides,
    /// The generations of an object appear to a client in an order that was served.
    Follows,
    /// Only the holder of the Lease writes.
    HasOneWriter,
    /// In time after the last fault, every status and every slice is the one of a fresh controller.
    WritesRightly,
    /// No process asks faster than its back-off allows.
    BacksOff,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub promise: Promise,
    pub text: String,
}

/// Returns the broken promises.
pub fn judge(record: &Record) -> Vec<Problem> {
    let unready = record.unready.iter();
    let unready = unready.map(|process| format!("process {process} is not ready at the end"));
    let unordered = record.clients.iter().filter_map(|seen| order(record, seen));
    let judged = [
        (Promise::Runs, record.exits.clone()),
        (Promise::IsReady, unready.collect()),
        (Promise::Converges, ends(record)),
        (Promise::Decides, reviews(record)),
        (Promise::Follows, unordered.collect()),
        (Promise::HasOneWriter, writers(record)),
        (Promise::WritesRightly, wrong_writes(record)),
        (Promise::BacksOff, rates(record)),
    ];
    let problems = judged.into_iter().flat_map(|(promise, texts)| {
        let problem = move |text| Problem { promise, text };
        texts.into_iter().map(problem)
    });
    problems.collect()
}

/// Every client has the state of a fresh controller.
fn ends(record: &Record) -> Vec<String> {
    let mut problems = Vec::new();
    for (target, process, has, fresh) in &record.ends {
        let is_right = match (has, fresh) {
            (_, None) => false,
            (Some(has), Some(fresh)) if has == fresh => true,
            // A stream for an object that was deleted stays open: without endpoints, or with the
            // last profile.
            (Some(has), Some(fresh)) if fresh.code().is_some() => match target {
                Target::Endpoints(_) => has.is_empty(),
                Target::Profile(_) => fresh.code() != Some(Code::Internal),
                Target::Outbound(_) | Target::Inbound(_) => false,
            },
            _ => false,
        };
        if !is_right {
            problems.push(format!(
                "{target:?} of process {process} differs from a fresh controller\n  has {}\n  fresh {}",
                text(has.as_ref()),
                text(fresh.as_ref())
            ));
        }
    }
    problems
}

fn text(state: Option<&State>) -> String {
    state.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

fn reviews(record: &Record) -> Vec<String> {
    let differing = record
        .reviews
        .iter()
        .filter(|(_, old, fresh)| old != fresh || fresh.is_none());
    differing
        .map(|(process, old, fresh)| {
            format!("the webhook of process {process} decides {old:?}, a fresh one {fresh:?}")
        })
        .collect()
}

/// Each object's generations appear to a client in an order that the API server has served.
fn order(record: &Record, seen: &Seen) -> Option<String> {
    let mut places: BTreeMap<&crate::store::Id, usize> = BTreeMap::new();
    let owner = |generation: u64| {
        let mut changes = record.changes.iter();
        changes
            .find(|it| it.generation == Some(generation))
            .map(|it| &it.id)
    };
    for observation in &seen.observed {
        for generation in observation.state.generations() {
            let Some(id) = owner(generation) else {
                return Some(format!(
                    "{:?} of process {} has generation {generation}, which never was, at {:?}",
                    seen.target, seen.process, observation.at
                ));
            };
            let place = places.entry(id).or_default();
            let found = record.changes[*place..].iter().position(|change| {
                change.id == *id
                    && change.generation == Some(generation)
                    && change.at <= observation.at
            });
            match found {
                Some(found) => *place += found,
                None => {
                    return Some(format!(
                        "{:?} of process {} goes back to generation {generation} of {id} at {:?}",
                        seen.target, seen.process, observation.at
                    ));
                }
            }
        }
    }
    None
}

/// Only the last process that has claimed the Lease writes, and no other claims it while a write
/// may be on its way.
fn writers(record: &Record) -> Vec<String> {
    let mut problems = Vec::new();
    for write in &record.writes {
        let (by, at) = (write.process, write.at);
        let claims = || record.claims.iter().filter(|it| it.lease == write.lease());
        let is_before = |claim: &&Claim| claim.at <= write.sent;
        let last = claims().rev().find(is_before);
        if !last.is_some_and(|last| last.process == by && last.holds) {
            problems.push(format!(
                "process {by} writes {write} at {at:?} without the Lease: {last:?}"
            ));
        }
        let ends = write.at.min(write.sent + WRITE);
        let other = claims().find(|claim| {
            claim.process != by && claim.holds && claim.at > write.sent && claim.at < ends
        });
        if let Some(other) = other {
            problems.push(format!(
                "process {} claims the Lease at {:?} while process {by} writes {write}",
                other.process, other.at
            ));
        }
    }
    problems.extend(holders(record));
    problems
}

/// No process claims the Lease while another counts itself as the holder. That one learns of an API
/// server that has gone back in time when it reads the Lease.
fn holders(record: &Record) -> Vec<String> {
    let mut problems = Vec::new();
    let mut last: BTreeMap<(&str, usize), &Claim> = BTreeMap::new();
    for claim in &record.claims {
        let others = last
            .iter()
            .filter(|((lease, process), _)| *lease == claim.lease && *process != claim.process);
        for ((lease, process), before) in others {
            let has_learned = record.requests.iter().any(|request| {
                request.process == *process
                    && request.class == Class::Lease
                    && request.at <= claim.at
                    && matches!(request.outcome, Outcome::Status(200 | 404))
                    && record
                        .restorations
                        .iter()
                        .any(|restored| *restored > before.at && request.at > *restored)
            });
            // A process that starts then cannot know who has held the Lease.
            let cannot_know = record.starts.iter().any(|(of, started)| {
                let restorations = &mut record.restorations.iter();
                *of == claim.process
                    && *started + HOLD > before.at
                    && *started <= claim.at
                    && restorations.any(|it| (before.at..claim.at).contains(it))
            });
            if cannot_know {
                continue;
            }
            let ends = before.sent + HOLD;
            if claim.holds && before.holds && claim.at < ends && !has_learned {
                problems.push(format!(
                    "process {} claims Lease {lease} at {:?}, which process {process} holds until {ends:?}",
                    claim.process, claim.at
                ));
            }
        }
        last.insert((&claim.lease, claim.process), claim);
    }
    problems
}

fn wrong_writes(record: &Record) -> Vec<String> {
    let writes = record.writes.iter();
    let wrong = writes.filter(|write| write.at > record.taken_over);
    wrong
        .map(|write| {
            let value = &write.value;
            format!("{write} was wrong: a fresh controller writes {value}")
        })
        .collect()
}

/// No process asks faster than its back-off allows.
fn rates(record: &Record) -> Vec<String> {
    let mut problems = Vec::new();
    let mut by_path: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for request in &record.requests {
        // Several watches of one process ask for these.
        if request.class != Class::Discovery {
            let key = (request.process, request.class, &request.path);
            by_path.entry(key).or_default().push(request);
        }
    }
    for ((process, class, path), mut requests) in by_path {
        requests.sort_by_key(|request| request.sent);
        let is_same_run = |pair: &[&Received]| {
            let times = pair[0].sent..=pair[1].sent;
            let mut starts = record.starts.iter();
            !starts.any(|(of, at)| *of == process && times.contains(at))
        };
        // Events about objects are different requests, and have a rate of their own.
        let is_event = path.contains("/events.k8s.io/");
        let too_soon = requests.windows(2).find(|pair| {
            has_failed(pair[0].outcome)
                && pair[1].sent < pair[0].sent + MIN_DELAY
                && is_same_run(pair)
                && !is_event
        });
        if let Some(pair) = too_soon {
            problems.push(format!(
                "process {process} repeats {class:?} {path} at {:?}, {:?} after {:?}",
                pair[1].sent,
                pair[1].sent.saturating_sub(pair[0].sent),
                pair[0].outcome
            ));
        }
        let too_many = requests.windows(MAX_REQUESTS + 1).find(|many| {
            let (first, last) = (&many[0], &many[MAX_REQUESTS]);
            last.sent < first.sent + WINDOW
        });
        if let Some(many) = too_many {
            let since = many[0].sent;
            problems.push(format!(
                "process {process} sends more than {MAX_REQUESTS} requests for {class:?} {path} in {WINDOW:?} from {since:?}"
            ));
        }
    }
    problems
}

fn has_failed(outcome: Outcome) -> bool {
    match outcome {
        Outcome::Status(code) => code >= 400 && !matches!(code, 404 | 409),
        Outcome::Faulty(Answer::Status { code, .. }) => !matches!(code, 404 | 409),
        Outcome::Faulty(Answer::Half | Answer::Expired) => true,
        Outcome::Faulty(Answer::Nothing | Answer::Late(_) | Answer::Empty) | Outcome::Pending => {
            false
        }
    }
}

#[cfg(test)]
mod tests;
