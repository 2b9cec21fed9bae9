//! `proxy_inject_admission_requests_total` and `proxy_inject_admission_responses_total`, which
//! dashboards of Linkerd read.
//!
//! Label values are bounded. Linkerd has a label for each configuration annotation with the pod's
//! value, which anybody who may create pods could fill without end; they are left out.

use std::collections::HashMap;

use mesh_core::annotation;
use mesh_k8s::{inject::SkipReason, kinds::ObjectMeta, pod::owner::Owner};
use mesh_runtime::metrics::{Counter, CounterFamily, Labels, Registry};
use parking_lot::Mutex;

pub(super) struct Metrics {
    requests: CounterFamily,
    responses: CounterFamily,
    // A series ends some time after its last handle is gone, so the handles are kept. Taken twice a
    // review.
    handles: Mutex<HashMap<Labels, Counter>>,
}

/// A review that has been counted and is not answered yet.
pub(super) struct Requested<'a> {
    metrics: &'a Metrics,
    labels: Labels,
}

/// What became of an object.
pub(super) enum Result<'a> {
    Injected,
    /// Its opaque ports were written, nothing else.
    Annotated,
    Skipped(&'a [SkipReason]),
    /// A Service without opaque ports.
    Untouched,
    /// An annotation cannot be read.
    Refused,
}

/// Kinds by their own name; whoever makes pods by other means is `other`.
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

/// Of namespaces, kinds and reasons together. Further ones are counted without namespace.
const MAX_SERIES: usize = 4096;

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            requests: registry.counter_family(
                "proxy_inject_admission_requests_total",
                "Reviews of Pods and Services that the API server asked for",
            ),
            responses: registry.counter_family(
                "proxy_inject_admission_responses_total",
                "Reviews of Pods and Services that were answered, by whether the object was left alone and why",
            ),
            handles: Mutex::default(),
        }
    }

    pub(super) fn request(
        &self,
        owner: &Owner,
        namespace: &str,
        annotations: &ObjectMeta,
    ) -> Requested<'_> {
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
        Requested {
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

impl Requested<'_> {
    pub(super) fn respond(self, result: Result<'_>) {
        let (skip, reason) = match result {
            Result::Injected | Result::Annotated => ("false", String::new()),
            Result::Untouched => ("true", String::new()),
            Result::Refused => ("true", "invalid_annotation".to_owned()),
            Result::Skipped(reasons) => {
                let codes: Vec<&str> = reasons.iter().map(|reason| reason.code()).collect();
                ("true", codes.join(","))
            }
        };
        let labels = self.labels.with("skip", skip).with("skip_reason", reason);
        self.metrics.count(&self.metrics.responses, labels);
    }
}

/// Whose annotation asked for injection.
fn annotation_at(namespace: &ObjectMeta) -> &'static str {
    let annotations = namespace.annotations.as_ref();
    let mode = annotations.and_then(|all| all.get(annotation::INJECT));
    match mode.map(String::as_str) {
        Some("enabled" | "ingress") => "namespace",
        _ => "workload",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_responses_are_counted_with_bounded_labels() {
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
            .respond(Result::Injected);
        let reasons = [SkipReason::HostNetwork, SkipReason::NotEnabled];
        metrics
            .request(&owner("rollout"), "shop", &ObjectMeta::default())
            .respond(Result::Skipped(&reasons));
        for n in 0..MAX_SERIES {
            metrics
                .request(&owner("pod"), &format!("ns-{n}"), &enabled)
                .respond(Result::Injected);
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

    /// Labels in alphabetical order, for comparing.
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
