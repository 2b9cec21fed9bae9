//! Faults that were planted after the checks were written, from what operators report about meshes.
//! Most were written down before anyone knew which of them `check` reports.

use serde_json::{Value, json};

use super::edits::{
    add_policy, add_route, cannot_pull, edit, edit_pod, policy, set_container, set_value,
};
use super::faults::{Fault, check};
use super::{Facts, all_rows, healthy, row};
use crate::output::style::Mark;

pub(super) const FAULTS: &[Fault] = &[
    check("policy-references").fails("Service shop/headless has no cluster IP", |facts| {
        edit(&mut facts.objects.services, "web")["metadata"]["name"] = json!("headless");
        edit(&mut facts.objects.services, "headless")["spec"]["clusterIP"] = json!("None");
        add_policy(facts, route("headless", json!([{}])));
    }),
    check("policy-effects").warns(
        "has the domain cluster.lan, but that of the cluster is cluster.local",
        |facts| {
            add_policy(facts, json!({
                "apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile",
                "metadata": {"name": "web.shop.svc.cluster.lan", "namespace": "shop"},
                "spec": {"routes": []},
            }));
        },
    ),
    check("policy-references").fails("there is no Server shop/admin", |facts| {
        add_policy(facts, json!({
            "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
            "metadata": {"name": "admin", "namespace": "plain"},
            "spec": {"podSelector": {}, "port": 8080},
        }));
        let target = json!({"group": "policy.linkerd.io", "kind": "Server", "name": "admin"});
        policy(facts, "AuthorizationPolicy")["spec"]["targetRef"] = target;
    }),
    check("policy-effects").warns("port 80 of Service shop/web is opaque", |facts| {
        edit(&mut facts.objects.services, "web")["metadata"]["annotations"] =
            json!({"config.linkerd.io/opaque-ports": "80"});
        add_policy(facts, route("web", json!([{}])));
    }),
    check("policy-effects").warns("all have weight 0, so every request of the rule fails", |facts| {
        let backends = json!([{"backendRefs": [{"name": "web", "port": 80, "weight": 0}]}]);
        add_policy(facts, route("web", backends));
    }),
    check("policy-effects").warns("GRPCRoute shop/web references the same parent", |facts| {
        let mut other = route("web", json!([{}]));
        other["kind"] = json!("GRPCRoute");
        add_policy(facts, route("web", json!([{}])));
        add_policy(facts, other);
    }),
    check("policy-probes").warns("none matches the probe GET /healthz of shop/web-0", |facts| {
        probe(facts);
        add_route(facts, "web");
        policy(facts, "HTTPRoute")["spec"]["rules"] =
            json!([{"matches": [{"path": {"type": "PathPrefix", "value": "/api"}}]}]);
    }),
    check("policy-probes").warns("none matches the probe GET /healthz of shop/web-0", |facts| {
        probe(facts);
        add_route(facts, "web");
        policy(facts, "HTTPRoute")["spec"]["rules"] =
            json!([{"matches": [{"path": {"type": "RegularExpression", "value": "/api.*"}}]}]);
    }),
    check("policy-accounts").warns("no pod of ServiceAccount plain/default has a proxy", |facts| {
        policy(facts, "MeshTLSAuthentication")["spec"] = json!({
            "identityRefs": [{"kind": "ServiceAccount", "name": "default", "namespace": "plain"}]
        });
    }),
    check("network-policies").warns(
        "NetworkPolicy linkerd/strict admits no connection to port 8443 of proxy-injector",
        |facts| add_network_policy(facts, "linkerd", &json!({
            "podSelector": {}, "ingress": [{"ports": [{"port": 8080, "endPort": 8090}, {"port": 4191}]}],
        })),
    ),
    check("network-policies").warns(
        "NetworkPolicy shop/strict admits no connection to TCP port 8080: proxies there do not reach the identity service",
        |facts| add_network_policy(facts, "shop", &json!({
            "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
            "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}, {"ports": [{"port": 8086}, {"port": 8090}]}],
        })),
    ),
    check("network-policies").warns("admits port 8080 but not 4143 of shop/web-0", |facts| {
        add_network_policy(facts, "shop", &json!({
            "podSelector": {}, "ingress": [{"ports": [{"port": 8080}]}],
        }));
    }),
    check("network-policies").warns("admits port 4143 but not 8080 of shop/web-0", |facts| {
        set_value(
            facts,
            "clusterDomain: cluster.local",
            "clusterDomain: cluster.local\nproxy: {outboundTransportMode: transparent}",
        );
        add_network_policy(facts, "shop", &json!({
            "podSelector": {}, "ingress": [{"ports": [{"port": 4143}]}],
        }));
    }),
    check("cluster-domain").fails(
        "clusterDomain is cluster.local, but cluster DNS answers for k8s.example.com",
        |facts| facts.objects.cluster_dns = Ok(Some(coredns("k8s.example.com."))),
    ),
    check("data-plane-containers").fails("401 Unauthorized", |facts| {
        let waiting = json!({
            "reason": "ImagePullBackOff",
            "message": "failed to pull image: failed to authorize: 401 Unauthorized",
        });
        set_container(facts, "web-0", "linkerd-proxy", json!({"state": {"waiting": waiting}}));
    }),
    check("pods-one-mesh").fails("shop/web-0 has the proxy of Istio", |facts| {
        let mut pod = edit_pod(facts, "web-0");
        let containers = pod["spec"]["containers"].as_array_mut().unwrap();
        containers.push(json!({"name": "istio-proxy", "image": "istio/proxyv2"}));
    }),
    check("policy-skipped-ports").warns(
        "connections to port 80 of Service shop/web bypass the proxy and have no identity, but Server shop/web requires one",
        |facts| add_client(facts, "config.linkerd.io/skip-outbound-ports", "80,443"),
    ),
    check("policy-skipped-ports").warns(
        "Service shop/web: spec.ports[0]: connections to port 80 bypass the proxy of Deployment shop/client and of other clients",
        |facts| {
            add_client(facts, "linkerd.io/inject", "enabled");
            set_value(
                facts,
                "clusterDomain: cluster.local",
                "clusterDomain: cluster.local\nproxyInit: {ignoreOutboundPorts: '80'}",
            );
        },
    ),
    check("policy-skipped-ports").warns(
        "Server shop/web: spec.port: port 8080 of Deployment shop/web bypasses the proxy",
        |facts| {
            add_route(facts, "web");
            set_value(
                facts,
                "clusterDomain: cluster.local",
                "clusterDomain: cluster.local\nproxyInit: {ignoreInboundPorts: '8080'}",
            );
        },
    ),
    check("policy-default-deny").warns(
        "Service shop/web: spec.ports[0]: leads to port 8080 of Deployment shop/web, whose default policy is deny",
        |facts| {
            policy(facts, "Server")["spec"]["port"] = json!(9090);
            set_value(
                facts,
                "clusterDomain: cluster.local",
                "clusterDomain: cluster.local\nproxy: {defaultInboundPolicy: deny}",
            );
        },
    ),
    check("request-timeouts").warns(
        "Service shop/web: metadata.annotations[retry.linkerd.io/timeout]: an attempt may take 10s",
        |facts| {
            edit(&mut facts.objects.services, "web")["metadata"]["annotations"] = json!({
                "retry.linkerd.io/timeout": "10s", "timeout.linkerd.io/request": "5s",
            });
        },
    ),
    check("pods-grace-period").warns(
        "Deployment shop/client: spec.template.spec.terminationGracePeriodSeconds: is 30, but the proxy waits 45 s",
        |facts| {
            let native = "clusterDomain: cluster.local\nproxy: {nativeSidecar: false}";
            set_value(facts, "clusterDomain: cluster.local", native);
            let wait = "config.alpha.linkerd.io/proxy-wait-before-exit-seconds";
            add_client(facts, wait, "45");
        },
    ),
];

/// Returns an HTTPRoute of a Service of the shop.
fn route(service: &str, rules: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "parentRefs": [{"group": "core", "kind": "Service", "name": service, "port": 80}],
            "rules": rules,
        },
    })
}

/// Adds a Deployment of the shop whose template has an annotation.
fn add_client(facts: &mut Facts, key: &str, value: &str) {
    let metadata = json!({"labels": {"app": "client"}, "annotations": {key: value}});
    facts.objects.workloads.as_mut().unwrap().push(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "client", "namespace": "shop"},
        "spec": {"template": {"metadata": metadata, "spec": {"containers": [{"name": "app"}]}}},
    }));
}

/// Gives the pods of the shop an HTTP probe.
fn probe(facts: &mut Facts) {
    for name in ["web-0", "web-1"] {
        edit_pod(facts, name)["spec"]["containers"][0]["readinessProbe"] =
            json!({"httpGet": {"path": "/healthz", "port": "http"}});
    }
}

fn add_network_policy(facts: &mut Facts, namespace: &str, spec: &Value) {
    let policy = json!({"metadata": {"name": "strict", "namespace": namespace}, "spec": spec});
    let all = facts.objects.network_policies.as_mut().unwrap();
    all.push(serde_json::from_value(policy).unwrap());
}

/// Returns the ConfigMap of CoreDNS.
fn coredns(domain: &str) -> mesh_k8s::kinds::ConfigMap {
    let file = format!(
        ".:53 {{\n    errors\n    kubernetes {domain} in-addr.arpa ip6.arpa {{\n        pods insecure\n    }}\n}}\n"
    );
    serde_json::from_value(json!({"metadata": {"name": "coredns"}, "data": {"Corefile": file}}))
        .unwrap()
}

/// The same objects without the fault.
#[test]
fn rules_of_planted_faults_accept_what_works() {
    let mut facts = healthy();
    probe(&mut facts);
    add_route(&mut facts, "web");
    policy(&mut facts, "HTTPRoute")["spec"]["rules"] =
        json!([{"matches": [{"path": {"type": "Exact", "value": "/healthz"}, "method": "GET"}]}]);
    add_policy(
        &mut facts,
        route(
            "web",
            json!([{"backendRefs": [
                {"name": "web", "port": 80, "weight": 0}, {"name": "web", "port": 80}
            ]}]),
        ),
    );
    edit(&mut facts.objects.services, "web")["metadata"]["annotations"] =
        json!({"config.linkerd.io/opaque-ports": "81-90"});
    facts.objects.cluster_dns = Ok(Some(coredns("cluster.local")));
    let ports = json!([{"port": "http"}, {"port": 8000, "endPort": 9000}, {"port": 4143}]);
    for namespace in ["linkerd", "shop"] {
        add_network_policy(
            &mut facts,
            namespace,
            &json!({"podSelector": {}, "ingress": [{"ports": ports}], "policyTypes": ["Ingress"]}),
        );
    }
    add_network_policy(
        &mut facts,
        "shop",
        &json!({"egress": [{}], "policyTypes": ["Egress"]}),
    );
    for id in [
        "policy-probes",
        "policy-effects",
        "policy-references",
        "cluster-domain",
        "network-policies",
    ] {
        let row = row(&facts, id);
        assert_eq!(row.mark, Mark::Ok, "{id}: {:?}", row.detail);
    }
}

/// A name that leads nowhere cannot be corrected from the message alone.
#[test]
fn advice_for_missing_server_names_the_namespace_that_has_it() {
    let mut facts = healthy();
    for (namespace, name) in [("plain", "admin"), ("shop", "web-admin")] {
        add_policy(
            &mut facts,
            json!({
                "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"podSelector": {}, "port": 1},
            }),
        );
    }
    let target = json!({"group": "policy.linkerd.io", "kind": "Server", "name": "admin"});
    policy(&mut facts, "AuthorizationPolicy")["spec"]["targetRef"] = target;
    let advice = row(&facts, "policy-references").advice;
    let expect = "Server admin is in namespace plain: create the policy there";
    assert!(advice.contains(expect), "{advice}");
}

/// A command that edits the object with the finding would not repair these.
#[test]
fn advice_changes_the_object_that_is_wrong() {
    for (message, expect) in [
        (
            "cluster.lan",
            "then kubectl -n shop delete serviceprofile.linkerd.io web.shop.svc.cluster.lan",
        ),
        ("is opaque", "kubectl -n shop edit service web"),
        ("has a proxy", "kubectl -n plain describe pod batch"),
        (
            "connections to port 80",
            "kubectl -n shop edit deployment client: set",
        ),
        (
            "default policy is deny",
            "kubectl -n shop edit deployment web: set",
        ),
        (
            "the proxy waits 45 s",
            "kubectl -n shop edit deployment client: set",
        ),
    ] {
        let mut faults = FAULTS.iter();
        let fault = faults
            .find(|fault| fault.message.contains(message))
            .unwrap();
        let mut facts = healthy();
        (fault.inject)(&mut facts);
        let advice = row(&facts, fault.check).advice;
        assert!(advice.contains(expect), "{advice}");
        assert!(!advice.contains("edit httproute") && !advice.contains("edit serviceprofile"));
    }
}

/// Loading the image again would not help.
#[test]
fn advice_for_refused_image_is_about_credentials() {
    let mut facts = healthy();
    edit_pod(&mut facts, "web-0")["spec"]["imagePullSecrets"] = json!([{"name": "regcred"}]);
    let message = "pull access denied, repository does not exist or may require authorization";
    let waiting = json!({"reason": "ErrImagePull", "message": message});
    set_container(
        &mut facts,
        "web-0",
        "linkerd-proxy",
        json!({"state": {"waiting": waiting}}),
    );
    let advice = row(&facts, "data-plane-containers").advice;
    assert!(advice.contains("get secret regcred"), "{advice}");
    assert!(!advice.contains("load the image"), "{advice}");
    cannot_pull(&mut facts, "web-0", "linkerd-proxy", "ErrImagePull");
    let advice = row(&facts, "data-plane-containers").advice;
    assert!(advice.contains("load the image"), "{advice}");
}

/// Which Services a client uses is not known before it is refused. The pods of a Service seldom use
/// it themselves.
#[test]
fn skipped_outbound_port_of_the_own_service_is_not_reported() {
    let mut facts = healthy();
    edit_pod(&mut facts, "web-1")["metadata"]["annotations"]["config.linkerd.io/skip-outbound-ports"] =
        json!("80,8080");
    let wrong = all_rows(&facts)
        .into_iter()
        .filter(|row| row.mark.is_problem());
    assert_eq!(wrong.map(|row| row.name).collect::<Vec<_>>(), [""; 0]);
}
