//! Texts of annotations, flags and environment variables: durations in Linkerd's format, booleans,
//! lists.

use std::time::Duration;

/// An invalid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not a number with a unit.
    #[error(
        "invalid duration {0:?}: expected a whole number and a unit (ms, s, m, h, d), as in \"10s\""
    )]
    Invalid(String),
    /// Longer than a `u64` of milliseconds.
    #[error("duration {0:?} is too long")]
    Overflow(String),
}

/// Parses `10s`, `250ms`, `5m`, `1h`, `365d` or `0`, without fractions, sign or inner blanks.
///
/// # Errors
///
/// The text is not a duration, or too long a duration.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let trimmed = text.trim();
    let digits = trimmed.len()
        - trimmed
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .len();
    let (number, unit) = trimmed.split_at(digits);
    if number.is_empty() {
        return Err(DurationError::Invalid(text.to_owned()));
    }
    let number: u64 = number
        .parse()
        .map_err(|_too_long| DurationError::Overflow(text.to_owned()))?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" if number == 0 => 0,
        _ => return Err(DurationError::Invalid(text.to_owned())),
    };
    let total = number
        .checked_mul(millis)
        .ok_or_else(|| DurationError::Overflow(text.to_owned()))?;
    Ok(Duration::from_millis(total))
}

/// The length of a duration in Prometheus' notation. Each unit occurs once in a sensible one.
const MAX_PROMETHEUS_DURATION: usize = 32;

/// Parses the notation of Prometheus, such as `1h30m` or `500ms`, of at most 32 characters.
pub fn parse_prometheus_duration(text: &str) -> Option<Duration> {
    if text.is_empty() || text.len() > MAX_PROMETHEUS_DURATION {
        return None;
    }
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_lowercase).count();
        let (unit, after) = after.split_at(letters);
        let millis: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return None,
        };
        let part = number.parse::<u64>().ok()?.checked_mul(millis)?;
        total = total.checked_add(part)?;
        rest = after;
    }
    Some(Duration::from_millis(total))
}

/// The length of a duration in Go's notation. Each unit occurs once in a sensible one.
const MAX_GO_DURATION: usize = 32;

/// Parses the notation of Go, such as `1m30s`, `0.5s` or `500ms`, of at most 32 characters and
/// without sign. What is shorter than a nanosecond is left out.
pub fn parse_go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() || text.len() > MAX_GO_DURATION {
        return None;
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.');
        let (unit, after) = split(after, |c| !c.is_ascii_digit() && c != '.');
        let nanos: u64 = match unit {
            "ns" => 1,
            // The sign of micro, and the Greek letter that looks like it.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let whole: u64 = if whole.is_empty() {
            0
        } else {
            whole.parse().ok()?
        };
        total = total.checked_add(Duration::from_nanos(whole.checked_mul(nanos)?))?;
        let mut worth = nanos;
        for digit in fraction.chars().filter_map(|c| c.to_digit(10)) {
            worth /= 10;
            total = total.checked_add(Duration::from_nanos(u64::from(digit) * worth))?;
        }
        rest = after;
    }
    Some(total)
}

/// Splits a text before the first character that does not belong to its beginning.
fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    text.split_at(end)
}

/// Parses a boolean like Go's `strconv.ParseBool`, as Linkerd does.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Returns the items of a comma-separated list, without surrounding blanks and without empty items.
pub fn list_items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_parsed() {
        assert_eq!(parse_bool("T"), Some(true));
        assert_eq!(parse_bool("0"), Some(false));
        assert_eq!(parse_bool("yes"), None);
    }

    #[test]
    fn durations_of_prometheus_are_parsed() {
        for (text, millis) in [
            ("1m", 60_000),
            ("1h30m", 5_400_000),
            ("1w2d", 777_600_000),
            ("1y", 365 * 86_400_000),
            ("500ms", 500),
        ] {
            let expect = Some(Duration::from_millis(millis));
            assert_eq!(parse_prometheus_duration(text), expect, "{text}");
        }
        let long = "1s".repeat(17);
        for bad in ["", "1", "m", "1.5m", "-1m", "1M", "99999999999y", &long] {
            assert_eq!(parse_prometheus_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_of_go_are_parsed() {
        for (text, micros) in [
            ("0", 0),
            ("3s", 3_000_000),
            ("1m0s", 60_000_000),
            ("1h30m", 5_400_000_000),
            ("0.5s", 500_000),
            (".5s1.5ms", 501_500),
            ("2.s", 2_000_000),
            ("500us", 500),
            ("7\u{b5}s", 7),
            ("1.25h", 4_500_000_000),
            ("0.33333333333333333333m", 19_999_999),
        ] {
            let found = parse_go_duration(text).map(|it| it.as_micros());
            assert_eq!(found, Some(micros), "{text}");
        }
        let long = "1s".repeat(17);
        for bad in [
            "",
            "1",
            "s",
            ".s",
            "1.2.3s",
            "-1s",
            "+1s",
            "1d",
            "1 s",
            "1S",
            "99999999999h",
            &long,
        ] {
            assert_eq!(parse_go_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_are_parsed_and_validated() {
        let check = |text: &str, millis: u64| {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text:?}"
            );
        };
        check("0", 0);
        check("0s", 0);
        check(" 250ms ", 250);
        check("10s", 10_000);
        check("2m", 120_000);
        check("1h", 3_600_000);
        check("365d", 365 * 86_400_000);
        for bad in ["", "10", "s", "1.5s", "-1s", "1 s", "1w", "10S"] {
            assert_eq!(
                parse_duration(bad),
                Err(DurationError::Invalid(bad.to_owned()))
            );
        }
        for long in ["99999999999999999999s", "18446744073709551615d"] {
            assert_eq!(
                parse_duration(long),
                Err(DurationError::Overflow(long.to_owned()))
            );
        }
    }
}
