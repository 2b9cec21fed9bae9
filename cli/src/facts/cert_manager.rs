//! The Certificate of cert-manager that the issuer comes from.

use jiff::Timestamp;
use mesh_k8s::kinds::ObjectMeta;
use serde::Deserialize;

/// A Certificate, as far as it says whether its Secret is up to date.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Certificate {
    metadata: ObjectMeta,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    secret_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    conditions: Vec<Condition>,
    renewal_time: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
}

/// cert-manager repeats a failed renewal after an hour.
const RENEWAL_TAKES_SECONDS: u64 = 3600;

impl Certificate {
    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns whether cert-manager writes this Secret.
    pub(crate) fn writes(&self, secret: &str) -> bool {
        self.spec.secret_name == secret
    }

    /// Returns the Unix time when cert-manager renews it, if that is known and not long over.
    pub(crate) fn renewal(&self, now: u64) -> Option<u64> {
        let time = self.renewal_time()?;
        (now < time.saturating_add(RENEWAL_TAKES_SECONDS)).then_some(time)
    }

    /// Returns why the Secret is not up to date, or will not stay so.
    pub(crate) fn problems(&self, now: u64) -> Vec<String> {
        let name = self.name();
        let mut problems = Vec::new();
        match self.condition("Ready") {
            Some(ready) if ready.status == "True" => {}
            Some(ready) => problems.push(format!(
                "Certificate {name} is not ready: {} ({})",
                ready.message, ready.reason
            )),
            None => problems.push(format!(
                "Certificate {name} has no status: does cert-manager run?"
            )),
        }
        let failed = self.condition("Issuing");
        let failed = failed.filter(|it| it.status == "False" && it.reason == "Failed");
        problems.extend(failed.map(|it| {
            format!(
                "cert-manager could not issue Certificate {name}: {}",
                it.message
            )
        }));
        if problems.is_empty()
            && let Some(time) = self.renewal_time()
            && self.renewal(now).is_none()
        {
            let hours = now.saturating_sub(time) / 3600;
            problems.push(format!(
                "cert-manager should have renewed Certificate {name} {hours} h ago: does it run?"
            ));
        }
        problems
    }

    fn condition(&self, kind: &str) -> Option<&Condition> {
        let mut conditions = self.status.conditions.iter();
        conditions.find(|condition| condition.r#type == kind)
    }

    fn renewal_time(&self) -> Option<u64> {
        let time: Timestamp = self.status.renewal_time.as_ref()?.parse().ok()?;
        u64::try_from(time.as_second()).ok()
    }
}
