//! Scripts: what happens to the objects, the API server and the processes of a world, and when.

use std::fmt;
use std::time::Duration;

use crate::objects;
use crate::resources::Resource;

/// What happens in a world. Shrinking removes steps.
#[derive(Clone, Debug)]
pub struct Script {
    pub seed: u64,
    /// Sorted by time.
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Since the world began.
    pub at: Duration,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Writes an object, `skipped` versions after the last one.
    Write {
        object: usize,
        generation: u64,
        skipped: u64,
    },
    Delete {
        object: usize,
        skipped: u64,
    },
    /// Another client changes metadata without a meaning.
    Touch {
        object: usize,
    },
    /// Responds to some requests in another way for a time.
    Respond {
        to: Requests,
        with: Answer,
        percent: u64,
        lasting: Duration,
    },
    /// Ends some watches, or makes them silent.
    CutWatches {
        how: Cut,
        percent: u64,
    },
    /// Forgets old versions.
    Compact,
    /// Resets all connections, and serves again after a time, without the last `undone` commits.
    Restart {
        down: Duration,
        undone: usize,
    },
    /// Serves the state before the last `undone` commits for a time, as a lagging cache does.
    Lag {
        undone: usize,
        lasting: Duration,
    },
    /// Packets from and to a process vanish.
    Partition {
        process: usize,
        lasting: Duration,
    },
    /// SIGKILL, or SIGTERM, and a new process after a time.
    Kill {
        process: usize,
        down: Duration,
    },
    Stop {
        process: usize,
        down: Duration,
    },
    /// A CustomResourceDefinition is not established.
    Unserve {
        resource: Resource,
        lasting: Duration,
    },
}

/// Some requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    All,
    Lists,
    Watches,
    Writes,
    Lease,
    Discovery,
}

/// Another response than the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Status {
        code: u16,
        /// The seconds of `Retry-After`.
        retry_after: Option<u16>,
    },
    /// None, on a connection that stays open.
    Nothing,
    /// The right one, late.
    Late(Duration),
    /// The right one, without its second half.
    Half,
    /// A watch that ends at once, regularly.
    Empty,
    /// A watch whose only event is an error: the version has expired.
    Expired,
}

/// How watches end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As at the time limit.
    Regularly,
    /// Within a line, and the response is not terminated.
    WithinLine,
    /// Within a line, and the response is terminated.
    AfterPartOfLine,
    /// After an event with this code.
    Error(u16),
    /// Not at all, and no event arrives any more.
    Silent,
    /// The last event is sent once more, and the watch goes on.
    Repeat,
    /// The next event cannot be read, and the watch goes on.
    Garbled,
}

impl Script {
    /// When the last fault has ended.
    pub fn end(&self) -> Duration {
        let ends = self.steps.iter().map(|step| step.at + step.lasting());
        ends.max().unwrap_or_default()
    }
}

impl Step {
    fn lasting(&self) -> Duration {
        match self.action {
            Action::Respond { lasting, .. }
            | Action::Lag { lasting, .. }
            | Action::Partition { lasting, .. }
            | Action::Unserve { lasting, .. } => lasting,
            Action::Restart { down, .. }
            | Action::Kill { down, .. }
            | Action::Stop { down, .. } => down,
            Action::Write { .. }
            | Action::Delete { .. }
            | Action::Touch { .. }
            | Action::CutWatches { .. }
            | Action::Compact => Duration::ZERO,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} s  {}", self.at.as_secs_f64(), self.action)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write {
                object,
                generation,
                skipped,
            } => {
                let (name, marker) = (objects::name(*object), objects::marker(*generation));
                write!(f, "write {name} {marker}, {skipped} versions skipped")
            }
            Self::Delete { object, skipped } => {
                write!(
                    f,
                    "delete {}, {skipped} versions skipped",
                    objects::name(*object)
                )
            }
            Self::Touch { object } => write!(f, "touch {}", objects::name(*object)),
            Self::Respond {
                to,
                with,
                percent,
                lasting,
            } => write!(
                f,
                "respond to {percent} % of {to:?} with {with:?} for {lasting:?}"
            ),
            Self::CutWatches { how, percent } => write!(f, "cut {percent} % of watches: {how:?}"),
            Self::Compact => f.write_str("compact"),
            Self::Restart { down, undone } => {
                write!(
                    f,
                    "restart the API server, down for {down:?}, without {undone} commits"
                )
            }
            Self::Lag { undone, lasting } => write!(f, "lag {undone} commits for {lasting:?}"),
            Self::Partition { process, lasting } => {
                write!(f, "partition process {process} for {lasting:?}")
            }
            Self::Kill { process, down } => write!(f, "kill process {process} for {down:?}"),
            Self::Stop { process, down } => write!(f, "stop process {process} for {down:?}"),
            Self::Unserve { resource, lasting } => {
                let api = resource.api();
                write!(
                    f,
                    "do not serve {}.{} for {lasting:?}",
                    api.plural, api.group
                )
            }
        }
    }
}
