//! Header fields that taps do not show.

/// Names of header fields whose values are not shown, in lower case.
#[derive(Clone, Debug, Default)]
pub(crate) struct IgnoredHeaders(Vec<String>);

impl IgnoredHeaders {
    /// Names are compared without regard to case.
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(
            names
                .into_iter()
                .map(|name| name.to_ascii_lowercase())
                .collect(),
        )
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0
            .iter()
            .any(|ignored| ignored.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_regard_to_case() {
        let ignored = IgnoredHeaders::new(["Authorization".to_owned()]);
        assert!(ignored.contains("authorization") && ignored.contains("AUTHORIZATION"));
        assert!(!ignored.contains("x"));
    }
}
