//! Values of flags in the notation of Go, so that Linkerd's manifests work unchanged.

use std::time::Duration;

use mesh_cluster::api_server::MAX_WRITE_DURATION;
use mesh_core::units::{parse_bool, parse_duration};

/// Parses a duration such as `24h0m0s`, `1h30m` or `500ms`.
pub(super) fn go_duration(text: &str) -> Result<Duration, String> {
    let error = || "expected a duration such as 24h0m0s or 90s".to_owned();
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit());
        let end = unit.map_or(rest.len(), |unit| digits + unit);
        // `parse_duration` would accept whitespace.
        let part = &rest[..end];
        if part.contains(char::is_whitespace) {
            return Err(error());
        }
        let part = parse_duration(part).map_err(|_error| error())?;
        total = total.checked_add(part).ok_or_else(error)?;
        rest = &rest[end..];
    }
    if text.is_empty() {
        Err(error())
    } else {
        Ok(total)
    }
}

/// Parses how often names are resolved.
pub(super) fn refresh_period(text: &str) -> Result<Duration, String> {
    let period = go_duration(text)?;
    let range = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
    if range.contains(&period) {
        return Ok(period);
    }
    Err("expected a duration from 1s to 24h".to_owned())
}

/// Parses a number of requests per second.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    number
        .filter(|number: &f64| number.is_finite() && *number > 0.0)
        .ok_or_else(|| "expected a number greater than 0".to_owned())
}

/// Parses a number of milliseconds.
pub(super) fn write_timeout(text: &str) -> Result<Duration, String> {
    let timeout = text.parse().ok().map(Duration::from_millis);
    timeout
        .filter(|timeout| !timeout.is_zero() && *timeout <= MAX_WRITE_DURATION)
        .ok_or_else(|| {
            format!(
                "expected milliseconds from 1 to {}, the time for which the Lease of the writer is valid without a renewal",
                MAX_WRITE_DURATION.as_millis()
            )
        })
}

pub(super) fn flag(text: &str) -> Result<bool, String> {
    parse_bool(text).ok_or_else(|| "expected true or false".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_parsed() {
        let seconds = |text: &str| go_duration(text).map(|duration| duration.as_secs());
        assert_eq!(seconds("24h0m0s"), Ok(86_400));
        assert_eq!(seconds("1h30m"), Ok(5_400));
        assert_eq!(seconds("20s"), Ok(20));
        assert_eq!(go_duration("1s500ms"), Ok(Duration::from_millis(1_500)));
        for bad in ["", "h", "10", "1h5", "-1s", "1.5h", "1h 5m"] {
            assert!(go_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn refresh_periods_are_from_a_second_to_a_day() {
        assert_eq!(refresh_period("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(refresh_period("24h"), Ok(Duration::from_secs(86_400)));
        for bad in ["0s", "999ms", "24h1s", "1"] {
            assert!(refresh_period(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_are_positive_and_finite() {
        assert_eq!(positive("0.5"), Ok(0.5));
        for bad in ["0", "-1", "inf", "NaN", "many"] {
            assert!(positive(bad).is_err(), "{bad}");
        }
    }
}
