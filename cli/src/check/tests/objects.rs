//! Faults in objects that everything else agrees with, so that nothing but a look at the object itself shows them.

use serde_json::json;

use super::{
    super::{Facts, Mark, facts::Trial},
    faults::{Fault, time, warns},
    find, healthy, judge,
};
use crate::mesh::Scope;

pub(super) const FAULTS: &[Fault] = &[
    warns(
        "nodes-ready",
        "node b is not Ready (Kubelet stopped posting node status.): the mesh cannot be asked about the 1 meshed pod there",
        |facts| {
            lose_node(facts);
        },
    ),
    warns(
        "namespace-excluded",
        "keeps the injector away by its label",
        |facts| {
            exclude_shop(facts);
            facts.webhook.trial = Ok(Trial::NotTried("there is nowhere to try it".to_owned()));
        },
    ),
];

fn lose_node(facts: &mut Facts) {
    let node = &mut facts.objects.nodes.as_mut().unwrap()[1];
    let ready = json!([{
        "type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."
    }]);
    node.status.as_mut().unwrap().conditions = serde_json::from_value(ready).unwrap();
}

fn exclude_shop(facts: &mut Facts) {
    let namespace = &mut facts.objects.namespaces.as_mut().unwrap()[1];
    let label = "config.linkerd.io/admission-webhooks";
    namespace.metadata.labels = Some([(label.to_owned(), "disabled".to_owned())].into());
    let selector =
        json!({"matchExpressions": [{"key": label, "operator": "NotIn", "values": ["disabled"]}]});
    let configuration = facts.objects.webhooks.as_mut().unwrap().as_mut().unwrap();
    let webhook = &mut configuration.webhooks.as_mut().unwrap()[0];
    webhook.namespace_selector = serde_json::from_value(selector).unwrap();
}

/// The registration is right, so deleting it would disable injection for the whole cluster.
#[test]
fn a_namespace_that_excludes_itself_is_not_the_registrations_fault() {
    let mut facts = healthy();
    exclude_shop(&mut facts);
    facts
        .objects
        .namespaces
        .as_mut()
        .unwrap()
        .push(serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap());
    let reports = judge(&facts);
    assert_eq!(find(&reports, "webhook-injects").unwrap().mark, Mark::Ok);
    // Nor is a pod tried there.
    assert_eq!(
        super::super::webhook::trial_namespace(&facts).unwrap(),
        "default"
    );
    facts.scope = Scope::Namespace("shop".to_owned());
    let reason = super::super::webhook::trial_namespace(&facts).unwrap_err();
    assert!(reason.contains("shop keeps the injector away"), "{reason}");
    facts.webhook.trial = Ok(Trial::NotTried(reason));
    assert_eq!(
        find(&judge(&facts), "webhook-injects").unwrap().mark,
        Mark::Ok
    );
}

#[test]
fn a_namespace_that_is_being_deleted_is_not_tried() {
    let mut facts = healthy();
    facts.objects.namespaces.as_mut().unwrap()[1]
        .metadata
        .deletion_timestamp = Some(time("2026-01-01T00:00:00Z"));
    assert_eq!(
        super::super::webhook::trial_namespace(&facts).unwrap(),
        "plain"
    );
}
