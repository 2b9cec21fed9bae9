//! The clock of an API server, by its responses.

use http::HeaderMap;
use http::header::DATE;

/// Returns the seconds since 1970 when a response was sent, if it says so.
pub(crate) fn of(headers: &HeaderMap) -> Option<u64> {
    let date = jiff::fmt::rfc2822::parse(headers.get(DATE)?.to_str().ok()?).ok()?;
    u64::try_from(date.timestamp().as_second()).ok()
}
