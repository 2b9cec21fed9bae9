//! The validating webhooks of policies and ServiceProfiles: the verdicts of `mesh_k8s::validate` as
//! decisions about reviews.

use std::sync::Arc;

use mesh_k8s::validate::{Denied, Submission};
use mesh_runtime::metrics::{Counter, Labels, Registry};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::sync::Semaphore;

use mesh_cluster::webhook::{AdmissionDecision, AdmissionRequest, ReviewFuture, Reviewer};

/// The verdict about an object.
pub(crate) type Rules = fn(Submission<'_>) -> Result<(), Denied>;

/// Reviews objects by the rules of their kinds.
pub(crate) struct Validator {
    rules: Rules,
    failure_policy: FailurePolicy,
    /// One permit for each object that is validated at the same time.
    running: Arc<Semaphore>,
    admitted: Counter,
    denied: Counter,
    failed: Counter,
}

/// The decision about an object that could not be validated, which is the `failurePolicy` of the
/// webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum FailurePolicy {
    Ignore,
    Fail,
}

/// Validation compiles regular expressions and has no await point, so that it runs on a thread for
/// blocking work. The API server sends few such objects at once.
const MAX_RUNNING: usize = 4;

impl Validator {
    pub(crate) fn new(rules: Rules, failure_policy: FailurePolicy, registry: &Registry) -> Self {
        let reviews = registry.counter_family(
            "mesh_validator_reviews_total",
            "Reviewed objects, by whether they were admitted, denied, or the review failed",
        );
        let counter = |result| reviews.with(&Labels::new().with("result", result));
        Self {
            rules,
            failure_policy,
            running: Arc::new(Semaphore::new(MAX_RUNNING)),
            admitted: counter("admitted"),
            denied: counter("denied"),
            failed: counter("failed"),
        }
    }

    async fn validate(&self, review: AdmissionRequest) -> Result<AdmissionDecision, String> {
        let closed = |_| "the process is stopping".to_owned();
        // Moved into the thread, which continues after the deadline of the response.
        let permit = self.running.clone().acquire_owned().await.map_err(closed)?;
        let rules = self.rules;
        let validated = tokio::task::spawn_blocking(move || {
            let _running = permit;
            let object: Value = review.object()?;
            Ok(rules(Submission {
                group: &review.kind.group,
                kind: &review.kind.kind,
                namespace: review.namespace.as_deref().unwrap_or_default(),
                object: &object,
            }))
        });
        let ended = |error| Err(format!("the validation ended: {error}"));
        match validated.await.unwrap_or_else(ended)? {
            Ok(()) => {
                self.admitted.inc();
                Ok(AdmissionDecision::allow())
            }
            Err(denied) => {
                self.denied.inc();
                let reason = denied.to_string();
                tracing::info!(reason, "Denied invalid object");
                Ok(AdmissionDecision::deny(reason))
            }
        }
    }
}

impl Reviewer for Validator {
    fn review(&self, review: AdmissionRequest) -> ReviewFuture<'_> {
        Box::pin(async move {
            match review.operation.as_str() {
                // Objects that were stored before they became invalid can be deleted, and a
                // deletion has no object.
                "DELETE" | "CONNECT" => Ok(AdmissionDecision::allow()),
                // Otherwise an invalid object with finalizers could not be deleted.
                "UPDATE" if is_being_deleted(&review) => Ok(AdmissionDecision::allow()),
                // A review has no side effects, so that a dry run is reviewed in the same way.
                _ => self.validate(review).await,
            }
        })
    }

    fn failed(&self, problem: String) -> AdmissionDecision {
        self.failed.inc();
        match self.failure_policy {
            FailurePolicy::Ignore => AdmissionDecision {
                warnings: vec![format!(
                    "the validator could not review this object, which is admitted: {problem}"
                )],
                ..AdmissionDecision::allow()
            },
            FailurePolicy::Fail => AdmissionDecision::deny(format!(
                "the validator could not review this object, try again: {problem}"
            )),
        }
    }
}

fn is_being_deleted(review: &AdmissionRequest) -> bool {
    /// The part of an object that is read.
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        deletion_timestamp: Option<IgnoredAny>,
    }
    let object = review.object::<Object>();
    object.is_ok_and(|object| object.metadata.deletion_timestamp.is_some())
}

#[cfg(test)]
mod tests {
    use mesh_cluster::webhook::review::{self, ReviewMemory};
    use serde_json::json;

    use super::*;

    fn validator(failure_policy: FailurePolicy) -> (Validator, Registry) {
        let registry = Registry::new();
        let validator = Validator::new(mesh_k8s::validate::policy, failure_policy, &registry);
        (validator, registry)
    }

    /// Sends a review as the API server writes it, and returns the response.
    async fn response(validator: &Validator, request: Value) -> Value {
        let body = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": request,
        });
        let body = serde_json::to_vec(&body).unwrap();
        let (review, header) = review::parse(body.into(), ReviewMemory::alone()).unwrap();
        let decision = validator.review(review).await.unwrap();
        let bytes = review::encode_response(&header, &decision).unwrap();
        serde_json::from_slice::<Value>(&bytes).unwrap()["response"].take()
    }

    fn server(operation: &str, port: u32, dry_run: bool) -> Value {
        json!({
            "uid": "u1",
            "kind": {"group": "policy.linkerd.io", "version": "v1beta3", "kind": "Server"},
            "namespace": "shop",
            "operation": operation,
            "dryRun": dry_run,
            "object": {"metadata": {"name": "web"}, "spec": {"podSelector": {}, "port": port}},
        })
    }

    #[tokio::test]
    async fn object_is_admitted_or_denied_with_code_and_message() {
        let (validator, registry) = validator(FailurePolicy::Fail);
        for dry_run in [false, true] {
            let admitted = response(&validator, server("CREATE", 80, dry_run)).await;
            assert_eq!(admitted, json!({"uid": "u1", "allowed": true}));
            let denied = response(&validator, server("UPDATE", 0, dry_run)).await;
            assert_eq!(
                (&denied["allowed"], &denied["status"]["code"]),
                (&json!(false), &json!(400))
            );
            let message = denied["status"]["message"].as_str().unwrap();
            assert!(
                message.starts_with("Server shop/web is invalid: spec.port: 0 "),
                "{message}"
            );
        }
        let text = String::from_utf8(registry.encode()).unwrap();
        for line in [
            "{result=\"admitted\"} 2",
            "{result=\"denied\"} 2",
            "{result=\"failed\"} 0",
        ] {
            assert!(
                text.contains(&format!("mesh_validator_reviews_total{line}")),
                "{text}"
            );
        }
    }

    #[tokio::test]
    async fn deletion_is_admitted_without_object() {
        let (validator, _) = validator(FailurePolicy::Fail);
        let mut request = server("DELETE", 0, false);
        request["object"] = Value::Null;
        assert_eq!(response(&validator, request).await["allowed"], true);
    }

    #[tokio::test]
    async fn invalid_object_is_admitted_while_it_is_deleted() {
        let (validator, _) = validator(FailurePolicy::Fail);
        for (operation, allowed) in [("UPDATE", true), ("CREATE", false)] {
            let mut request = server(operation, 0, false);
            request["object"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            assert_eq!(response(&validator, request).await["allowed"], allowed);
        }
    }

    #[tokio::test]
    async fn object_of_unknown_kind_is_denied() {
        let (validator, _) = validator(FailurePolicy::Ignore);
        let mut request = server("CREATE", 80, false);
        request["kind"]["kind"] = "Gadget".into();
        let denied = response(&validator, request).await;
        let message = denied["status"]["message"].as_str().unwrap();
        assert!(message.starts_with("Gadget of group"), "{message}");
    }

    #[test]
    fn failure_policy_decides_about_unreviewed_object() {
        let ignored = validator(FailurePolicy::Ignore).0.failed("late".into());
        assert_eq!((ignored.denied, ignored.warnings.len()), (None, 1));
        let failed = validator(FailurePolicy::Fail).0.failed("late".into());
        assert!(failed.denied.unwrap().ends_with("try again: late"));
    }
}
