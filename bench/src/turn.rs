//! Turns of one second each. Programs that share the clock agree on the turns without
//! communicating: a load reports each second separately, and the feature under measurement is on in
//! every other one.

use std::time::{Duration, SystemTime};

use clap::ValueEnum;

const LENGTH: Duration = Duration::from_secs(1);
/// From the beginning of a turn to the beginning of the next turn of the same name.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);

/// Whether a second of the clock is even or odd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Turn {
    Even,
    Odd,
}

impl Turn {
    pub(crate) const ALL: [Self; 2] = [Self::Even, Self::Odd];

    /// Returns its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Odd => "odd",
        }
    }

    /// Returns the turn at a time since the Unix epoch.
    pub(crate) fn at(time: Duration) -> Self {
        Self::ALL[usize::from(time.as_secs() % 2 == 1)]
    }

    /// Returns the time until this turn begins again.
    pub(crate) fn until(self, time: Duration) -> Duration {
        let next = LENGTH - elapsed(time);
        if Self::at(time) == self {
            next + LENGTH
        } else {
            next
        }
    }
}

/// Returns how much of its turn has passed at a time since the Unix epoch.
pub(crate) fn elapsed(time: Duration) -> Duration {
    Duration::from_nanos(u64::from(time.subsec_nanos()))
}

/// Returns the time since the Unix epoch; zero before it.
pub(crate) fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_alternate_with_the_seconds() {
        for (time, turn, until_even, until_odd) in [
            (10_000, Turn::Even, 2_000, 1_000),
            (10_300, Turn::Even, 1_700, 700),
            (11_300, Turn::Odd, 700, 1_700),
        ] {
            let millis = Duration::from_millis;
            assert_eq!(Turn::at(millis(time)), turn, "{time}");
            assert_eq!(Turn::Even.until(millis(time)), millis(until_even), "{time}");
            assert_eq!(Turn::Odd.until(millis(time)), millis(until_odd), "{time}");
        }
    }
}
