//! Faults that were collected after the checks were written, to find what the checks miss. Each
//! fault that was not reported got a check. The last ones cannot be reported; each says why.

use mesh_core::exposition;
use serde_json::json;

use super::super::explain;
use super::edits::{
    add_route, container_status, dual_stack, edit, edit_pod, edit_webhook, policy, set_container,
};
use super::faults::{Fault, check};
use super::{all_rows, healthy, row};
use crate::facts::InjectionDryRun;
use crate::output::style::Mark;

pub(super) const FAULTS: &[Fault] = &[
    check("webhook-injects").fails("rules do not include the creation of pods", |facts| {
        facts.webhook.dry_run = Ok(InjectionDryRun::NotInjected);
        edit_webhook(facts)["rules"] = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"]}]);
    }),
    check("control-plane-endpoints").fails("linkerd-policy lacks port 8090", |facts| {
        let mut service = edit(&mut facts.objects.services, "linkerd-policy");
        service["spec"]["ports"][0]["port"] = json!(8091);
    }),
    check("control-plane-containers").fails(
        "it keeps restarting: exited 7 times, last with code 1",
        |facts| {
            let state = json!({
                "ready": true, "restartCount": 7,
                "state": {"running": {"startedAt": "2025-12-31T23:59:30Z"}},
                "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2025-12-31T23:57:00Z"}},
            });
            set_container(facts, "linkerd-destination-0", "destination", state);
        },
    ),
    check("data-plane-containers").fails(
        "OOMKilled: exceeded its memory limit (20Mi), 2 restarts",
        |facts| {
            let resources = json!({"limits": {"memory": "20Mi"}});
            edit_pod(facts, "web-0")["spec"]["containers"][1]["resources"] = resources;
            let state = json!({
                "ready": true, "restartCount": 2,
                "state": {"running": {"startedAt": "2025-12-31T23:59:30Z"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2025-12-31T23:59:00Z"}},
            });
            set_container(facts, "web-0", "linkerd-proxy", state);
        },
    ),
    check("pods-ports").warns("container app of shop/web-0 has port 4191", |facts| {
        let ports = json!([{"containerPort": 4191}]);
        edit_pod(facts, "web-0")["spec"]["containers"][0]["ports"] = ports;
    }),
    check("jobs-finish").warns("shop/web-1 of Job report has finished", |facts| {
        let mut pod = edit_pod(facts, "web-1");
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "report", "uid": "u"}]);
        pod["status"]["containerStatuses"] = json!([
            container_status("app", json!({"state": {"terminated": {"exitCode": 0}}})),
            container_status("linkerd-proxy", json!({"state": {"running": {}}})),
        ]);
    }),
    check("policy-skipped-ports").warns(
        "Server shop/web: spec.port: port 8080 of Pod shop/web-0 bypasses the proxy",
        |facts| {
            let annotations = &mut edit_pod(facts, "web-0")["metadata"]["annotations"];
            annotations["config.linkerd.io/skip-inbound-ports"] = json!("8000-8100");
        },
    ),
    check("policy-ip-families").fails(
        "Server shop/web does not apply to IPv6 connections to shop/web-0, which pass its proxy",
        |facts| dual_stack(facts, "ipv4", "all-unauthenticated"),
    ),
    check("policy-ip-families").fails(
        "the default policy cluster-authenticated does not apply to IPv6 connections to shop/web-0",
        |facts| dual_stack(facts, "ipv4", "cluster-authenticated"),
    ),
    check("policy-identities").warns("which no client of this mesh has", |facts| {
        policy(facts, "MeshTLSAuthentication")["spec"]["identities"] =
            json!(["web.shop.serviceaccount.identity.linkerd.cluster.locl"]);
    }),
    check("policy-references").fails(
        "HTTPRoute shop/get: spec.parentRefs[0].name: there is no Server shop/wbe",
        |facts| add_route(facts, "wbe"),
    ),
];

#[test]
fn container_that_runs_since_old_restarts_is_ok() {
    let mut facts = healthy();
    for (name, reason) in [("web-0", "OOMKilled"), ("web-1", "Error")] {
        let state = json!({
            "ready": true, "restartCount": 9,
            "state": {"running": {"startedAt": "2025-12-31T22:00:00Z"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": reason, "finishedAt": "2025-12-31T21:59:00Z"}},
        });
        set_container(&mut facts, name, "linkerd-proxy", state);
    }
    let row = row(&facts, "data-plane-containers");
    assert_eq!(row.mark, Mark::Ok, "{:?}", row.detail);
}

/// A NetworkPolicy whose rules select the wrong peers is not reported. The rows of the proxies show
/// what they wait for, and the guide lists NetworkPolicies among the causes.
#[test]
fn blocked_proxies_are_reported_with_what_they_wait_for() {
    let mut facts = healthy();
    let proxies = facts.proxies.iter_mut();
    for proxy in proxies.filter(|proxy| proxy.namespace == "shop") {
        proxy.ready = Err("answers 503: waiting for a certificate".to_owned());
        proxy.metrics = Ok(exposition::parse(""));
    }
    let mut roots = all_rows(&facts);
    roots.retain(|row| row.mark.is_problem() && row.cause.is_none());
    assert_eq!(
        roots.iter().map(|row| row.name).collect::<Vec<_>>(),
        ["proxy-certificates"]
    );
    let ready = row(&facts, "l5d-data-plane-ready");
    assert!(ready.detail[0].contains("waiting for a certificate"));
    let (_, guide) = explain::sections()
        .find(|(id, _)| *id == "proxy-certificates")
        .unwrap();
    assert!(guide.contains("NetworkPolicy"));
}
