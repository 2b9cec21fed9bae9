//! Points in time as the records and messages have them.

use std::time::{Duration, SystemTime};

use jiff::{Timestamp, Unit};

/// Returns the seconds since the Unix epoch, 0 for a time before it.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH);
    since_1970.unwrap_or_default().as_secs()
}

pub(crate) fn of_seconds(seconds: u64) -> SystemTime {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Reads a time as 2026-01-02T03:04:05Z.
pub(super) fn parse(text: &str) -> Option<SystemTime> {
    let time: Timestamp = text.parse().ok()?;
    Some(time.into())
}

/// Returns a time as 2026-01-02T03:04:05Z.
pub(crate) fn text(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).and_then(|time| time.round(Unit::Second));
    time.map_or_else(
        |_| "a time out of range".to_owned(),
        |time| time.to_string(),
    )
}
