//! Numbers as tables show them. An empty text is an unknown value, which a table shows as `-`.

/// Shows a share of 1.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or(String::new(), |share| format!("{:.2}%", share * 100.0))
}

/// Shows a rate per second.
pub(crate) fn rate(per_second: Option<f64>) -> String {
    per_second.map_or(String::new(), |rate| format!("{rate:.1}"))
}

pub(crate) fn millis(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!("{value:.0}ms"))
}

pub(crate) fn number(value: Option<u64>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_empty() {
        assert_eq!(percent(Some(0.987_65)), "98.77%");
        assert_eq!(rate(Some(12.34)), "12.3");
        assert_eq!(millis(Some(2.5)), "2ms");
        assert_eq!(number(Some(7)), "7");
        let unknown = [percent(None), rate(None), millis(None), number(None)];
        assert!(unknown.iter().all(String::is_empty), "{unknown:?}");
    }
}
