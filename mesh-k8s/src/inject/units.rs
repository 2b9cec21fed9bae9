//! Booleans, durations and quantities in the notation of Go and Kubernetes.

use std::time::Duration;

pub(super) fn parse_bool(text: &str) -> Result<bool, String> {
    mesh_core::units::parse_bool(text).ok_or_else(|| "expected true or false".into())
}

/// Parses a duration like Go's `time.ParseDuration`, without sign: `1m30s`, `1.5h`, `100ms`, `0`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = mesh_core::units::parse_go_duration(text);
    duration.ok_or_else(|| "expected a duration such as 500ms, 10s or 1m30s".to_owned())
}

/// Parses a Kubernetes quantity and rounds it up to whole units: `250m` is 1.
pub(super) fn whole_units(text: &str) -> Result<u32, String> {
    let error = || "expected a quantity such as 100m, 1.5 or 64Mi".to_owned();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let number: f64 = number.parse().ok().ok_or_else(error)?;
    let scale = match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        exponent => match exponent.strip_prefix(['e', 'E']).map(str::parse::<i32>) {
            Some(Ok(exponent)) => 10f64.powi(exponent),
            _ => return Err(error()),
        },
    };
    // The cast saturates. Without subtracting a millionth, the rounding error of a product such as
    // 0.1 × 10 could round up to 2.
    Ok((number * scale - 1e-6).ceil().max(0.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_parsed() {
        let check = |text: &str, millis: u64| {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        };
        check("0", 0);
        check("100ms", 100);
        check("1m30s", 90_000);
        check("1.5h", 5_400_000);
        check("2h45m", 9_900_000);
        for bad in [
            "",
            "10",
            "10 s",
            "-1s",
            "1d",
            "s",
            "1.2.3s",
            "99999999999999999999h",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn quantities_are_rounded_up() {
        let check = |text: &str, units: u32| assert_eq!(whole_units(text), Ok(units), "{text}");
        check("0", 0);
        check("1m", 1);
        check("500m", 1);
        check("1000m", 1);
        check("1001m", 2);
        check("1.5", 2);
        check("3", 3);
        check("0.1k", 100);
        check("2e1", 20);
        check("64Mi", 64 << 20);
        for bad in ["", "m", "1x", "-1", "1 m", "e3", "1..2"] {
            assert!(whole_units(bad).is_err(), "{bad:?}");
        }
    }
}
