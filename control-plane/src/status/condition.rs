//! Conditions of a status, and how they change.

use jiff::Timestamp;
use serde_json::{Value, json};

/// A condition that an object should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) kind: &'static str,
    pub(crate) is_true: bool,
    pub(crate) reason: &'static str,
    /// Empty if there is nothing to explain.
    pub(crate) message: String,
}

pub(super) const ACCEPTED: &str = "Accepted";
pub(super) const RESOLVED_REFS: &str = "ResolvedRefs";

/// API servers reject longer messages.
const MAX_MESSAGE_LENGTH: usize = 32_768;

impl Condition {
    /// Returns a condition whose reason for being true is its name, as in the Gateway API.
    pub(super) fn positive(kind: &'static str) -> Self {
        Self {
            kind,
            is_true: true,
            reason: kind,
            message: String::new(),
        }
    }

    pub(super) fn negative(
        kind: &'static str,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            is_true: false,
            reason,
            message: message.into(),
        }
    }

    /// Returns the condition as a part of a status. The time of the existing condition is kept
    /// until its value changes.
    fn write(&self, existing: &[Value], generation: Option<i64>, now: Timestamp) -> Value {
        let status = if self.is_true { "True" } else { "False" };
        let same = existing
            .iter()
            .find(|condition| condition["type"] == self.kind && condition["status"] == status)
            .and_then(|condition| condition["lastTransitionTime"].as_str())
            .filter(|time| time.parse::<Timestamp>().is_ok());
        let time = match same {
            Some(time) => time.to_owned(),
            None => seconds(now).to_string(),
        };
        let mut condition = json!({
            "type": self.kind,
            "status": status,
            "reason": self.reason,
            "message": truncated(&self.message),
            "lastTransitionTime": time,
        });
        if let Some(generation) = generation {
            condition["observedGeneration"] = generation.into();
        }
        condition
    }
}

/// Returns the conditions as a part of a status.
pub(super) fn write(
    conditions: &[Condition],
    existing: &[Value],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Value> {
    conditions
        .iter()
        .map(|condition| condition.write(existing, generation, now))
        .collect()
}

/// Times in conditions have no fractions of seconds.
fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn truncated(message: &str) -> &str {
    &message[..message.floor_char_boundary(MAX_MESSAGE_LENGTH)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_condition_is_bounded() {
        let long = Condition::negative(ACCEPTED, "Reason", "ä".repeat(20_000) + "a");
        let now = Timestamp::UNIX_EPOCH;
        let written = &write(&[long], &[], None, now)[0];
        assert_eq!(written["message"].as_str().map(str::len), Some(32_768));
        assert_eq!(written["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert!(written.get("observedGeneration").is_none());
    }
}
