//! Faults that were thought of last, to see whether the checks name what they were not written for.
//! Those that were not named at the first try got a check; those that cannot be named stand at the
//! end, with the reason.

use serde_json::json;

use super::{
    super::{Facts, Mark, facts::Trial},
    faults::{Fault, change_pod, fails, policy, warns},
    find, healthy, judge,
};
use crate::clients::metrics;

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
    fails(
        "data-plane-containers",
        "OOMKilled: it needed more memory than it may have (its limit is 20Mi), 2 times",
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
        "shop/web-1 of Job report has done its work",
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
        "port 8080 of shop/web-0, which goes around the proxy",
        |facts| {
            change_pod(facts, "web-0", |pod| {
                pod["metadata"]["annotations"]["config.linkerd.io/skip-inbound-ports"] =
                    json!("8000-8100");
            });
        },
    ),
    warns(
        "policy-identities",
        "which this mesh gives to no client",
        |facts| {
            policy(facts, "MeshTLSAuthentication", |object| {
                object["spec"]["identities"] =
                    json!(["web.shop.serviceaccount.identity.linkerd.cluster.locl"]);
            });
        },
    ),
    fails(
        "policy-references",
        "HTTPRoute shop/get is for Server shop/wbe, which does not exist",
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

/// What restarted long ago and has run since is in order.
#[test]
fn old_restarts_are_forgotten() {
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
    let reports = judge(&facts);
    let row = find(&reports, "data-plane-containers").unwrap();
    assert_eq!(row.mark, Mark::Ok, "{:?}", row.detail);
}

/// A NetworkPolicy that keeps proxies from the control plane is not named: whether the cluster's
/// network plugin enforces NetworkPolicies cannot be asked of the API server. The rows of the
/// proxies say what they wait for, and the guide has NetworkPolicies among the causes.
#[test]
fn a_network_policy_shows_in_what_the_proxies_wait_for() {
    let mut facts = healthy();
    for proxy in facts
        .proxies
        .iter_mut()
        .filter(|proxy| proxy.namespace == "shop")
    {
        proxy.ready = Err("answers 503: waiting for a certificate".to_owned());
        proxy.metrics = Ok(metrics::parse(""));
    }
    let reports = judge(&facts);
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
