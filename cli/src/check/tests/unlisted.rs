//! Faults that were collected after the checks were written, to find what the checks miss. Faults
//! that were not reported got a check; those that cannot be reported are at the end, with the
//! reason.

use serde_json::json;

use super::super::facts::InjectionDryRun;
use super::super::{Facts, Mark};
use super::faults::{Fault, change_pod, fails, policy, warns};
use super::{evaluate, find, healthy};
use crate::clients::metrics;

pub(super) const FAULTS: &[Fault] = &[
    fails(
        "webhook-injects",
        "rules do not include the creation of pods",
        |facts| {
            facts.webhook.dry_run = Ok(InjectionDryRun::NotInjected);
            let configuration = facts.objects.webhooks.as_mut().unwrap().as_mut().unwrap();
            let rules = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"]}]);
            configuration.webhooks.as_mut().unwrap()[0].rules =
                serde_json::from_value(rules).unwrap();
        },
    ),
    fails(
        "control-plane-endpoints",
        "linkerd-policy lacks port 8090",
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
        "it keeps restarting: exited 7 times, last with code 1",
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
    fails(
        "data-plane-containers",
        "OOMKilled: exceeded its memory limit (20Mi), 2 restarts",
        |facts| {
            change_pod(facts, "web-0", |pod| {
                pod["spec"]["containers"][1]["resources"] = json!({"limits": {"memory": "20Mi"}});
                pod["status"]["containerStatuses"] = json!([{
                    "name": "linkerd-proxy", "image": "x", "imageID": "", "ready": true, "restartCount": 2,
                    "state": {"running": {"startedAt": "2025-12-31T23:59:30Z"}},
                    "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2025-12-31T23:59:00Z"}},
                }]);
            });
        },
    ),
    warns(
        "pods-ports",
        "container app of shop/web-0 has port 4191",
        |facts| {
            change_pod(facts, "web-0", |pod| {
                pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 4191}]);
            });
        },
    ),
    warns(
        "jobs-finish",
        "shop/web-1 of Job report has finished",
        |facts| {
            change_pod(facts, "web-1", |pod| {
                pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "report", "uid": "u"}]);
                let status = |name: &str, state: serde_json::Value| {
                    json!({
                        "name": name, "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state
                    })
                };
                pod["status"]["containerStatuses"] = json!([
                    status("app", json!({"terminated": {"exitCode": 0}})),
                    status("linkerd-proxy", json!({"running": {}})),
                ]);
            });
        },
    ),
    warns(
        "policy-skipped-ports",
        "port 8080 of shop/web-0, which bypasses the proxy",
        |facts| {
            change_pod(facts, "web-0", |pod| {
                pod["metadata"]["annotations"]["config.linkerd.io/skip-inbound-ports"] =
                    json!("8000-8100");
            });
        },
    ),
    warns(
        "policy-identities",
        "which no client of this mesh has",
        |facts| {
            policy(facts, "MeshTLSAuthentication", |object| {
                object["spec"]["identities"] =
                    json!(["web.shop.serviceaccount.identity.linkerd.cluster.locl"]);
            });
        },
    ),
    fails(
        "policy-references",
        "HTTPRoute shop/get has the parent Server shop/wbe, which does not exist",
        |facts| {
            let route = json!({
                "apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute",
                "metadata": {"name": "get", "namespace": "shop"},
                "spec": {"parentRefs": [{"group": "policy.linkerd.io", "kind": "Server", "name": "wbe"}]},
            });
            facts.objects.policies.as_mut().unwrap().push(route);
        },
    ),
];

#[test]
fn container_that_runs_since_old_restarts_is_ok() {
    let mut facts = healthy();
    for (name, reason) in [("web-0", "OOMKilled"), ("web-1", "Error")] {
        change_pod(&mut facts, name, |pod| {
            pod["status"]["containerStatuses"] = json!([{
                "name": "linkerd-proxy", "image": "x", "imageID": "", "ready": true, "restartCount": 9,
                "state": {"running": {"startedAt": "2025-12-31T22:00:00Z"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": reason, "finishedAt": "2025-12-31T21:59:00Z"}},
            }]);
        });
    }
    let reports = evaluate(&facts);
    let row = find(&reports, "data-plane-containers").unwrap();
    assert_eq!(row.mark, Mark::Ok, "{:?}", row.detail);
}

/// A NetworkPolicy that blocks proxies from the control plane is not reported, because the API
/// server does not know whether the network plugin enforces it. The rows of the proxies show what
/// they wait for, and the guide lists NetworkPolicies among the causes.
#[test]
fn blocked_proxies_are_reported_with_what_they_wait_for() {
    let mut facts = healthy();
    for proxy in facts
        .proxies
        .iter_mut()
        .filter(|proxy| proxy.namespace == "shop")
    {
        proxy.ready = Err("answers 503: waiting for a certificate".to_owned());
        proxy.metrics = Ok(metrics::parse(""));
    }
    let reports = evaluate(&facts);
    let roots: Vec<&str> = reports
        .iter()
        .flat_map(|category| &category.checks)
        .filter(|report| report.mark != Mark::Ok && report.cause.is_none())
        .map(|report| report.name)
        .collect();
    assert_eq!(roots, ["proxy-certificates"]);
    let ready = find(&reports, "l5d-data-plane-ready").unwrap();
    assert!(ready.detail[0].contains("waiting for a certificate"));
    let (_, guide) = super::explain::sections()
        .find(|(id, _)| *id == "proxy-certificates")
        .unwrap();
    assert!(guide.contains("NetworkPolicy"));
    let _: &Facts = &facts;
}
