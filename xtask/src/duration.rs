//! Durations of the command line.

/// Parses `90`, `90s`, `5m` or `1h` into seconds.
///
/// # Errors
///
/// Zero, fractions and other units are errors.
pub fn parse(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    let number: Option<u64> = number.parse().ok().filter(|number| *number > 0);
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| format!("{text:?} is not a duration; examples: 90s, 5m, 1h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_with_and_without_unit() {
        assert_eq!(parse("90"), Ok(90));
        assert_eq!(parse("90s"), Ok(90));
        assert_eq!(parse("5m"), Ok(300));
        assert_eq!(parse("1h"), Ok(3600));
        for bad in ["", "s", "0", "-1s", "1d", "1.5h"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
