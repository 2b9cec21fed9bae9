//! Workloads of the mesh whose pods cannot be created, so that no check of pods shows them.

use mesh_k8s::inject::{self, Decision};
use mesh_k8s::kinds::core::Event;
use mesh_k8s::kinds::{ObjectMeta, Pod};
use serde_json::{Value, json};

use super::super::admission;
use super::super::framework::{CheckResult, Finding, Outcome};
use crate::facts::{Fact, Facts, fact_ref};

/// A workload, with a pod as its template describes it.
pub(super) struct Workload<'a> {
    pub(super) namespace: &'a str,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) pod: Pod,
    json: &'a Value,
}

impl Workload<'_> {
    /// Returns `Deployment shop/web`.
    pub(super) fn title(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }

    /// Returns the command that opens it in an editor.
    pub(super) fn edit(&self) -> String {
        format!(
            "kubectl -n {} edit {} {}",
            self.namespace,
            self.kind.to_ascii_lowercase(),
            self.name
        )
    }
}

/// Returns the workloads of the scope whose pods would get a proxy.
pub(super) fn meshed(facts: &Facts) -> Fact<impl Iterator<Item = Workload<'_>>> {
    fact_ref(&facts.objects.namespaces)?;
    let projection = facts.values()?.identity.service_account_token_projection;
    let own = facts.own_namespaces();
    let all = fact_ref(&facts.objects.workloads)?.iter();
    Ok(all.filter_map(move |json| {
        let workload = read(json)?;
        let is_in_scope =
            facts.scope.contains(workload.namespace) && !own.contain(workload.namespace);
        let none = ObjectMeta::default();
        let namespace = facts.namespace(workload.namespace);
        let namespace = namespace.map_or(&none, |namespace| &namespace.metadata);
        let decision = inject::decide(namespace, &workload.pod, projection);
        (is_in_scope && matches!(decision, Decision::Inject { .. })).then_some(workload)
    }))
}

fn read(json: &Value) -> Option<Workload<'_>> {
    let (meta, spec) = (&json["metadata"], &json["spec"]);
    // The owner's workload has the same template.
    if meta["ownerReferences"]
        .as_array()
        .is_some_and(|owners| !owners.is_empty())
    {
        return None;
    }
    let kind = json["kind"].as_str()?;
    let template = match kind {
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job" => &spec["template"],
        "CronJob" => &spec["jobTemplate"]["spec"]["template"],
        _ => return None,
    };
    let namespace = meta["namespace"].as_str()?;
    let mut pod = json!({ "metadata": template["metadata"], "spec": template["spec"] });
    if !pod["metadata"].is_object() {
        pod["metadata"] = json!({});
    }
    pod["metadata"]["namespace"] = json!(namespace);
    Some(Workload {
        namespace,
        kind,
        name: meta["name"].as_str()?,
        pod: serde_json::from_value(pod).ok()?,
        json,
    })
}

/// Finds workloads without all their pods, because the API server rejects them.
pub(super) fn cannot_create(facts: &Facts) -> CheckResult {
    let events = fact_ref(&facts.objects.failed_creates)?;
    let wrong = meshed(facts)?.filter_map(|workload| {
        let message = rejection(workload.json, events)?;
        let finding = Finding::new(format!(
            "{} cannot create its pods: {}",
            workload.title(),
            message.trim()
        ));
        let fix = admission::fix(&message, workload.namespace);
        Some(finding.with_fix(fix.unwrap_or_else(|| {
            format!(
                "remove the obstacle that the message names; kubectl -n {} get events --field-selector reason=FailedCreate",
                workload.namespace
            )
        })))
    });
    Ok(Outcome::fail_if(wrong, ""))
}

/// Returns why the pods of a workload that lacks some were rejected the last time.
fn rejection(json: &Value, events: &[Event]) -> Option<String> {
    let status = &json["status"];
    let conditions = status["conditions"].as_array();
    let failure = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "ReplicaFailure" && condition["status"] == "True");
    if let Some(message) = failure.and_then(|failure| failure["message"].as_str()) {
        return Some(message.to_owned());
    }
    // These kinds have no condition for it.
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let lacks_pods = match json["kind"].as_str()? {
        "StatefulSet" => {
            number(&status["replicas"]) < json["spec"]["replicas"].as_u64().unwrap_or(1)
        }
        "DaemonSet" => {
            number(&status["currentNumberScheduled"]) < number(&status["desiredNumberScheduled"])
        }
        "Job" => {
            let counts = ["active", "succeeded", "failed"];
            counts.iter().all(|count| number(&status[count]) == 0)
        }
        _ => false,
    };
    let about = |event: &&Event| {
        let object = &event.involved_object;
        object.kind.as_deref() == json["kind"].as_str()
            && object.name.as_deref() == json["metadata"]["name"].as_str()
            && object.namespace.as_deref() == json["metadata"]["namespace"].as_str()
    };
    let last = events
        .iter()
        .filter(about)
        .max_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
    last.filter(|_event| lacks_pods)?.message.clone()
}
