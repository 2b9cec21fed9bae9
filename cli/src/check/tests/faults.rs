//! Faults for the checks.

use mesh_core::node::{SelfTestOutcome, Tier, WaitingPod};
use mesh_k8s::kinds::{Namespace, Pod};
use serde_json::{Value, json};

use super::super::facts::{self, Environment, InjectionDryRun, Mode};
use super::super::fixture::{self, NOW, SERVER_NAME, TestCa, pod};
use super::super::{Facts, Mark, setup};
use crate::clients::metrics;
use crate::mesh::Scope;

/// A fault: the change of a healthy cluster, the check that must report it and a part of the
/// message.
pub(super) struct Fault {
    pub(super) check: &'static str,
    pub(super) mark: Mark,
    pub(super) message: &'static str,
    pub(super) inject: fn(&mut Facts),
}

pub(super) const fn fails(
    check: &'static str,
    message: &'static str,
    inject: fn(&mut Facts),
) -> Fault {
    Fault {
        check,
        mark: Mark::Fail,
        message,
        inject,
    }
}

pub(super) const fn warns(
    check: &'static str,
    message: &'static str,
    inject: fn(&mut Facts),
) -> Fault {
    Fault {
        check,
        mark: Mark::Warn,
        message,
        inject,
    }
}

pub(super) fn pods(facts: &mut Facts) -> &mut Vec<Pod> {
    facts.objects.pods.as_mut().unwrap()
}

pub(super) fn pod_named<'a>(facts: &'a mut Facts, name: &str) -> &'a mut Pod {
    pods(facts)
        .iter_mut()
        .find(|pod| pod.metadata.name.as_deref() == Some(name))
        .unwrap()
}

pub(super) fn change_pod(facts: &mut Facts, name: &str, change: impl FnOnce(&mut Value)) {
    let pod = pod_named(facts, name);
    let mut value = serde_json::to_value(&*pod).unwrap();
    change(&mut value);
    *pod = serde_json::from_value(value).unwrap();
}

pub(super) fn set_value(facts: &mut Facts, line: &str, other: &str) {
    let config = facts.objects.config.as_mut().unwrap().as_mut().unwrap();
    let text = config.data.as_mut().unwrap().get_mut("values").unwrap();
    *text = text.replace(line, other);
}

pub(super) fn not_ready(facts: &mut Facts, name: &str) {
    change_pod(facts, name, |pod| {
        pod["status"]["conditions"][0]["status"] = json!("False");
    });
}

fn remove_namespace(facts: &mut Facts, name: &str) {
    let all = facts.objects.namespaces.as_mut().unwrap();
    all.retain(|namespace: &Namespace| namespace.metadata.name.as_deref() != Some(name));
}

pub(super) fn policy(facts: &mut Facts, kind: &str, change: impl FnOnce(&mut Value)) {
    let all = facts.objects.policies.as_mut().unwrap();
    let object = all.iter_mut().find(|object| object["kind"] == kind);
    change(object.unwrap());
}

pub(super) fn pre(facts: &mut Facts) {
    facts.mode = Mode::Pre;
    facts.objects.config = Ok(None);
}

pub(super) const FAULTS: &[Fault] = &[
    fails("k8s-api", "connection refused", |facts| {
        facts.api_server = Err("cannot reach https://x: connection refused".to_owned());
    }),
    fails("k8s-version", "v1.30.4", |facts| {
        let server = facts.api_server.as_mut().unwrap();
        server.version = "v1.30.4".to_owned();
        server.major_minor = Some((1, 30));
    }),
    warns("pre-k8s-clock-skew", "120 s ahead of this", |facts| {
        facts.api_server.as_mut().unwrap().clock = Some(NOW + 120);
    }),
    warns("pre-k8s-clock-skew", "node b: its heartbeat is", |facts| {
        let lease = &mut facts.objects.leases.as_mut().unwrap()[1];
        let mut value = serde_json::to_value(&*lease).unwrap();
        value["spec"]["renewTime"] = json!("2025-12-31T23:50:00.000000Z");
        *lease = serde_json::from_value(value).unwrap();
    }),
    warns("gateway-api-crd", "GRPCRoute", |facts| {
        let server = facts.api_server.as_mut().unwrap();
        let served = server.served.as_mut().unwrap();
        served.remove("gateway.networking.k8s.io/v1/GRPCRoute");
    }),
    fails("pre-ns", "has a control plane already", |facts| {
        facts.mode = Mode::Pre;
    }),
    fails(
        "pre-k8s-cluster-k8s",
        "you may not create clusterroles",
        |facts| {
            pre(facts);
            facts.access = vec![facts::AccessReview {
                account: None,
                permission: setup::NEEDED[2],
                allowed: Ok(false),
            }];
        },
    ),
    fails("pre-k8s", "you may not create secrets", |facts| {
        pre(facts);
        facts.access = vec![facts::AccessReview {
            account: None,
            permission: setup::NEEDED[9],
            allowed: Ok(false),
        }];
    }),
    warns("pre-nodes", "node b is riscv64", |facts| {
        pre(facts);
        let node = &mut facts.objects.nodes.as_mut().unwrap()[1];
        let info = node.status.as_mut().unwrap().node_info.as_mut().unwrap();
        info.architecture = "riscv64".to_owned();
    }),
    fails("pre-pod-security", "enforces \"restricted\"", |facts| {
        pre(facts);
        let namespace = &mut facts.objects.namespaces.as_mut().unwrap()[0];
        let labels = namespace.metadata.labels.as_mut().unwrap();
        labels.insert(
            "pod-security.kubernetes.io/enforce".to_owned(),
            "restricted".to_owned(),
        );
    }),
    fails(
        "l5d-existence-crd",
        "policy.linkerd.io/v1beta3/Server",
        |facts| {
            let server = facts.api_server.as_mut().unwrap();
            let served = server.served.as_mut().unwrap();
            served.remove("policy.linkerd.io/v1beta3/Server");
        },
    ),
    fails(
        "l5d-existence-ns",
        "namespace linkerd does not exist",
        |facts| {
            remove_namespace(facts, "linkerd");
        },
    ),
    fails("l5d-existence-linkerd-config", "no ConfigMap", |facts| {
        facts.objects.config = Ok(None);
    }),
    fails("l5d-existence-linkerd-config", "values", |facts| {
        set_value(facts, "controllerReplicas: 2", "controllerReplicas: [many]");
    }),
    fails(
        "l5d-existence-sa",
        "ServiceAccount mesh-agent is missing",
        |facts| {
            facts.objects.accounts.as_mut().unwrap().pop();
        },
    ),
    fails("l5d-existence-sa", "rejects its token", |facts| {
        let account = &mut facts.objects.accounts.as_mut().unwrap()[0];
        account.metadata.creation_timestamp = Some(time("2026-01-01T00:00:01Z"));
        let name = account.metadata.name.clone();
        let pod = pod_named(facts, "linkerd-identity-0");
        pod.metadata.creation_timestamp = Some(time("2026-01-01T00:00:00Z"));
        pod.spec.as_mut().unwrap().service_account_name = name;
    }),
    fails(
        "control-plane-deployments",
        "linkerd-identity is missing",
        |facts| {
            facts.objects.deployments.as_mut().unwrap().remove(0);
        },
    ),
    fails("control-plane-deployments", "exceeded quota", |facts| {
        let deployment = &mut facts.objects.deployments.as_mut().unwrap()[0];
        let status = json!({"replicas": 0, "conditions": [
            {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
        ]});
        deployment.status = serde_json::from_value(status).unwrap();
    }),
    fails(
        "control-plane-deployments",
        "violates PodSecurity",
        |facts| {
            let set = &mut facts.objects.daemon_sets.as_mut().unwrap()[0];
            let status = json!({
                "currentNumberScheduled": 1, "desiredNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 1
            });
            set.status = serde_json::from_value(status).unwrap();
            let event = json!({
                "metadata": {}, "involvedObject": {"kind": "DaemonSet", "name": "mesh-agent"},
                "message": "Error creating: pods is forbidden: violates PodSecurity", "type": "Warning"
            });
            facts.objects.events = Ok(vec![serde_json::from_value(event).unwrap()]);
        },
    ),
    warns(
        "l5d-existence-unschedulable-pods",
        "Insufficient cpu",
        |facts| {
            change_pod(facts, "linkerd-identity-1", |pod| {
                pod["status"]["conditions"] = json!([{
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"
                }]);
            });
        },
    ),
    fails("control-plane-containers", "ImagePullBackOff", |facts| {
        change_pod(facts, "linkerd-identity-1", |pod| {
            pod["status"]["containerStatuses"] = json!([{
                "name": "identity", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
            }]);
        });
    }),
    fails(
        "l5d-api-control-ready",
        "destination is not ready",
        |facts| {
            not_ready(facts, "linkerd-destination-0");
            not_ready(facts, "linkerd-destination-1");
        },
    ),
    warns(
        "l5d-api-control-ready",
        "destination is not ready",
        |facts| {
            not_ready(facts, "linkerd-destination-0");
        },
    ),
    fails(
        "control-plane-endpoints",
        "linkerd-policy has no ready endpoint",
        |facts| {
            let slice = &mut facts.objects.slices.as_mut().unwrap()[2];
            slice.endpoints.clear();
        },
    ),
    fails("l5d-api-control-ready", "secret \"x\" not found", |facts| {
        not_ready(facts, "linkerd-destination-0");
        not_ready(facts, "linkerd-destination-1");
        let event = json!({
            "metadata": {}, "involvedObject": {"kind": "Pod", "name": "linkerd-destination-0"},
            "message": "MountVolume.SetUp failed: secret \"x\" not found", "type": "Warning"
        });
        facts.objects.events = Ok(vec![serde_json::from_value(event).unwrap()]);
    }),
    fails("controllers-ready", "policy in linkerd/x", |facts| {
        facts.controllers[2].ready = Err("answers 503: waiting for servers".to_owned());
    }),
    fails("controllers-follow", "policy in linkerd/x", |facts| {
        let text = "source_kind_served{kind=\"Pod\"} 1\nsource_kind_synced{kind=\"Pod\"} 0\n";
        facts.controllers[2].metrics = Ok(metrics::parse(text));
    }),
    fails(
        "controllers-permissions",
        "may not create tokenreviews",
        |facts| {
            facts.access[0].allowed = Ok(false);
        },
    ),
    fails(
        "l5d-cluster-networks-cidr",
        "node a: 192.0.2.0/24",
        |facts| {
            let node = &mut facts.objects.nodes.as_mut().unwrap()[0];
            node.spec.as_mut().unwrap().pod_cidrs = Some(vec!["192.0.2.0/24".to_owned()]);
        },
    ),
    fails(
        "l5d-cluster-networks-pods",
        "pod plain/batch has 192.0.2.1",
        |facts| {
            change_pod(facts, "batch", |pod| {
                pod["status"]["podIP"] = json!("192.0.2.1");
            });
        },
    ),
    fails("config-drift", "has \"cluster.local\"", |facts| {
        set_value(
            facts,
            "identityTrustDomain: cluster.local",
            "identityTrustDomain: example.org",
        );
    }),
    warns(
        "values-without-effect",
        "kubeAPI: only the identity service",
        |facts| {
            set_value(
                facts,
                "identityTrustDomain: cluster.local",
                "identityTrustDomain: cluster.local\nkubeAPI: {clientQPS: 1}",
            );
        },
    ),
    fails("l5d-identity-cert-config-valid", "no Secret", |facts| {
        facts.trust.issuer =
            Err("namespace linkerd has no Secret linkerd-identity-issuer".to_owned());
    }),
    fails("l5d-identity-cert-config-valid", "key", |facts| {
        facts.trust.key = Err("the issuer's key does not match its certificate".to_owned());
    }),
    fails(
        "l5d-identity-trustAnchors-are-time-valid",
        "expired on",
        |facts| {
            facts.trust.anchors = Ok(vec![TestCa::new("old", -1).der()]);
        },
    ),
    warns(
        "l5d-identity-trustAnchors-not-expiring-soon",
        "30 days",
        |facts| {
            facts.trust.anchors = Ok(vec![TestCa::new("old", 30).der()]);
        },
    ),
    fails(
        "l5d-identity-trustAnchors-use-supported-crypto",
        "384 bits",
        |facts| {
            facts.trust.anchors = Ok(vec![p384()]);
        },
    ),
    fails(
        "l5d-identity-issuer-cert-uses-supported-crypto",
        "384 bits",
        |facts| {
            facts.trust.issuer = Ok(vec![p384()]);
        },
    ),
    fails(
        "l5d-identity-issuer-cert-is-time-valid",
        "expired on",
        |facts| {
            facts.trust.issuer = Ok(vec![TestCa::new("old", -1).der()]);
        },
    ),
    warns(
        "l5d-identity-issuer-cert-not-expiring-soon",
        "10 days",
        |facts| {
            facts.trust.issuer = Ok(vec![TestCa::new("old", 10).der()]);
        },
    ),
    fails(
        "l5d-identity-issuer-cert-issued-by-trust-anchor",
        "no trust anchor",
        |facts| {
            facts.trust.issuer = Ok(vec![TestCa::new("stranger", 365).der()]);
        },
    ),
    fails(
        "trust-roots-published",
        "namespace shop has other anchors",
        |facts| {
            facts.objects.trust_roots.as_mut().unwrap()[1] = fixture::trust_roots("shop", "stale");
        },
    ),
    fails("trust-roots-published", "namespace shop has no", |facts| {
        facts.objects.trust_roots.as_mut().unwrap().pop();
    }),
    warns(
        "l5d-identity-data-plane-proxies-certs-match-ca",
        "shop/web-0",
        |facts| {
            change_pod(facts, "web-0", |pod| {
                pod["spec"]["volumes"].as_array_mut().unwrap().pop();
                let env = pod["spec"]["containers"][1]["env"].as_array_mut().unwrap();
                env.push(json!({"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": "old"}));
            });
        },
    ),
    fails("token-audience", "but for sts.amazonaws.com", |facts| {
        change_pod(facts, "web-0", |pod| {
            pod["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["audience"] =
                json!("sts.amazonaws.com");
        });
    }),
    fails("proxy-certificates", "has expired", |facts| {
        let text = format!(
            "control_identity_cert_expiration_timestamp_seconds {}\n",
            NOW - 1
        );
        facts.proxies[0].metrics = Ok(metrics::parse(&text));
    }),
    fails("l5d-existence-mwc", "is missing", |facts| {
        facts.objects.webhooks = Ok(None);
    }),
    fails(
        "l5d-existence-mwc",
        "other/linkerd-proxy-injector",
        |facts| {
            let configuration = facts.objects.webhooks.as_mut().unwrap().as_mut().unwrap();
            let webhooks = configuration.webhooks.as_mut().unwrap();
            let service = webhooks[0].client_config.service.as_mut().unwrap();
            service.namespace = "other".to_owned();
        },
    ),
    fails(
        "l5d-proxy-injector-webhook-cert-valid",
        "not accepted",
        |facts| {
            fixture::set_ca_bundle(facts, &TestCa::new("stranger", 365).pem());
        },
    ),
    fails(
        "l5d-proxy-injector-webhook-cert-valid",
        "no caBundle",
        |facts| {
            fixture::set_ca_bundle(facts, "");
        },
    ),
    warns(
        "l5d-proxy-injector-webhook-cert-not-expiring-soon",
        "20 days",
        |facts| {
            let authority = TestCa::new("webhook", 365);
            let (der, pem) = authority.server(SERVER_NAME, 20);
            facts.objects.webhook_secret = Ok(Some(fixture::webhook_secret(&pem)));
            fixture::set_ca_bundle(facts, &authority.pem());
            for chain in facts.webhook.presented.values_mut() {
                *chain = Ok(vec![der.clone()]);
            }
        },
    ),
    fails("webhook-presents", "linkerd-proxy-injector-0", |facts| {
        let (der, _) = TestCa::new("stranger", 365).server(SERVER_NAME, 365);
        for chain in facts.webhook.presented.values_mut() {
            *chain = Ok(vec![der.clone()]);
        }
    }),
    fails("webhook-injects", "without a proxy", |facts| {
        facts.webhook.dry_run = Ok(InjectionDryRun::NotInjected);
    }),
    fails("webhook-injects", "excludes namespace shop", |facts| {
        facts.webhook.dry_run = Ok(InjectionDryRun::NotInjected);
        let configuration = facts.objects.webhooks.as_mut().unwrap().as_mut().unwrap();
        let webhooks = configuration.webhooks.as_mut().unwrap();
        let selector = json!({"matchLabels": {"mesh": "yes"}});
        webhooks[0].namespace_selector = serde_json::from_value(selector).unwrap();
    }),
    fails("webhook-injects", "unknown authority", |facts| {
        let message = "failed calling webhook: x509: certificate signed by unknown authority";
        facts.webhook.dry_run = Ok(InjectionDryRun::Rejected(message.to_owned()));
    }),
    fails("agent-ready", "node b has no agent pod", |facts| {
        pods(facts).retain(|pod| pod.metadata.name.as_deref() != Some("mesh-agent-b"));
    }),
    fails("agent-ready", "CrashLoopBackOff", |facts| {
        not_ready(facts, "mesh-agent-b");
        change_pod(facts, "mesh-agent-b", |pod| {
            pod["status"]["containerStatuses"] = json!([{
                "name": "mesh-agent", "image": "x", "imageID": "", "ready": false, "restartCount": 4,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1}}
            }]);
        });
    }),
    fails("agent-answers", "node a", |facts| {
        facts.agents[0].status = Err("cannot reach port 9993".to_owned());
    }),
    warns("agent-version", "node b: the agent is 0.0.1", |facts| {
        facts.agents[1].status.as_mut().unwrap().agent_version = "0.0.1".to_owned();
    }),
    fails(
        "agent-cni",
        "node a: mesh-cni is not in 10-bridge.conflist",
        |facts| {
            let cni = facts.agents[0]
                .status
                .as_mut()
                .unwrap()
                .cni
                .as_mut()
                .unwrap();
            cni.chained = false;
            cni.reason = "another plugin rewrote it".to_owned();
        },
    ),
    warns("agent-foreign-cni", "cni.exclusive", |facts| {
        let map = json!({"data": {"cni-exclusive": "true"}});
        facts.objects.cilium = Ok(serde_json::from_value(map).unwrap());
    }),
    warns("agent-startup-taint", "node b has the taint", |facts| {
        let node = &mut facts.objects.nodes.as_mut().unwrap()[1];
        let taints = json!([{"key": "mesh-agent/not-ready", "effect": "NoExecute"}]);
        node.spec.as_mut().unwrap().taints = serde_json::from_value(taints).unwrap();
    }),
    warns("tier", "node a: nft: no BTF", |facts| {
        let status = facts.agents[0].status.as_mut().unwrap();
        status.tier = Tier::Nft;
        status.reason = "no BTF".to_owned();
    }),
    warns("self-test", "node a: connect (refused)", |facts| {
        let case = &mut facts.agents[0].status.as_mut().unwrap().self_test[0];
        case.outcome = SelfTestOutcome::Failed;
        case.detail = "refused".to_owned();
    }),
    warns("agent-warnings", "node a: a foreign program", |facts| {
        let status = facts.agents[0].status.as_mut().unwrap();
        status
            .warnings
            .push("a foreign program is attached above".to_owned());
    }),
    fails("agent-waiting", "shop/web-9: no cgroup yet", |facts| {
        let mut pod = facts.agents[1].pods.as_ref().unwrap()[0].pod.clone();
        let status = facts.agents[0].status.as_mut().unwrap();
        pod.name = "web-9".to_owned();
        status.waiting.push(WaitingPod {
            pod,
            reason: "no cgroup yet".to_owned(),
        });
    }),
    fails("l5d-cp-proxy-healthy", "not ready yet", |facts| {
        facts.proxies[0].ready = Err("answers 503: not ready yet".to_owned());
    }),
    warns("l5d-version-control", "is 0.0.1", |facts| {
        let deployment = &mut facts.objects.deployments.as_mut().unwrap()[0];
        let spec = deployment
            .spec
            .as_mut()
            .unwrap()
            .template
            .spec
            .as_mut()
            .unwrap();
        spec.containers[0].image = Some("mesh/controller:0.0.1".to_owned());
    }),
    warns("l5d-version-cli", "meshctl is 9.9.9", |facts| {
        facts.cli_version = "9.9.9";
    }),
    warns(
        "l5d-cp-proxy-version",
        "linkerd-identity-0 is 0.0.1",
        |facts| {
            let pod = pod_named(facts, "linkerd-identity-0");
            pod.spec.as_mut().unwrap().containers[1].image = Some("mesh/proxy:0.0.1".to_owned());
        },
    ),
    fails(
        "l5d-data-plane-exists",
        "namespace gone does not exist",
        |facts| {
            facts.scope = Scope::Namespace("gone".to_owned());
        },
    ),
    fails("pods-meshed", "shop/late has no proxy", |facts| {
        pods(facts).push(pod("shop", "late", "a", false));
    }),
    warns("pods-host-network", "uses the host network", |facts| {
        let mut host = pod("shop", "host", "a", false);
        host.spec.as_mut().unwrap().host_network = Some(true);
        let mode = [("linkerd.io/inject".to_owned(), "enabled".to_owned())];
        host.metadata.annotations = Some(mode.into());
        pods(facts).push(host);
    }),
    fails("inject-annotation", "namespace plain", |facts| {
        let namespace = &mut facts.objects.namespaces.as_mut().unwrap()[2];
        let mode = [("linkerd.io/inject".to_owned(), "true".to_owned())];
        namespace.metadata.annotations = Some(mode.into());
    }),
    fails(
        "pods-enrolled",
        "shop/web-1 is not enrolled on node b",
        |facts| {
            facts.agents[1]
                .pods
                .as_mut()
                .unwrap()
                .retain(|pod| pod.pod.name != "web-1");
        },
    ),
    warns("pods-enrolled", "did not respond", |facts| {
        facts.agents.remove(1);
    }),
    fails("l5d-data-plane-ready", "not redirected", |facts| {
        let proxy = facts
            .proxies
            .iter_mut()
            .find(|proxy| proxy.pod == "web-0")
            .unwrap();
        proxy.ready = Err("connections of this pod are not redirected to the proxy".to_owned());
    }),
    warns("l5d-data-plane-version", "shop/web-0 has 0.0.1", |facts| {
        let version = [("linkerd.io/proxy-version".to_owned(), "0.0.1".to_owned())];
        pod_named(facts, "web-0").metadata.annotations = Some(version.into());
    }),
    warns("data-plane-redirection", "by an init container", |facts| {
        change_pod(facts, "web-0", |pod| {
            pod["spec"]["initContainers"] = json!([{"name": "linkerd-init"}]);
        });
    }),
    warns(
        "l5d-data-plane-pod-labels",
        "config.linkerd.io/skip-subnets",
        |facts| {
            let labels = pod_named(facts, "web-0").metadata.labels.as_mut().unwrap();
            labels.insert("config.linkerd.io/skip-subnets".to_owned(), "x".to_owned());
        },
    ),
    warns(
        "l5d-data-plane-services-labels",
        "Service shop/web",
        |facts| {
            let service = &mut facts.objects.services.as_mut().unwrap()[4];
            let label = [("config.linkerd.io/opaque-ports".to_owned(), "80".to_owned())];
            service.metadata.labels = Some(label.into());
        },
    ),
    warns(
        "l5d-data-plane-services-annotations",
        "Service shop/web",
        |facts| {
            let service = &mut facts.objects.services.as_mut().unwrap()[4];
            let annotation = [("mirror.linkerd.io/exported".to_owned(), "true".to_owned())];
            service.metadata.annotations = Some(annotation.into());
        },
    ),
    warns(
        "config-annotations",
        "config.linkerd.io/skip-inbound-prots",
        |facts| {
            let annotations = pod_named(facts, "web-0")
                .metadata
                .annotations
                .as_mut()
                .unwrap();
            annotations.insert(
                "config.linkerd.io/skip-inbound-prots".to_owned(),
                "1".to_owned(),
            );
        },
    ),
    warns("config-annotations", "invalid value \"maybe\"", |facts| {
        let annotations = pod_named(facts, "web-0").metadata.annotations.as_mut();
        annotations.unwrap().insert(
            "config.linkerd.io/proxy-await".to_owned(),
            "maybe".to_owned(),
        );
    }),
    warns(
        "linkerd-opaque-ports-definition",
        "port 80 is opaque",
        |facts| {
            let service = &mut facts.objects.services.as_mut().unwrap()[4];
            let annotation = [("config.linkerd.io/opaque-ports".to_owned(), "80".to_owned())];
            service.metadata.annotations = Some(annotation.into());
        },
    ),
    fails("policy-readable", "Server shop/web", |facts| {
        policy(facts, "Server", |server| {
            server["spec"]["accessPolicy"] = json!("everyone");
        });
    }),
    fails(
        "policy-references",
        "Server gone, which does not exist",
        |facts| {
            policy(facts, "AuthorizationPolicy", |policy| {
                policy["spec"]["targetRef"]["name"] = json!("gone");
            });
        },
    ),
    fails("policy-references", "no client satisfies it", |facts| {
        policy(facts, "AuthorizationPolicy", |policy| {
            policy["spec"]["requiredAuthenticationRefs"][0]["name"] = json!("gone");
        });
    }),
    warns("policy-servers", "selects no pod", |facts| {
        policy(facts, "Server", |server| {
            server["spec"]["podSelector"] = json!({"matchLabels": {"app": "wbe"}});
        });
    }),
    warns(
        "l5d-control-plane-replicas",
        "linkerd-identity has one replica",
        |facts| {
            let deployment = &mut facts.objects.deployments.as_mut().unwrap()[0];
            deployment.spec.as_mut().unwrap().replicas = Some(1);
        },
    ),
    warns("privileges", "not root", machine),
    fails("kernel", "osrelease", machine),
    fails("cgroup2", "no cgroup2", machine),
    warns("btf", "vmlinux", machine),
    warns("bpffs", "no bpf", machine),
];

/// Replaces the cluster by a machine that meets no prerequisite.
fn machine(facts: &mut Facts) {
    facts.environment = Environment::Machine;
}

pub(super) fn time(text: &str) -> mesh_k8s::kinds::Time {
    serde_json::from_value(json!(text)).unwrap()
}

fn p384() -> Vec<u8> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.self_signed(&key).unwrap().der().to_vec()
}
