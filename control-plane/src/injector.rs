//! The proxy injector: answers reviews of Pods and Services with the patch of `mesh_k8s::inject`.
//!
//! The decision is that pure function's; here is what it is given (values, the namespace, the pod's
//! owner) and what is told about it (events, metrics, the log). Called by the webhook's server.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use mesh_k8s::{
    inject::{self, Decision, InjectError, Outcome, SkipReason},
    kinds::{Pod, Service},
    pod::owner::Owner,
};
use mesh_runtime::metrics::Registry;
use serde::de::DeserializeOwned;

use crate::{
    cluster::{Events, Posting, Severity},
    webhook::{Answer, Review, Reviewer, Verdict, review::Kind},
};

mod caches;
mod metrics;
mod settings;

use self::metrics::{Metrics, Result};
pub(crate) use self::{
    caches::Caches,
    settings::{Settings, SettingsError, SettingsFiles},
};

/// Reviews objects.
pub(crate) struct Injector {
    settings: Arc<Settings>,
    caches: Caches,
    events: Events,
    metrics: Metrics,
}

/// How events and audit logs call us.
pub(crate) const CONTROLLER: &str = "linkerd-proxy-injector";

/// The workload of a pod, and how to refer to it.
struct Workload {
    owner: Owner,
    /// Absent for a pod that nothing owns: it does not exist yet.
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

    async fn pod(&self, review: Review) -> std::result::Result<Verdict, String> {
        let namespace_name = review.namespace.unwrap_or_default();
        let dry_run = review.dry_run == Some(true);
        let mut pod: Pod = read(review.object, "Pod")?;
        // Pods of workloads name no namespace, and have no name yet.
        pod.metadata.namespace = Some(namespace_name.clone());
        let Some(namespace) = self.caches.namespace(&namespace_name).await? else {
            return Ok(no_namespace(&namespace_name));
        };
        let workload = self.workload(&pod).await;
        let values = self.settings.current();
        let requested = self
            .metrics
            .request(&workload.owner, &namespace_name, &namespace);
        let patched = inject::patch(&values, &namespace, &pod, &workload.owner);
        let outcome = match patched {
            Ok(outcome) => outcome,
            Err(InjectError::Annotations(problems)) => {
                requested.respond(Result::Refused);
                let reason = InjectError::Annotations(problems).to_string();
                if !dry_run {
                    self.post_refusal(workload, &reason);
                }
                return Ok(Verdict::deny(reason));
            }
            Err(error) => return Err(error.to_string()),
        };
        let Outcome {
            decision,
            patch,
            warnings,
        } = outcome;
        match &decision {
            Decision::Inject { .. } => requested.respond(Result::Injected),
            // The opaque ports count as something done.
            Decision::Skip(_) if !patch.is_empty() => requested.respond(Result::Annotated),
            Decision::Skip(reasons) => requested.respond(Result::Skipped(reasons)),
        }
        tell(&namespace_name, &workload, &decision, &warnings);
        if !dry_run {
            self.post(workload, &decision, &warnings);
        }
        Ok(Verdict {
            denied: None,
            patch,
            warnings,
        })
    }

    async fn service(&self, review: Review) -> std::result::Result<Verdict, String> {
        let service: Service = read(review.object, "Service")?;
        let name = review.namespace.unwrap_or_default();
        let Some(namespace) = self.caches.namespace(&name).await? else {
            return Ok(no_namespace(&name));
        };
        let owner = Owner {
            kind: "service".into(),
            name: service.metadata.name.clone().unwrap_or_default(),
        };
        let requested = self.metrics.request(&owner, &name, &namespace);
        let patch = inject::patch_service(&self.settings.current(), &namespace, &service);
        let warnings = inject::service_warnings(&namespace, &service, &name);
        requested.respond(if patch.is_empty() {
            Result::Untouched
        } else {
            Result::Annotated
        });
        Ok(Verdict {
            denied: None,
            patch,
            warnings,
        })
    }

    /// The workload behind a pod. An owner that cannot be looked up in time is taken for the
    /// workload itself: a pod need not wait for a label.
    async fn workload(&self, pod: &Pod) -> Workload {
        let meta = &pod.metadata;
        let Some([direct]) = meta.owner_references.as_deref() else {
            let name = meta.name.as_ref().or(meta.generate_name.as_ref());
            return Workload {
                owner: Owner {
                    kind: "pod".into(),
                    name: name.cloned().unwrap_or_default(),
                },
                reference: None,
            };
        };
        let namespace = meta.namespace.clone().unwrap_or_default();
        let between = self
            .caches
            .between(&namespace, &direct.kind, &direct.name)
            .await;
        let owner = mesh_k8s::pod::owner::resolve(pod, |_, _| between.as_deref());
        // The one that `of` chose: the owner's owner, unless it has none that counts.
        let above = between
            .iter()
            .flat_map(|meta| meta.owner_references.iter().flatten());
        let chosen = above
            .chain([direct])
            .find(|owner_ref| {
                owner_ref.name == owner.name && owner_ref.kind.eq_ignore_ascii_case(&owner.kind)
            })
            .unwrap_or(direct);
        Workload {
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

    /// A controller that cannot create its pods says so in an event of its own, without the name of
    /// the annotation at its beginning.
    fn post_refusal(&self, workload: Workload, reason: &str) {
        if let Some(about) = workload.reference {
            self.events.post(Posting {
                about,
                severity: Severity::Warning,
                reason: "InvalidAnnotation",
                action: "Inject",
                note: reason.to_owned(),
            });
        }
    }

    /// Tells whoever looks at the workload what became of its pod.
    fn post(&self, workload: Workload, decision: &Decision, warnings: &[String]) {
        let Some(about) = workload.reference else {
            return;
        };
        let (reason, note) = match decision {
            Decision::Inject { .. } => ("Injected", "Linkerd sidecar proxy injected".to_owned()),
            // Nobody asked. Told of every pod outside the mesh, it would bury the events that
            // somebody looks for.
            Decision::Skip(reasons) if reasons.contains(&SkipReason::NotEnabled) => return,
            Decision::Skip(reasons) => (
                "InjectionSkipped",
                format!(
                    "Linkerd sidecar proxy injection skipped: {}",
                    texts(reasons)
                ),
            ),
        };
        self.events.post(Posting {
            about: about.clone(),
            severity: Severity::Normal,
            reason,
            action: "Inject",
            note,
        });
        // Warnings reach whoever creates a pod, which is a controller that nobody reads.
        if !warnings.is_empty() {
            self.events.post(Posting {
                about,
                severity: Severity::Warning,
                reason: "InvalidAnnotation",
                action: "Inject",
                note: warnings.join("; "),
            });
        }
    }
}

impl Reviewer for Injector {
    fn review(&self, review: Review) -> Answer<'_> {
        Box::pin(async move {
            let Kind { group, kind } = &review.kind;
            match (group.as_str(), kind.as_str(), review.operation.as_str()) {
                ("", "Pod", "CREATE") => self.pod(review).await,
                ("", "Service", "CREATE") => self.service(review).await,
                // The chart asks for nothing else; to be asked all the same is no reason to stand
                // in the way.
                _ => Ok(Verdict::allow()),
            }
        })
    }

    fn failed(&self, problem: String) -> Verdict {
        verdict_on_failure(&self.settings.current().webhook_failure_policy, problem)
    }
}

/// The values have the `failurePolicy` that the chart wrote into the webhook's configuration.
fn verdict_on_failure(policy: &str, problem: String) -> Verdict {
    match policy {
        "Ignore" => Verdict {
            warnings: vec![format!(
                "the injector could not look at this object, which is admitted as it is: {problem}"
            )],
            ..Verdict::allow()
        },
        _ => Verdict::deny(format!(
            "the injector could not look at this object: {problem}"
        )),
    }
}

fn no_namespace(name: &str) -> Verdict {
    Verdict::deny(format!("there is no namespace {name:?}"))
}

/// An object of the API server that we cannot read is newer than we are.
fn read<T: DeserializeOwned>(
    object: serde_json::Value,
    kind: &str,
) -> std::result::Result<T, String> {
    serde_json::from_value(object).map_err(|error| format!("cannot read the {kind}: {error}"))
}

fn tell(namespace: &str, workload: &Workload, decision: &Decision, warnings: &[String]) {
    let Owner { kind, name } = &workload.owner;
    match decision {
        Decision::Inject { .. } => tracing::info!(namespace, kind, name, "Injected"),
        Decision::Skip(reasons) => {
            tracing::debug!(
                namespace,
                kind,
                name,
                reason = texts(reasons),
                "Not injected"
            );
        }
    }
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

fn texts(reasons: &[SkipReason]) -> String {
    let texts: Vec<&str> = reasons.iter().map(|reason| reason.text()).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_reviewed_is_admitted_or_denied_as_the_failure_policy_says() {
        let ignore = verdict_on_failure("Ignore", "no answer".into());
        assert_eq!(ignore.denied, None);
        assert_eq!(
            ignore.warnings,
            ["the injector could not look at this object, which is admitted as it is: no answer"]
        );
        let fail = verdict_on_failure("Fail", "no answer".into());
        let said = fail.denied.unwrap();
        assert_eq!(
            said,
            "the injector could not look at this object: no answer"
        );
        assert_eq!(
            no_namespace("shop").denied.unwrap(),
            "there is no namespace \"shop\""
        );
    }
}
