//! Faults for the checks.

use mesh_core::exposition;
use mesh_core::node::{SelfTestOutcome, Tier, WaitingPod};
use mesh_k8s::kinds::ResourceExt;
use serde_json::json;

use super::edits::{
    add_host_pod, cannot_pull, cannot_schedule, cron_job, deny, deny_identities, edit,
    edit_objects, edit_pod, edit_validator, edit_webhook, enforce, enforce_restricted,
    expire_validator, not_ready, pods, policy, pre, present, remove_pods, send_reports, served,
    set_container, set_events, set_scheduled, set_value, status, stranger, trust_old_anchors,
};
use super::fixture::{self, NOW, SERVER_NAME, TestCa, pod};
use crate::facts::permission::FOR_INSTALLATION;
use crate::facts::{Environment, Facts, InjectionDryRun, Mode};
use crate::output::style::Mark;
use crate::resource::Scope;

/// A fault: the change of a healthy cluster, the check that must report it and a part of the
/// message.
pub(super) struct Fault {
    pub(super) check: &'static str,
    pub(super) mark: Mark,
    pub(super) message: &'static str,
    pub(super) inject: fn(&mut Facts),
}

/// The check that must report a fault.
pub(super) struct Reporter(&'static str);

pub(super) const fn check(id: &'static str) -> Reporter {
    Reporter(id)
}

impl Reporter {
    pub(super) const fn fails(self, message: &'static str, inject: fn(&mut Facts)) -> Fault {
        self.reports(Mark::Fail, message, inject)
    }

    pub(super) const fn warns(self, message: &'static str, inject: fn(&mut Facts)) -> Fault {
        self.reports(Mark::Warn, message, inject)
    }

    const fn reports(self, mark: Mark, message: &'static str, inject: fn(&mut Facts)) -> Fault {
        Fault {
            check: self.0,
            mark,
            message,
            inject,
        }
    }
}

/// The container of the policy validator.
const POLICY: &str = "policy";

pub(super) const FAULTS: &[Fault] = &[
    check("k8s-api").fails("connection refused", |facts| {
        facts.api_server = Err("cannot reach https://x: connection refused".to_owned());
    }),
    check("k8s-version").fails("v1.30.4", |facts| {
        let server = facts.api_server.as_mut().unwrap();
        server.version = "v1.30.4".to_owned();
        server.major_minor = Some((1, 30));
    }),
    check("pre-k8s-clock-skew").warns("120 s ahead of this", |facts| {
        facts.api_server.as_mut().unwrap().clock = Some(NOW + 120);
    }),
    check("pre-k8s-clock-skew").warns("node b: its heartbeat is", |facts| {
        let time = json!("2025-12-31T23:50:00.000000Z");
        edit(&mut facts.objects.leases, "b")["spec"]["renewTime"] = time;
    }),
    check("gateway-api-crd").warns("GRPCRoute", |facts| {
        served(facts).remove("gateway.networking.k8s.io/v1/GRPCRoute");
    }),
    check("pre-ns").fails("has a control plane already", |facts| {
        facts.mode = Mode::Pre;
    }),
    check("pre-k8s-cluster-k8s").fails("you may not create clusterroles", |facts| {
        deny(facts, FOR_INSTALLATION[2]);
    }),
    check("pre-k8s").fails("you may not create secrets", |facts| {
        deny(facts, FOR_INSTALLATION[9]);
    }),
    check("pre-nodes").warns("node b is riscv64", |facts| {
        pre(facts);
        let mut node = edit(&mut facts.objects.nodes, "b");
        node["status"]["nodeInfo"]["architecture"] = json!("riscv64");
    }),
    check("pre-pod-security").fails("enforces \"restricted\"", |facts| {
        pre(facts);
        enforce_restricted(facts);
    }),
    check("control-plane-pod-security").warns("enforces no level", |facts| {
        enforce(facts, "linkerd", None);
    }),
    check("control-plane-pod-security").warns("enforces \"privileged\"", |facts| {
        enforce(facts, "linkerd", Some("privileged"));
    }),
    check("control-plane-pod-security").fails("linkerd-init in its pods needs", |facts| {
        let other = "highAvailability: true\nmeshAgent: {enabled: false}";
        set_value(facts, "highAvailability: true", other);
    }),
    check("l5d-existence-crd").fails("policy.linkerd.io/v1beta3/Server", |facts| {
        served(facts).remove("policy.linkerd.io/v1beta3/Server");
    }),
    check("l5d-existence-ns").fails("namespace linkerd does not exist", |facts| {
        let namespaces = facts.objects.namespaces.as_mut().unwrap();
        namespaces.retain(|namespace| namespace.name_any() != "linkerd");
    }),
    check("l5d-existence-linkerd-config").fails("no ConfigMap", |facts| {
        facts.objects.config = Ok(None);
    }),
    check("l5d-existence-linkerd-config").fails("values", |facts| {
        set_value(facts, "controllerReplicas: 2", "controllerReplicas: [many]");
    }),
    check("l5d-existence-sa").fails("ServiceAccount mesh-agent is missing", |facts| {
        facts.objects.accounts.as_mut().unwrap().pop();
    }),
    check("l5d-existence-sa").fails("linkerd-heartbeat is missing", |facts| {
        send_reports(facts);
        let accounts = facts.objects.accounts.as_mut().unwrap();
        accounts.retain(|account| account.name_any() != "linkerd-heartbeat");
    }),
    check("l5d-existence-sa").fails("rejects its token", |facts| {
        let name = "linkerd-identity";
        edit(&mut facts.objects.accounts, name)["metadata"]["creationTimestamp"] =
            json!("2026-01-01T00:00:01Z");
        let mut pod = edit_pod(facts, "linkerd-identity-0");
        pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["spec"]["serviceAccountName"] = json!(name);
    }),
    check("control-plane-deployments").fails("linkerd-identity is missing", |facts| {
        facts.objects.deployments.as_mut().unwrap().remove(0);
    }),
    check("control-plane-deployments").fails("exceeded quota", |facts| {
        let status = json!({"replicas": 0, "conditions": [
            {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
        ]});
        edit(&mut facts.objects.deployments, "linkerd-identity")["status"] = status;
    }),
    check("control-plane-deployments").fails("violates PodSecurity", |facts| {
        set_scheduled(facts, 1);
        let events = json!([{
            "metadata": {}, "involvedObject": {"kind": "DaemonSet", "name": "mesh-agent"},
            "message": "Error creating: pods is forbidden: violates PodSecurity", "type": "Warning"
        }]);
        set_events(facts, events);
    }),
    check("l5d-existence-unschedulable-pods").warns("Insufficient cpu", |facts| {
        cannot_schedule(facts, "Insufficient cpu");
    }),
    check("control-plane-containers").fails("ImagePullBackOff", |facts| {
        cannot_pull(facts, "linkerd-identity-1", "identity", "ImagePullBackOff");
    }),
    check("l5d-api-control-ready").fails("destination is not ready", |facts| {
        not_ready(facts, "linkerd-destination-0");
        not_ready(facts, "linkerd-destination-1");
    }),
    check("l5d-api-control-ready").warns("destination is not ready", |facts| {
        not_ready(facts, "linkerd-destination-0");
    }),
    check("control-plane-endpoints").fails("linkerd-policy has no ready endpoint", |facts| {
        facts.objects.slices.as_mut().unwrap()[2].endpoints.clear();
    }),
    check("l5d-api-control-ready").fails("secret \"x\" not found", |facts| {
        not_ready(facts, "linkerd-destination-0");
        not_ready(facts, "linkerd-destination-1");
        let events = json!([{
            "metadata": {}, "involvedObject": {"kind": "Pod", "name": "linkerd-destination-0"},
            "message": "MountVolume.SetUp failed: secret \"x\" not found", "type": "Warning"
        }]);
        set_events(facts, events);
    }),
    check("controllers-ready").fails("policy in linkerd/x", |facts| {
        facts.controllers[2].ready = Err("answers 503: waiting for servers".to_owned());
    }),
    check("controllers-follow").fails("policy in linkerd/x", |facts| {
        let text = "source_kind_served{kind=\"Pod\"} 1\nsource_kind_synced{kind=\"Pod\"} 0\n";
        facts.controllers[2].metrics = Ok(exposition::parse(text));
    }),
    check("controllers-permissions").fails("may not create tokenreviews", |facts| {
        facts.access[0].allowed = Ok(false);
    }),
    check("l5d-cluster-networks-cidr").fails("node a: 192.0.2.0/24", |facts| {
        edit(&mut facts.objects.nodes, "a")["spec"]["podCIDRs"] = json!(["192.0.2.0/24"]);
    }),
    check("l5d-cluster-networks-pods").fails("pod plain/batch has 192.0.2.1", |facts| {
        edit_pod(facts, "batch")["status"]["podIP"] = json!("192.0.2.1");
    }),
    check("config-drift").fails("has \"cluster.local\"", |facts| {
        set_value(
            facts,
            "identityTrustDomain: cluster.local",
            "identityTrustDomain: example.org",
        );
    }),
    check("values-without-effect").warns("kubeAPI: only the identity service", |facts| {
        set_value(
            facts,
            "identityTrustDomain: cluster.local",
            "identityTrustDomain: cluster.local\nkubeAPI: {clientQPS: 1}",
        );
    }),
    check("heartbeat-cron-job").warns("linkerd-heartbeat is missing", send_reports),
    check("heartbeat-cron-job").warns("but heartbeatUrl is empty", |facts| {
        facts.objects.cron_jobs = Ok(vec![cron_job(json!({}))]);
    }),
    check("heartbeat-cron-job").warns("https://a.example was not accepted", |facts| {
        send_reports(facts);
        let status = json!({
            "lastScheduleTime": "2026-01-01T04:05:00Z",
            "lastSuccessfulTime": "2025-12-31T04:05:03Z",
        });
        facts.objects.cron_jobs = Ok(vec![cron_job(status)]);
    }),
    check("l5d-identity-cert-config-valid").fails("no Secret", |facts| {
        facts.trust.issuer =
            Err("namespace linkerd has no Secret linkerd-identity-issuer".to_owned());
    }),
    check("l5d-identity-cert-config-valid").fails("key", |facts| {
        facts.trust.key = Err("the issuer's key does not match its certificate".to_owned());
    }),
    check("l5d-identity-trustAnchors-are-time-valid").fails("expired on", |facts| {
        facts.trust.anchors = Ok(vec![TestCa::new("old", -1).der()]);
    }),
    check("l5d-identity-trustAnchors-not-expiring-soon").warns("30 days", |facts| {
        facts.trust.anchors = Ok(vec![TestCa::new("old", 30).der()]);
    }),
    check("l5d-identity-trustAnchors-use-supported-crypto").fails("384 bits", |facts| {
        facts.trust.anchors = Ok(vec![p384()]);
    }),
    check("l5d-identity-issuer-cert-uses-supported-crypto").fails("384 bits", |facts| {
        facts.trust.issuer = Ok(vec![p384()]);
    }),
    check("l5d-identity-issuer-cert-is-time-valid").fails("expired on", |facts| {
        facts.trust.issuer = Ok(vec![TestCa::new("old", -1).der()]);
    }),
    check("l5d-identity-issuer-cert-not-expiring-soon").warns("10 days", |facts| {
        facts.trust.issuer = Ok(vec![TestCa::new("old", 10).der()]);
    }),
    check("l5d-identity-issuer-cert-issued-by-trust-anchor").fails("no trust anchor", |facts| {
        facts.trust.issuer = Ok(vec![TestCa::new("stranger", 365).der()]);
    }),
    check("l5d-identity-data-plane-proxies-certs-match-ca").warns("shop/web-0", |facts| {
        let mut pod = edit_pod(facts, "web-0");
        pod["spec"]["containers"][1]["image"] = json!("cr.l5d.io/linkerd/proxy:edge-26.1.1");
        trust_old_anchors(&mut pod);
    }),
    check("denied-identities").fails("data[identities]: \"*\" is refused", |facts| {
        deny_identities(facts, "web.test\n*");
    }),
    check("denied-identities").fails("data[identities]: is missing", |facts| {
        deny_identities(facts, "web.test");
        let object = facts.objects.denied_identities.as_mut().unwrap();
        object.as_mut().unwrap().data = None;
    }),
    check("denied-identities-followed").warns("shop/web-0 does not get the list", |facts| {
        deny_identities(facts, "web.test");
        let mut pod = edit_pod(facts, "web-0");
        pod["spec"]["containers"][1]["image"] = json!("cr.l5d.io/linkerd/proxy:edge-26.1.1");
    }),
    check("denied-identities-followed").warns("no proxy gets the list (1 entry)", |facts| {
        deny_identities(facts, "web.test");
        set_value(
            facts,
            "clusterDomain: cluster.local",
            "clusterDomain: cluster.local\nidentity: {publishTrustRoots: false}",
        );
    }),
    check("denied-identities-followed").warns("shop/web-0 does not get the list", |facts| {
        deny_identities(facts, "web.test");
        // An earlier version of this project.
        facts.proxies[0].metrics = Ok(fixture::expiry(NOW + 3600));
    }),
    check("token-audience").fails("but for sts.amazonaws.com", |facts| {
        let source = &mut edit_pod(facts, "web-0")["spec"]["volumes"][0]["projected"]["sources"][0];
        source["serviceAccountToken"]["audience"] = json!("sts.amazonaws.com");
    }),
    check("proxy-certificates").fails("has expired", |facts| {
        facts.proxies[0].metrics = Ok(fixture::expiry(NOW - 1));
    }),
    check("l5d-existence-mwc").fails("is missing", |facts| {
        facts.objects.webhooks = Ok(None);
    }),
    check("l5d-existence-mwc").fails("other/linkerd-proxy-injector", |facts| {
        edit_webhook(facts)["clientConfig"]["service"]["namespace"] = json!("other");
    }),
    check("l5d-proxy-injector-webhook-cert-valid").fails("not accepted", |facts| {
        fixture::set_ca_bundle(facts, &TestCa::new("stranger", 365).pem());
    }),
    check("l5d-proxy-injector-webhook-cert-valid").fails("no caBundle", |facts| {
        fixture::set_ca_bundle(facts, "");
    }),
    check("l5d-proxy-injector-webhook-cert-not-expiring-soon").warns("20 days", |facts| {
        let authority = TestCa::new("webhook", 365);
        let (der, pem) = authority.server(SERVER_NAME, 20);
        facts.objects.webhook_secret = Ok(Some(fixture::webhook_secret(&pem)));
        fixture::set_ca_bundle(facts, &authority.pem());
        present(facts, &der);
    }),
    check("webhook-presents").fails("linkerd-proxy-injector-0", |facts| {
        let (der, _) = TestCa::new("stranger", 365).server(SERVER_NAME, 365);
        present(facts, &der);
    }),
    check("webhook-injects").fails("without a proxy", |facts| {
        facts.webhook.dry_run = Ok(InjectionDryRun::NotInjected);
    }),
    check("webhook-injects").fails("excludes namespace shop", |facts| {
        facts.webhook.dry_run = Ok(InjectionDryRun::NotInjected);
        edit_webhook(facts)["namespaceSelector"] = json!({"matchLabels": {"mesh": "yes"}});
    }),
    check("webhook-injects").fails("unknown authority", |facts| {
        let message = "failed calling webhook: x509: certificate signed by unknown authority";
        facts.webhook.dry_run = Ok(InjectionDryRun::Rejected(message.to_owned()));
    }),
    check("l5d-existence-vwc").fails("policies are not validated", |facts| {
        edit_objects(facts, POLICY).registration = Ok(None);
    }),
    check("l5d-existence-vwc").fails("Service other/linkerd-policy-validator", |facts| {
        edit_validator(facts, POLICY)["clientConfig"]["service"]["namespace"] = json!("other");
    }),
    check("l5d-policy-validator-webhook-cert-valid").fails("not accepted", |facts| {
        edit_validator(facts, POLICY)["clientConfig"]["caBundle"] = stranger();
    }),
    check("l5d-policy-validator-webhook-cert-valid").fails("is missing", |facts| {
        edit_objects(facts, POLICY).secret = Ok(None);
    }),
    check("l5d-policy-validator-webhook-cert-not-expiring-soon").warns("20 days", |facts| {
        expire_validator(facts, POLICY, "linkerd-policy-validator.linkerd.svc");
    }),
    check("l5d-sp-validator-webhook-cert-valid").fails("not accepted", |facts| {
        edit_validator(facts, "sp-validator")["clientConfig"]["caBundle"] = stranger();
    }),
    check("l5d-sp-validator-webhook-cert-not-expiring-soon").warns("20 days", |facts| {
        expire_validator(facts, "sp-validator", "linkerd-sp-validator.linkerd.svc");
    }),
    check("agent-ready").fails("node b has no agent pod", |facts| {
        remove_pods(facts, "mesh-agent-b");
    }),
    check("agent-ready").fails("CrashLoopBackOff", |facts| {
        not_ready(facts, "mesh-agent-b");
        let state = json!({
            "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1}}
        });
        set_container(facts, "mesh-agent-b", "mesh-agent", state);
    }),
    check("agent-answers").fails("node a", |facts| {
        facts.agents[0].status = Err("cannot reach port 9993".to_owned());
    }),
    check("agent-version").warns("node b: the agent is 0.0.1", |facts| {
        status(facts, 1).agent_version = "0.0.1".to_owned();
    }),
    check("agent-cni").fails("node a: mesh-cni is not in 10-bridge.conflist", |facts| {
        let cni = status(facts, 0).cni.as_mut().unwrap();
        cni.chained = false;
        cni.reason = "another plugin rewrote it".to_owned();
    }),
    check("agent-foreign-cni").warns("cni.exclusive", |facts| {
        let map = json!({"data": {"cni-exclusive": "true"}});
        facts.objects.cilium = Ok(serde_json::from_value(map).unwrap());
    }),
    check("agent-startup-taint").warns("node b has the taint", |facts| {
        let taints = json!([{"key": "mesh-agent/not-ready", "effect": "NoExecute"}]);
        edit(&mut facts.objects.nodes, "b")["spec"]["taints"] = taints;
    }),
    check("tier").warns("node a: nft: no BTF", |facts| {
        let status = status(facts, 0);
        status.tier = Tier::Nft;
        status.reason = "no BTF".to_owned();
    }),
    check("self-test").warns("node a: connect (refused)", |facts| {
        let case = &mut status(facts, 0).self_test[0];
        case.outcome = SelfTestOutcome::Failed;
        case.detail = "refused".to_owned();
    }),
    check("agent-warnings").warns("node a: a foreign program", |facts| {
        status(facts, 0).warnings = vec!["a foreign program is attached above".to_owned()];
    }),
    check("agent-waiting").fails("shop/web-9: no cgroup yet", |facts| {
        let mut pod = facts.agents[1].pods.as_ref().unwrap()[0].pod.clone();
        pod.name = "web-9".to_owned();
        let reason = "no cgroup yet".to_owned();
        status(facts, 0).waiting = vec![WaitingPod { pod, reason }];
    }),
    check("l5d-cp-proxy-healthy").fails("not ready yet", |facts| {
        facts.proxies[0].ready = Err("answers 503: not ready yet".to_owned());
    }),
    check("l5d-version-control").warns("is 0.0.1", |facts| {
        let mut deployment = edit(&mut facts.objects.deployments, "linkerd-identity");
        let template = &mut deployment["spec"]["template"];
        template["spec"]["containers"][0]["image"] = json!("mesh/controller:0.0.1");
    }),
    check("l5d-version-cli").warns("meshctl is 9.9.9", |facts| {
        facts.cli_version = "9.9.9";
    }),
    check("l5d-cp-proxy-version").warns("linkerd-identity-0 is 0.0.1", |facts| {
        let mut pod = edit_pod(facts, "linkerd-identity-0");
        pod["spec"]["containers"][1]["image"] = json!("mesh/proxy:0.0.1");
    }),
    check("l5d-data-plane-exists").fails("namespace gone does not exist", |facts| {
        facts.scope = Scope::Namespace("gone".to_owned());
    }),
    check("pods-meshed").fails("shop/late has no proxy", |facts| {
        pods(facts).push(pod("shop", "late", "a", false));
    }),
    check("pods-host-network").warns("uses the host network", |facts| {
        add_host_pod(facts);
        edit_pod(facts, "host")["metadata"]["annotations"] =
            json!({"linkerd.io/inject": "enabled"});
    }),
    check("inject-annotation").fails("namespace plain", |facts| {
        let mut namespace = edit(&mut facts.objects.namespaces, "plain");
        namespace["metadata"]["annotations"] = json!({"linkerd.io/inject": "true"});
    }),
    check("pods-enrolled").fails("shop/web-1 is not enrolled on node b", |facts| {
        let enrolled = facts.agents[1].pods.as_mut().unwrap();
        enrolled.retain(|pod| pod.pod.name != "web-1");
    }),
    check("pods-enrolled").warns("did not respond", |facts| {
        facts.agents.remove(1);
    }),
    check("l5d-data-plane-ready").fails("not redirected", |facts| {
        let mut proxies = facts.proxies.iter_mut();
        let proxy = proxies.find(|proxy| proxy.pod == "web-0").unwrap();
        proxy.ready = Err("connections of this pod are not redirected to the proxy".to_owned());
    }),
    check("l5d-data-plane-version").warns("shop/web-0 has 0.0.1", |facts| {
        let version = json!({"linkerd.io/proxy-version": "0.0.1"});
        edit_pod(facts, "web-0")["metadata"]["annotations"] = version;
    }),
    check("data-plane-redirection").warns("by an init container", |facts| {
        edit_pod(facts, "web-0")["spec"]["initContainers"] = json!([{"name": "linkerd-init"}]);
    }),
    check("l5d-data-plane-pod-labels").warns("config.linkerd.io/skip-subnets", |facts| {
        let mut pod = edit_pod(facts, "web-0");
        pod["metadata"]["labels"]["config.linkerd.io/skip-subnets"] = json!("x");
    }),
    check("l5d-data-plane-services-labels").warns("Service shop/web", |facts| {
        let labels = json!({"config.linkerd.io/opaque-ports": "80"});
        edit(&mut facts.objects.services, "web")["metadata"]["labels"] = labels;
    }),
    check("l5d-data-plane-services-annotations").warns("Service shop/web", |facts| {
        let annotations = json!({"mirror.linkerd.io/exported": "true"});
        edit(&mut facts.objects.services, "web")["metadata"]["annotations"] = annotations;
    }),
    check("config-annotations").warns("config.linkerd.io/skip-inbound-prots", |facts| {
        let mut pod = edit_pod(facts, "web-0");
        pod["metadata"]["annotations"]["config.linkerd.io/skip-inbound-prots"] = json!("1");
    }),
    check("config-annotations").warns("invalid value \"maybe\"", |facts| {
        let mut pod = edit_pod(facts, "web-0");
        pod["metadata"]["annotations"]["config.linkerd.io/proxy-await"] = json!("maybe");
    }),
    check("linkerd-opaque-ports-definition").warns("port 80 is opaque", |facts| {
        let annotations = json!({"config.linkerd.io/opaque-ports": "80"});
        edit(&mut facts.objects.services, "web")["metadata"]["annotations"] = annotations;
    }),
    check("policy-readable").fails("Server shop/web", |facts| {
        policy(facts, "Server")["spec"]["accessPolicy"] = json!("everyone");
    }),
    check("policy-references").fails("there is no Server shop/gone", |facts| {
        policy(facts, "AuthorizationPolicy")["spec"]["targetRef"]["name"] = json!("gone");
    }),
    check("policy-references").fails("so the policy authorizes no client", |facts| {
        let spec = &mut policy(facts, "AuthorizationPolicy")["spec"];
        spec["requiredAuthenticationRefs"][0]["name"] = json!("gone");
    }),
    check("policy-servers").warns("selects no pod", |facts| {
        let selector = json!({"matchLabels": {"app": "wbe"}});
        policy(facts, "Server")["spec"]["podSelector"] = selector;
    }),
    check("l5d-control-plane-replicas").warns("linkerd-identity has one replica", |facts| {
        edit(&mut facts.objects.deployments, "linkerd-identity")["spec"]["replicas"] = json!(1);
    }),
    check("privileges").warns("not root", machine),
    check("kernel").fails("osrelease", machine),
    check("cgroup2").fails("no cgroup2", machine),
    check("btf").warns("vmlinux", machine),
    check("bpffs").warns("no bpf", machine),
];

/// Replaces the cluster by a machine that meets no prerequisite.
fn machine(facts: &mut Facts) {
    facts.environment = Environment::Machine;
}

fn p384() -> Vec<u8> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.self_signed(&key).unwrap().der().to_vec()
}
