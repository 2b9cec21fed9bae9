//! The last accepted bundles of foreign trust domains, in the record of the identity service
//! ([`crate::trust::BUNDLE_CONFIG_MAP`]). They outlive its processes: after some rotations, the
//! first bundle of a ConfigMap would verify the server of the next one no longer.

use std::collections::BTreeMap;

use mesh_core::trust_domain::{ForeignAnchors, ForeignBundle};
use serde::{Deserialize, Serialize};

/// The bundles by trust domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Recorded(BTreeMap<String, RecordedDomain>);

/// The bundle of one domain.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RecordedDomain {
    /// The SHA-256 of the first bundle. With another first bundle everything begins again.
    origin: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    anchors: String,
}

impl Recorded {
    /// Reads the text of the record; without one there are none.
    ///
    /// # Errors
    ///
    /// The text is damaged.
    pub fn read(text: Option<&str>) -> serde_json::Result<Self> {
        text.map_or_else(|| Ok(Self::default()), serde_json::from_str)
    }

    /// Returns the text of the record.
    ///
    /// # Errors
    ///
    /// It cannot be written as JSON, which does not happen with maps of texts.
    pub fn to_text(&self) -> serde_json::Result<String> {
        serde_json::to_string(&self.0)
    }

    /// Returns the bundle of a domain.
    pub fn get(&self, domain: &str) -> Option<&RecordedDomain> {
        self.0.get(domain)
    }

    /// Sets the bundle of a domain.
    pub fn set(&mut self, domain: &str, recorded: RecordedDomain) {
        self.0.insert(domain.to_owned(), recorded);
    }

    /// Returns what proxies get. A domain without anchors has withdrawn them all.
    pub fn anchors(&self) -> ForeignAnchors {
        let domains = self.0.iter();
        let with_anchors = domains.filter(|(_, recorded)| !recorded.anchors.is_empty());
        with_anchors
            .map(|(domain, recorded)| (domain.clone(), recorded.anchors.clone()))
            .collect()
    }
}

impl RecordedDomain {
    /// Creates the record of a bundle. `origin` identifies the first bundle of the domain.
    pub fn new(origin: &str, bundle: ForeignBundle) -> Self {
        Self {
            origin: origin.to_owned(),
            sequence: bundle.sequence,
            anchors: bundle.anchors,
        }
    }

    /// Whether the bundle goes back to this first one.
    pub fn is_from(&self, origin: &str) -> bool {
        self.origin == origin
    }

    /// Returns the bundle.
    pub fn bundle(&self) -> ForeignBundle {
        ForeignBundle {
            sequence: self.sequence,
            anchors: self.anchors.clone(),
        }
    }

    /// Returns the record of the next bundle.
    #[must_use]
    pub fn with(&self, bundle: ForeignBundle) -> Self {
        Self::new(&self.origin, bundle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trips_and_a_damaged_one_is_an_error() {
        let mut recorded = Recorded::default();
        let bundle = |sequence, anchors: &str| ForeignBundle {
            sequence,
            anchors: anchors.to_owned(),
        };
        recorded.set(
            "a.example",
            RecordedDomain::new("o", bundle(Some(7), "one")),
        );
        recorded.set("b.example", RecordedDomain::new("o", bundle(None, "")));
        let text = recorded.to_text().unwrap();
        assert_eq!(Recorded::read(Some(&text)).unwrap(), recorded);
        assert_eq!(Recorded::read(None).unwrap(), Recorded::default());
        let anchors = [("a.example".to_owned(), "one".to_owned())];
        assert_eq!(recorded.anchors(), anchors.into());
        for damaged in ["", "[]", r#"{"a":{"anchors":1}}"#] {
            Recorded::read(Some(damaged)).unwrap_err();
        }
    }
}
