//! Which pods the API server sends to the injector, and where a dry run of that is possible.

use std::collections::BTreeMap;

use mesh_core::annotation;
use mesh_k8s::kinds::{LabelSelector, MutatingWebhook, Namespace, ResourceExt};
use mesh_k8s::select;

use super::names::INJECTOR_REGISTRATION;
use super::{Fact, Facts, fact_ref};

/// The label that excludes a namespace from webhooks.
pub(crate) const ADMISSION: &str = "config.linkerd.io/admission-webhooks";

/// Returns the webhook of the injector as it is registered.
pub(crate) fn webhook(facts: &Facts) -> Fact<&MutatingWebhook> {
    let configuration = fact_ref(&facts.objects.webhooks)?.as_ref();
    let configuration = configuration.ok_or_else(|| {
        format!(
            "MutatingWebhookConfiguration {INJECTOR_REGISTRATION} is missing: no pod is injected"
        )
    })?;
    let webhooks = configuration.webhooks.as_deref().unwrap_or_default();
    webhooks.first().ok_or_else(|| {
        format!(
            "MutatingWebhookConfiguration {} has no webhook",
            configuration.name_any()
        )
    })
}

type Labels = BTreeMap<String, String>;

/// Returns whether a selector of a webhook selects an object with these labels.
pub(crate) fn selects(selector: Option<&LabelSelector>, labels: Option<&Labels>) -> bool {
    selector.is_none_or(|selector| select::matches(selector, labels))
}

/// Returns whether the webhook receives the pods of the namespace.
pub(crate) fn admits(webhook: &MutatingWebhook, namespace: &Namespace) -> bool {
    selects(
        webhook.namespace_selector.as_ref(),
        namespace.metadata.labels.as_ref(),
    )
}

/// Returns whether the webhook receives new pods.
pub(crate) fn covers_pods(webhook: &MutatingWebhook) -> bool {
    let has = |list: &Option<Vec<String>>, what: &str| {
        list.as_ref()
            .is_none_or(|list| list.iter().any(|one| one == what || one == "*"))
    };
    webhook.rules.as_ref().is_none_or(|rules| {
        rules
            .iter()
            .any(|rule| has(&rule.operations, "CREATE") && has(&rule.resources, "pods"))
    })
}

pub(crate) fn excludes_webhooks(namespace: &Namespace) -> bool {
    namespace
        .labels()
        .get(ADMISSION)
        .is_some_and(|value| value == "disabled")
}

pub(crate) fn requests_injection(namespace: &Namespace) -> bool {
    let mode = namespace.annotations().get(annotation::INJECT);
    mode.is_some_and(|mode| mode == "enabled" || mode == "ingress")
}

/// Returns the namespace for the dry run: the one that `-n` names, a meshed one or `default`. The
/// error says why there is none.
pub(crate) fn dry_run_namespace(facts: &Facts) -> Result<String, String> {
    if let Some(name) = facts.scope.namespace() {
        return match facts.namespace(name) {
            Some(namespace) => check_usable(namespace).map(|()| name.to_owned()),
            // If the namespaces cannot be listed, the dry run shows whether it exists.
            None => Ok(name.to_owned()),
        };
    }
    let all = facts.objects.namespaces.as_deref().unwrap_or_default();
    let webhook = webhook(facts).ok();
    let admitted = |namespace: &Namespace| webhook.is_none_or(|webhook| admits(webhook, namespace));
    let usable: Vec<&Namespace> = all
        .iter()
        .filter(|namespace| {
            namespace.name_any() != facts.control_namespace && check_usable(namespace).is_ok()
        })
        .collect();
    let meshed = || {
        usable
            .iter()
            .filter(|namespace| requests_injection(namespace))
    };
    let is_default = |namespace: &&&Namespace| namespace.name_any() == "default";
    let chosen = meshed()
        .find(|namespace| admitted(namespace))
        .or_else(|| meshed().next())
        .or_else(|| usable.iter().find(is_default))
        .or_else(|| usable.iter().find(|namespace| admitted(namespace)));
    match chosen {
        Some(namespace) => Ok(namespace.name_any()),
        None if all.is_empty() => Ok("default".to_owned()),
        None => Err("all namespaces are being deleted or exclude webhooks".to_owned()),
    }
}

fn check_usable(namespace: &Namespace) -> Result<(), String> {
    let name = namespace.name_any();
    if namespace.metadata.deletion_timestamp.is_some() {
        Err(format!("namespace {name} is being deleted"))
    } else if excludes_webhooks(namespace) {
        Err(format!(
            "namespace {name} excludes the injector by its label {ADMISSION}: disabled"
        ))
    } else {
        Ok(())
    }
}
