//! Faults that were thought of last, to see whether the checks name what they were not written for. Those that were not named at the first try got a check;
//! those that cannot be named stand at the end, with the reason.

use serde_json::json;

use super::{
    super::facts::Trial,
    faults::{Fault, change_pod, fails},
};

pub(super) const FAULTS: &[Fault] = &[
    fails(
        "webhook-injects",
        "rules leave the creation of pods out",
        |facts| {
            facts.webhook.trial = Ok(Trial::LeftAlone);
            let configuration = facts.objects.webhooks.as_mut().unwrap().as_mut().unwrap();
            let rules = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"]}]);
            configuration.webhooks.as_mut().unwrap()[0].rules =
                serde_json::from_value(rules).unwrap();
        },
    ),
    fails(
        "control-plane-endpoints",
        "linkerd-policy has not the port 8090",
        |facts| {
            let services = facts.objects.services.as_mut().unwrap();
            let service = services
                .iter_mut()
                .find(|service| service.metadata.name.as_deref() == Some("linkerd-policy"));
            let spec = service.unwrap().spec.as_mut().unwrap();
            spec.ports.as_mut().unwrap()[0].port = 8091;
        },
    ),
    fails(
        "control-plane-containers",
        "it does not stay up: ended 7 times, last with code 1",
        |facts| {
            change_pod(facts, "linkerd-destination-0", |pod| {
                pod["status"]["containerStatuses"] = json!([{
                    "name": "destination", "image": "x", "imageID": "", "ready": true, "restartCount": 7,
                    "state": {"running": {"startedAt": "2025-12-31T23:59:30Z"}},
                    "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2025-12-31T23:57:00Z"}},
                }]);
            });
        },
    ),
];
