//! The tap injector: lets the tap controller observe the proxies of new pods.
//!
//! `mesh_k8s::inject::tap_patch` decides. The API server calls this webhook again if the proxy
//! injector adds a proxy after it (`reinvocationPolicy: IfNeeded`).

use mesh_core::identity::Identity;
use mesh_core::rights::Right;
use mesh_k8s::inject::{DISABLE_TAP, tap_patch};
use mesh_k8s::kinds::{ObjectMeta, Pod};
use mesh_runtime::metrics::{Counter, Labels, Registry};

use mesh_cluster::metadata::{NamespaceCache, namespace_rights};
use mesh_cluster::webhook::review::Kind;
use mesh_cluster::webhook::{AdmissionDecision, AdmissionRequest, ReviewFuture, Reviewer};

/// Reviews Pods.
pub(crate) struct TapInjector {
    namespaces: NamespaceCache,
    /// The identity that may observe.
    observer: Identity,
    enabled: Counter,
    unchanged: Counter,
    failed: Counter,
}

/// The name of this controller in events.
pub(crate) const CONTROLLER: &str = "linkerd-tap-injector";

/// Returns whether the injector reads this annotation of namespaces.
pub(crate) fn is_tap_annotation(key: &str) -> bool {
    key == DISABLE_TAP
}

/// Returns the rights to find the annotations of namespaces.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    namespace_rights()
}

impl TapInjector {
    pub(crate) fn new(namespaces: NamespaceCache, observer: Identity, registry: &Registry) -> Self {
        let reviews = registry.counter_family(
            "mesh_tap_injector_reviews_total",
            "Reviewed pods, by whether tap was enabled, the pod was left unchanged, or the review failed",
        );
        let counter = |result| reviews.with(&Labels::new().with("result", result));
        Self {
            namespaces,
            observer,
            enabled: counter("enabled"),
            unchanged: counter("unchanged"),
            failed: counter("failed"),
        }
    }

    async fn pod(&self, review: AdmissionRequest) -> Result<AdmissionDecision, String> {
        let pod: Pod = review.object()?;
        let name = review.namespace.unwrap_or_default();
        // The API server creates no pod in a namespace that does not exist.
        let namespace = self.namespaces.get(&name).await?.unwrap_or_default();
        let decision = decide(&pod, &namespace, &self.observer)?;
        let counter = if decision.patch.is_empty() {
            &self.unchanged
        } else {
            tracing::info!(namespace = name, "Enabled tap of a pod");
            &self.enabled
        };
        counter.inc();
        Ok(decision)
    }
}

fn decide(
    pod: &Pod,
    namespace: &ObjectMeta,
    observer: &Identity,
) -> Result<AdmissionDecision, String> {
    let patch = tap_patch(namespace, pod, observer.as_str()).map_err(|error| error.to_string())?;
    Ok(AdmissionDecision {
        patch,
        ..AdmissionDecision::allow()
    })
}

impl Reviewer for TapInjector {
    fn review(&self, review: AdmissionRequest) -> ReviewFuture<'_> {
        Box::pin(async move {
            let Kind { group, kind } = &review.kind;
            match (group.as_str(), kind.as_str(), review.operation.as_str()) {
                ("", "Pod", "CREATE") => self.pod(review).await,
                // The chart registers nothing else.
                _ => Ok(AdmissionDecision::allow()),
            }
        })
    }

    /// A pod that cannot be tapped is better than none.
    fn failed(&self, problem: String) -> AdmissionDecision {
        self.failed.inc();
        AdmissionDecision {
            warnings: vec![format!(
                "the tap injector could not review this pod, whose requests cannot be tapped: {problem}"
            )],
            ..AdmissionDecision::allow()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_with_proxy_is_patched() {
        let observer = Identity::parse("tap.linkerd-viz.example").unwrap();
        let meshed = json!({"metadata": {}, "spec": {"containers": [{"name": "linkerd-proxy"}]}});
        let pod: Pod = serde_json::from_value(meshed.clone()).unwrap();
        let decision = decide(&pod, &ObjectMeta::default(), &observer).unwrap();
        let mut patched = meshed;
        decision.patch.apply(&mut patched).unwrap();
        let variable = &patched["spec"]["containers"][0]["env"][0];
        assert_eq!(variable["value"], "tap.linkerd-viz.example");
    }
}
