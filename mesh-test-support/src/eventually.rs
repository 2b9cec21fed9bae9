//! Waits for states that another process or task brings about and does not announce.

use std::error::Error;
use std::fmt::{self, Display};
use std::thread;
use std::time::{Duration, Instant};

/// A state that is not reached within this time is never reached.
pub const TIMEOUT: Duration = Duration::from_mins(3);

/// The shortest and the longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

/// The result of an attempt: `false`, `None` and an error are failures, and an error is the reason.
pub trait Attempt {
    type Value;

    /// Returns the value, or the reason why there is none yet.
    fn outcome(self) -> Result<Self::Value, String>;
}

/// There was no value within [`TIMEOUT`].
#[derive(Debug)]
pub struct TimedOut(String);

/// Attempts until there is a value.
///
/// # Panics
///
/// There is none within [`TIMEOUT`].
pub fn eventually<A: Attempt>(what: &str, mut attempt: impl FnMut() -> A) -> A::Value {
    let pauses = Pauses::begin();
    loop {
        match attempt().outcome() {
            Ok(value) => return value,
            Err(why) => match pauses.next() {
                Some(pause) => thread::park_timeout(pause),
                None => panic!("{}", TimedOut::new(what, &why)),
            },
        }
    }
}

/// The same for attempts that wait themselves, on a runtime whose clock is not paused.
///
/// # Panics
///
/// There is no value within [`TIMEOUT`].
pub async fn eventually_async<A: Attempt>(
    what: &str,
    mut attempt: impl AsyncFnMut() -> A,
) -> A::Value {
    let attempts = async {
        let pauses = Pauses::begin();
        loop {
            match attempt().await.outcome() {
                Ok(value) => return value,
                Err(why) => match pauses.next() {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => panic!("{}", TimedOut::new(what, &why)),
                },
            }
        }
    };
    match tokio::time::timeout(TIMEOUT, attempts).await {
        Ok(value) => value,
        Err(_elapsed) => panic!("{}", TimedOut::new(what, "the last attempt did not end")),
    }
}

/// The same for programs, which report failures instead of panicking: an error ends the attempts.
pub fn try_eventually<T, E: From<TimedOut>>(
    what: &str,
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
) -> Result<T, E> {
    let pauses = Pauses::begin();
    loop {
        match (attempt()?, pauses.next()) {
            (Some(value), _) => return Ok(value),
            (None, Some(pause)) => thread::park_timeout(pause),
            (None, None) => return Err(TimedOut::new(what, "").into()),
        }
    }
}

/// The pauses between attempts: a twentieth of the time that has passed. So a short-lived state is
/// seen, and a long wait costs little.
struct Pauses(Instant);

impl Pauses {
    fn begin() -> Self {
        Self(Instant::now())
    }

    /// Returns the next pause, or none when the time is over.
    fn next(&self) -> Option<Duration> {
        let elapsed = self.0.elapsed();
        (elapsed < TIMEOUT).then(|| (elapsed / 20).clamp(PAUSES.0, PAUSES.1))
    }
}

impl Attempt for bool {
    type Value = ();

    fn outcome(self) -> Result<(), String> {
        self.then_some(()).outcome()
    }
}

impl<T> Attempt for Option<T> {
    type Value = T;

    fn outcome(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

impl<T, E: Display> Attempt for Result<T, E> {
    type Value = T;

    fn outcome(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

impl TimedOut {
    fn new(what: &str, why: &str) -> Self {
        Self(format!("{what}: not within {TIMEOUT:?}\n{why}"))
    }
}

impl Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim_end())
    }
}

impl Error for TimedOut {}
