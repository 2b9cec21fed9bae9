//! The proxy injector: patches Pods and Services with `mesh_k8s::inject`.
//!
//! That pure function decides; this module provides its inputs (values, namespace, owner of the
//! pod) and reports the decision (events, metrics, log). The webhook's server calls it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use mesh_cluster::api_server::{Events, ObjectEvent, Severity};
use mesh_cluster::webhook::review::Kind;
use mesh_cluster::webhook::{AdmissionDecision, AdmissionRequest, ReviewFuture, Reviewer};
use mesh_k8s::inject::{self, Decision, InjectError, PatchOutcome, SkipReason};
use mesh_k8s::kinds::{Pod, Service};
use mesh_k8s::pod::owner::Owner;
use mesh_runtime::metrics::Registry;

use self::metrics::{InjectionResult, Metrics};

mod caches;
mod metrics;
mod settings;

pub(crate) use self::{
    caches::{Caches, rights},
    settings::{Settings, SettingsError, SettingsFiles},
};

/// Reviews Pods and Services.
pub(crate) struct Injector {
    settings: Arc<Settings>,
    caches: Caches,
    events: Events,
    metrics: Metrics,
}

/// The name of this controller in events.
pub(crate) const CONTROLLER: &str = "linkerd-proxy-injector";

/// The workload that owns a pod, with a reference for events.
struct PodOwner {
    owner: Owner,
    /// `None` for a pod without owner, which does not exist yet.
    reference: Option<ObjectReference>,
}

impl Injector {
    pub(crate) fn new(
        settings: Arc<Settings>,
        caches: Caches,
        events: Events,
        registry: &Registry,
    ) -> Self {
        Self {
            settings,
            caches,
            events,
            metrics: Metrics::new(registry),
        }
    }

    async fn pod(&self, review: AdmissionRequest) -> Result<AdmissionDecision, String> {
        let mut pod: Pod = review.object()?;
        let namespace_name = review.namespace.unwrap_or_default();
        let dry_run = review.dry_run == Some(true);
        // Pods of workloads have neither namespace nor name yet.
        pod.metadata.namespace = Some(namespace_name.clone());
        let Some(namespace) = self.caches.namespace(&namespace_name).await? else {
            return Ok(no_namespace(&namespace_name));
        };
        let pod_owner = self.pod_owner(&pod).await;
        let values = self.settings.current();
        let pending = self
            .metrics
            .request(&pod_owner.owner, &namespace_name, &namespace);
        let patched = inject::patch(&values, &namespace, &pod, &pod_owner.owner);
        let outcome = match patched {
            Ok(outcome) => outcome,
            Err(InjectError::Annotations(problems)) => {
                pending.respond(InjectionResult::Rejected);
                let reason = InjectError::Annotations(problems).to_string();
                if !dry_run {
                    self.post_rejection(pod_owner, &reason);
                }
                return Ok(AdmissionDecision::deny(reason));
            }
            Err(error) => return Err(error.to_string()),
        };
        let PatchOutcome {
            decision,
            patch,
            warnings,
        } = outcome;
        match &decision {
            Decision::Inject { .. } => pending.respond(InjectionResult::Injected),
            // The annotation of opaque ports was added.
            Decision::Skip(_) if !patch.is_empty() => pending.respond(InjectionResult::Annotated),
            Decision::Skip(reasons) => pending.respond(InjectionResult::Skipped(reasons)),
        }
        log_decision(&namespace_name, &pod_owner, &decision, &warnings);
        if !dry_run {
            self.post(pod_owner, &decision, &warnings);
        }
        Ok(AdmissionDecision {
            denied: None,
            patch,
            warnings,
        })
    }

    async fn service(&self, review: AdmissionRequest) -> Result<AdmissionDecision, String> {
        let service: Service = review.object()?;
        let name = review.namespace.unwrap_or_default();
        let Some(namespace) = self.caches.namespace(&name).await? else {
            return Ok(no_namespace(&name));
        };
        let owner = Owner {
            kind: "service".into(),
            name: service.metadata.name.clone().unwrap_or_default(),
        };
        let pending = self.metrics.request(&owner, &name, &namespace);
        let patch = inject::patch_service(&self.settings.current(), &namespace, &service);
        let warnings = inject::service_warnings(&namespace, &service, &name);
        pending.respond(if patch.is_empty() {
            InjectionResult::Unchanged
        } else {
            InjectionResult::Annotated
        });
        Ok(AdmissionDecision {
            denied: None,
            patch,
            warnings,
        })
    }

    /// Returns the workload that owns a pod. If the direct owner cannot be looked up in time, it
    /// counts as the workload: a pod does not wait for a label.
    async fn pod_owner(&self, pod: &Pod) -> PodOwner {
        let meta = &pod.metadata;
        let Some([direct]) = meta.owner_references.as_deref() else {
            let name = meta.name.as_ref().or(meta.generate_name.as_ref());
            return PodOwner {
                owner: Owner {
                    kind: "pod".into(),
                    name: name.cloned().unwrap_or_default(),
                },
                reference: None,
            };
        };
        let namespace = meta.namespace.clone().unwrap_or_default();
        let intermediate_owner = self
            .caches
            .intermediate_owner(&namespace, &direct.kind, &direct.name)
            .await;
        let owner = mesh_k8s::pod::owner::resolve(pod, |_, _| intermediate_owner.as_deref());
        // The reference of the owner that `resolve` returned.
        let owners_of_owner = intermediate_owner
            .iter()
            .flat_map(|meta| meta.owner_references.iter().flatten());
        let chosen = owners_of_owner
            .chain([direct])
            .find(|owner_ref| {
                owner_ref.name == owner.name && owner_ref.kind.eq_ignore_ascii_case(&owner.kind)
            })
            .unwrap_or(direct);
        PodOwner {
            reference: Some(ObjectReference {
                api_version: Some(chosen.api_version.clone()),
                kind: Some(chosen.kind.clone()),
                name: Some(chosen.name.clone()),
                namespace: Some(namespace),
                uid: Some(chosen.uid.clone()),
                ..ObjectReference::default()
            }),
            owner,
        }
    }

    /// Posts an event that starts with the annotation. Kubernetes only posts that the workload
    /// cannot create pods.
    fn post_rejection(&self, pod_owner: PodOwner, reason: &str) {
        if let Some(about) = pod_owner.reference {
            self.post_event(
                about,
                Severity::Warning,
                "InvalidAnnotation",
                reason.to_owned(),
            );
        }
    }

    /// Posts events about the decision on the workload.
    fn post(&self, pod_owner: PodOwner, decision: &Decision, warnings: &[String]) {
        let Some(about) = pod_owner.reference else {
            return;
        };
        let (reason, note) = match decision {
            Decision::Inject { .. } => ("Injected", "Linkerd sidecar proxy injected".to_owned()),
            // No event for pods without injection, because there may be many of them.
            Decision::Skip(reasons) if reasons.contains(&SkipReason::NotEnabled) => return,
            Decision::Skip(reasons) => (
                "InjectionSkipped",
                format!(
                    "Linkerd sidecar proxy injection skipped: {}",
                    join_reasons(reasons)
                ),
            ),
        };
        self.post_event(about.clone(), Severity::Normal, reason, note);
        // The client that creates a pod, which gets the warnings of the response, is a controller.
        if !warnings.is_empty() {
            let note = warnings.join("; ");
            self.post_event(about, Severity::Warning, "InvalidAnnotation", note);
        }
    }

    fn post_event(
        &self,
        about: ObjectReference,
        severity: Severity,
        reason: &'static str,
        note: String,
    ) {
        self.events.post(ObjectEvent {
            about,
            severity,
            reason,
            action: "Inject",
            note,
        });
    }
}

impl Reviewer for Injector {
    fn review(&self, review: AdmissionRequest) -> ReviewFuture<'_> {
        Box::pin(async move {
            let Kind { group, kind } = &review.kind;
            match (group.as_str(), kind.as_str(), review.operation.as_str()) {
                ("", "Pod", "CREATE") => self.pod(review).await,
                ("", "Service", "CREATE") => self.service(review).await,
                // The chart registers nothing else.
                _ => Ok(AdmissionDecision::allow()),
            }
        })
    }

    fn failed(&self, problem: String) -> AdmissionDecision {
        decision_on_failure(&self.settings.current().webhook_failure_policy, problem)
    }
}

/// Applies the webhook's `failurePolicy`, which is also in the values.
fn decision_on_failure(policy: &str, problem: String) -> AdmissionDecision {
    match policy {
        "Ignore" => AdmissionDecision {
            warnings: vec![format!(
                "the injector could not review this object, which is admitted unchanged: {problem}"
            )],
            ..AdmissionDecision::allow()
        },
        _ => AdmissionDecision::deny(format!(
            "the injector could not review this object: {problem}"
        )),
    }
}

fn no_namespace(name: &str) -> AdmissionDecision {
    AdmissionDecision::deny(format!("there is no namespace {name:?}"))
}

/// An invalid object is of a newer version than this program.
fn log_decision(namespace: &str, pod_owner: &PodOwner, decision: &Decision, warnings: &[String]) {
    let Owner { kind, name } = &pod_owner.owner;
    match decision {
        Decision::Inject { .. } => tracing::info!(namespace, kind, name, "Injected pod"),
        Decision::Skip(reasons) => {
            tracing::debug!(
                namespace,
                kind,
                name,
                reason = join_reasons(reasons),
                "Skipped pod"
            );
        }
    }
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

fn join_reasons(reasons: &[SkipReason]) -> String {
    let texts: Vec<&str> = reasons.iter().map(|reason| reason.text()).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreviewed_object_is_admitted_or_denied_by_failure_policy() {
        let ignore = decision_on_failure("Ignore", "no response".into());
        assert_eq!(ignore.denied, None);
        assert_eq!(
            ignore.warnings,
            ["the injector could not review this object, which is admitted unchanged: no response"]
        );
        let fail = decision_on_failure("Fail", "no response".into());
        let denied = fail.denied.unwrap();
        assert_eq!(
            denied,
            "the injector could not review this object: no response"
        );
        assert_eq!(
            no_namespace("shop").denied.unwrap(),
            "there is no namespace \"shop\""
        );
    }
}
