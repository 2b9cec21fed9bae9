//! `proxy_inject_admission_requests_total` and `proxy_inject_admission_responses_total`, for the
//! dashboards of Linkerd.
//!
//! The label values are bounded. Linkerd's labels with the values of configuration annotations are
//! omitted, because clients that create pods could set any number of values.

use std::collections::HashMap;

use mesh_core::annotation;
use mesh_k8s::inject::SkipReason;
use mesh_k8s::kinds::ObjectMeta;
use mesh_k8s::pod::meta_annotation;
use mesh_k8s::pod::owner::Owner;
use mesh_runtime::metrics::{Counter, CounterFamily, Labels, Registry};
use parking_lot::Mutex;

pub(super) struct Metrics {
    requests: CounterFamily,
    responses: CounterFamily,
    // A series expires after its last handle is dropped, so the handles are kept. Locked twice by
    // each review.
    handles: Mutex<HashMap<Labels, Counter>>,
}

/// A review that is counted as a request and not yet as a response.
pub(super) struct PendingReview<'a> {
    metrics: &'a Metrics,
    labels: Labels,
}

/// The result of a review.
pub(super) enum InjectionResult<'a> {
    Injected,
    /// Only the annotation of opaque ports was added.
    Annotated,
    Skipped(&'a [SkipReason]),
    /// The object is a Service without opaque ports.
    Unchanged,
    /// An annotation is invalid.
    Rejected,
}

/// The kinds with their own label value; all others are `other`.
const KINDS: [&str; 9] = [
    "cronjob",
    "daemonset",
    "deployment",
    "job",
    "pod",
    "replicaset",
    "replicationcontroller",
    "service",
    "statefulset",
];

/// The maximum number of series. Further ones have an empty namespace.
const MAX_SERIES: usize = 4096;

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            requests: registry.counter_family(
                "proxy_inject_admission_requests_total",
                "Reviews of Pods and Services that the API server requested",
            ),
            responses: registry.counter_family(
                "proxy_inject_admission_responses_total",
                "Reviews of Pods and Services that were completed, by whether the object was skipped and why",
            ),
            handles: Mutex::default(),
        }
    }

    pub(super) fn request(
        &self,
        owner: &Owner,
        namespace: &str,
        annotations: &ObjectMeta,
    ) -> PendingReview<'_> {
        let kind = KINDS.iter().find(|kind| **kind == owner.kind);
        let labels = |namespace: &str| {
            Labels::new()
                .with("owner_kind", *kind.unwrap_or(&"other"))
                .with("namespace", namespace)
                .with("annotation_at", annotation_at(annotations))
        };
        let full = self.handles.lock().len() >= MAX_SERIES;
        let labels = labels(if full { "" } else { namespace });
        self.count(&self.requests, labels.clone());
        PendingReview {
            metrics: self,
            labels,
        }
    }

    fn count(&self, family: &CounterFamily, labels: Labels) {
        let mut handles = self.handles.lock();
        let counter = handles
            .entry(labels)
            .or_insert_with_key(|labels| family.with(labels));
        counter.inc();
    }
}

impl PendingReview<'_> {
    pub(super) fn respond(self, result: InjectionResult<'_>) {
        let (skip, reason) = match result {
            InjectionResult::Injected | InjectionResult::Annotated => ("false", String::new()),
            InjectionResult::Unchanged => ("true", String::new()),
            InjectionResult::Rejected => ("true", "invalid_annotation".to_owned()),
            InjectionResult::Skipped(reasons) => {
                let codes: Vec<&str> = reasons.iter().map(|reason| reason.as_str()).collect();
                ("true", codes.join(","))
            }
        };
        let labels = self.labels.with("skip", skip).with("skip_reason", reason);
        self.metrics.count(&self.metrics.responses, labels);
    }
}

/// Returns which object has the annotation that enables injection.
fn annotation_at(namespace: &ObjectMeta) -> &'static str {
    match meta_annotation(namespace, annotation::INJECT) {
        Some("enabled" | "ingress") => "namespace",
        _ => "workload",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_are_counted_with_bounded_labels() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry);
        let enabled = ObjectMeta {
            annotations: Some([(annotation::INJECT.into(), "enabled".into())].into()),
            ..ObjectMeta::default()
        };
        let owner = |kind: &str| Owner {
            kind: kind.into(),
            name: "web".into(),
        };
        metrics
            .request(&owner("deployment"), "shop", &enabled)
            .respond(InjectionResult::Injected);
        let reasons = [SkipReason::HostNetwork, SkipReason::NotEnabled];
        metrics
            .request(&owner("rollout"), "shop", &ObjectMeta::default())
            .respond(InjectionResult::Skipped(&reasons));
        for n in 0..MAX_SERIES {
            metrics
                .request(&owner("pod"), &format!("ns-{n}"), &enabled)
                .respond(InjectionResult::Injected);
        }
        let text = String::from_utf8(registry.encode()).unwrap();
        for line in [
            r#"requests_total{annotation_at="namespace",namespace="shop",owner_kind="deployment"} 1"#,
            r#"responses_total{annotation_at="workload",namespace="shop",owner_kind="other",skip="true",skip_reason="host_network_enabled,injection_enable_annotation_absent"} 1"#,
        ] {
            assert!(
                text.lines()
                    .any(|printed| sorted(printed).contains(&sorted(line))),
                "{line}"
            );
        }
        assert!(text.lines().count() < MAX_SERIES + 16);
    }

    /// Sorts the labels of a line, for comparison.
    fn sorted(line: &str) -> String {
        let Some((name, rest)) = line.split_once('{') else {
            return line.to_owned();
        };
        let (labels, value) = rest.rsplit_once('}').unwrap();
        let mut labels: Vec<&str> = labels
            .split("\",")
            .map(|label| label.trim_end_matches('"'))
            .collect();
        labels.sort_unstable();
        format!("{name}{{{labels:?}}}{value}")
    }
}
