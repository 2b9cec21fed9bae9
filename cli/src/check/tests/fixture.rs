//! A healthy cluster as data; tests inject faults into it.

pub(in crate::check) mod host;
pub(in crate::check) mod multicluster;
pub(in crate::check) mod viz;

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_core::exposition::{self, Sample};
use mesh_core::node::{
    CniStatus, NodeStatus, PodRef, PodStatus, SelfTestCase, SelfTestOutcome, Tier,
};
use mesh_k8s::kinds::{
    ByteString, ConfigMap, EndpointSlice, Lease, Pod, ResourceExt, Secret,
    ValidatingWebhookConfiguration,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::analyze::kinds::WORKLOADS;
use crate::facts::names::{
    BUNDLE_KEY, CERTIFICATE_EXPIRY, COMPONENTS, TRUST_BUNDLE, TRUST_ROOTS, VALIDATORS,
    ValidatorNames,
};
use crate::facts::trust::NUMBER;
use crate::facts::{
    AccessReview, Agent, ApiServer, Controller, Environment, Facts, InjectionDryRun, Mode,
    Permission, Proxy, ValidatorObjects,
};
use crate::resource::Scope;

/// 2026-01-01, the current time of the fixture.
pub(in crate::check) const NOW: u64 = 1_767_225_600;
/// The number of the trust anchors, which were changed two hours before.
pub(in crate::check) const NUMBERED: u64 = NOW - 2 * 3600;
pub(in crate::check) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A certificate authority, valid from a year before [`NOW`] until `days` after it.
pub(in crate::check) struct TestCa {
    pub(super) issuer: CertifiedIssuer<'static, KeyPair>,
}

impl TestCa {
    pub(super) fn new(name: &str, days: i64) -> Self {
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params(name, days, true), key).unwrap();
        Self { issuer }
    }

    pub(super) fn der(&self) -> Vec<u8> {
        self.issuer.der().to_vec()
    }

    pub(super) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Signs an intermediate CA.
    pub(super) fn intermediate(&self, name: &str, days: i64) -> Vec<u8> {
        let key = KeyPair::generate().unwrap();
        let certificate = params(name, days, true).signed_by(&key, &self.issuer);
        certificate.unwrap().der().to_vec()
    }

    /// Signs an intermediate CA whose key usage does not allow it to sign certificates.
    pub(super) fn without_signing(&self, name: &str, days: i64) -> Vec<u8> {
        let key = KeyPair::generate().unwrap();
        let mut params = params(name, days, true);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params.signed_by(&key, &self.issuer);
        certificate.unwrap().der().to_vec()
    }

    /// Signs a server certificate; returns it in DER and PEM.
    pub(super) fn server(&self, name: &str, days: i64) -> (Vec<u8>, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = params(name, days, false).signed_by(&key, &self.issuer);
        let certificate = certificate.unwrap();
        (certificate.der().to_vec(), certificate.pem())
    }
}

fn params(name: &str, days: i64, is_ca: bool) -> CertificateParams {
    let names = if is_ca {
        Vec::new()
    } else {
        vec![name.to_owned()]
    };
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let now = std::time::UNIX_EPOCH + Duration::from_secs(NOW);
    params.not_before = (now - Duration::from_secs(365 * 24 * 3600)).into();
    let seconds = Duration::from_secs(days.unsigned_abs() * 24 * 3600);
    params.not_after = match days {
        0.. => (now + seconds).into(),
        _ => (now - seconds).into(),
    };
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    }
    params
}

pub(in crate::check) const SERVER_NAME: &str = "linkerd-proxy-injector.linkerd.svc";

fn documents() -> Vec<Value> {
    let text = include_str!("../../../testdata/healthy.yaml").replace("VERSION", VERSION);
    serde_norway::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

fn of_kind<T: DeserializeOwned>(documents: &[Value], kind: &str) -> Vec<T> {
    let all = documents.iter().filter(|document| document["kind"] == kind);
    all.map(|document| serde_json::from_value(document.clone()).unwrap())
        .collect()
}

/// Returns a running pod with or without a proxy.
pub(in crate::check) fn pod(namespace: &str, name: &str, node: &str, proxy: bool) -> Pod {
    let mut containers = vec![
        json!({"name": "app", "image": "app:1", "ports": [{"name": "http", "containerPort": 8080}]}),
    ];
    let mut annotations = json!({});
    if proxy {
        containers.push(json!({
            "name": "linkerd-proxy", "image": format!("mesh/proxy:{VERSION}"),
            "env": [
                {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
                {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": "0.0.0.0:4190"},
                {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "0.0.0.0:4191"},
            ],
        }));
        annotations = json!({"linkerd.io/proxy-version": VERSION});
    }
    let pod = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "web"}, "annotations": annotations},
        "spec": {
            "nodeName": node, "containers": containers,
            "volumes": [
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "identity.l5d.io"}}]}},
            ],
        },
        "status": {
            "phase": "Running", "podIP": "10.244.0.7",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    serde_json::from_value(pod).unwrap()
}

fn control_plane_pod(component: &str, number: usize) -> Pod {
    let name = format!("linkerd-{component}-{number}");
    let mut pod = pod("linkerd", &name, "a", component != "mesh-agent");
    let labels = [
        ("linkerd.io/control-plane-component", component),
        ("linkerd.io/control-plane-ns", "linkerd"),
    ];
    let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned()));
    pod.metadata.labels = Some(labels.into());
    pod
}

fn agent_pod(node: &str) -> Pod {
    let mut pod = control_plane_pod("mesh-agent", 0);
    pod.metadata.name = Some(format!("mesh-agent-{node}"));
    pod.metadata.namespace = Some("linkerd-agent".to_owned());
    pod.metadata.owner_references = serde_json::from_value(json!([
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "mesh-agent", "uid": "u"}
    ]))
    .unwrap();
    let spec = pod.spec.as_mut().unwrap();
    spec.node_name = Some(node.to_owned());
    spec.host_network = Some(true);
    pod
}

fn agent(node: &str, pods: &[Pod]) -> Agent {
    let on_node = pods.iter().filter(|pod| {
        let spec = pod.spec.as_ref().unwrap();
        spec.node_name.as_deref() == Some(node) && spec.host_network != Some(true)
    });
    let enrolled = on_node.map(|pod| PodStatus {
        pod: PodRef {
            namespace: pod.metadata.namespace.clone().unwrap(),
            name: pod.metadata.name.clone().unwrap(),
            uid: String::new(),
        },
        container_id: String::new(),
        netns: "/run/netns/x".into(),
        netns_cookie: 1,
        addresses: Vec::new(),
        tier: Tier::Full,
        connections: Default::default(),
    });
    let status = json!({
        "agentVersion": VERSION, "kernel": "6.12.1", "tier": "full", "reason": "the best", "forced": false,
        "trials": [], "selfTest": [], "cgroupRoot": null, "pinDir": "/sys/fs/bpf/mesh", "programs": [], "warnings": [],
        "pods": {}, "connections": {},
    });
    let mut status: NodeStatus = serde_json::from_value(status).unwrap();
    status.self_test.push(SelfTestCase {
        name: "connect".to_owned(),
        outcome: SelfTestOutcome::Passed,
        detail: String::new(),
    });
    status.cni = Some(CniStatus {
        file: Some("10-bridge.conflist".to_owned()),
        plugins: vec!["bridge".to_owned(), "mesh-cni".to_owned()],
        chained: true,
        ..Default::default()
    });
    Agent {
        node: node.to_owned(),
        status: Ok(status),
        pods: Ok(enrolled.collect()),
    }
}

fn proxy(pod: &Pod) -> Proxy {
    Proxy {
        namespace: pod.metadata.namespace.clone().unwrap(),
        pod: pod.metadata.name.clone().unwrap(),
        is_new: false,
        ready: Ok(()),
        chain: None,
        metrics: Ok(exposition::parse(&format!(
            "{CERTIFICATE_EXPIRY} {}\n{NUMBER} {NUMBERED}\n",
            NOW + 3600 * 20
        ))),
    }
}

/// Returns the metrics of a proxy whose certificate expires at that Unix time.
pub(in crate::check) fn expiry(seconds: u64) -> Vec<Sample> {
    exposition::parse(&format!("{CERTIFICATE_EXPIRY} {seconds}\n"))
}

pub(in crate::check) fn trust_roots(namespace: &str, bundle: &str) -> ConfigMap {
    let map = json!({
        "metadata": {"name": TRUST_ROOTS, "namespace": namespace}, "data": {BUNDLE_KEY: bundle}
    });
    serde_json::from_value(map).unwrap()
}

/// Returns the record of the anchors that the identity service sends.
pub(in crate::check) fn trust_bundle(number: u64, bundle: &str) -> ConfigMap {
    let map = json!({
        "metadata": {"name": TRUST_BUNDLE, "namespace": "linkerd"},
        "data": {"number": number.to_string(), BUNDLE_KEY: bundle},
    });
    serde_json::from_value(map).unwrap()
}

pub(in crate::check) fn webhook_secret(pem: &str) -> Secret {
    let data = [("tls.crt".to_owned(), ByteString(pem.as_bytes().to_vec()))];
    Secret {
        data: Some(data.into()),
        ..Default::default()
    }
}

/// Returns the facts of a cluster without problems.
pub(in crate::check) fn healthy() -> Facts {
    let documents = documents();
    let scope = Scope::All;
    let mut facts = Facts::new(
        Environment::Cluster,
        Mode::Installed { proxies: true },
        "linkerd",
        scope,
    );
    facts.now = NOW;
    facts.api_server = Ok(server());
    let mut pods: Vec<Pod> = COMPONENTS
        .iter()
        .flat_map(|component| (0..2).map(|number| control_plane_pod(component, number)))
        .collect();
    pods.extend(["a", "b"].map(agent_pod));
    pods.extend([
        pod("shop", "web-0", "a", true),
        pod("shop", "web-1", "b", true),
        pod("plain", "batch", "b", false),
    ]);
    facts.agents = vec![agent("a", &pods), agent("b", &pods)];
    let with_proxy = pods
        .iter()
        .filter(|pod| crate::facts::proxy_container(pod).is_some());
    facts.proxies = with_proxy.map(proxy).collect();
    facts.controllers = ["identity", "destination", "policy", "proxy-injector"]
        .map(|name| Controller {
            pod: "linkerd/x".to_owned(),
            name,
            ready: Ok(()),
            metrics: Ok(exposition::parse(
                "source_kind_served{kind=\"Pod\"} 1\nsource_kind_synced{kind=\"Pod\"} 1\n",
            )),
        })
        .into();
    let objects = &mut facts.objects;
    objects.namespaces = Ok(of_kind(&documents, "Namespace"));
    objects.nodes = Ok(of_kind(&documents, "Node"));
    objects.pods = Ok(pods);
    objects.services = Ok(of_kind(&documents, "Service"));
    let (own, shop): (Vec<Value>, _) = documents.iter().cloned().partition(|document| {
        let namespace = document["metadata"]["namespace"].as_str();
        matches!(namespace, Some("linkerd" | "linkerd-agent"))
    });
    objects.deployments = Ok(of_kind(&own, "Deployment"));
    objects.daemon_sets = Ok(of_kind(&documents, "DaemonSet"));
    objects.cron_jobs = Ok(Vec::new());
    objects.accounts = Ok(of_kind(&own, "ServiceAccount"));
    objects.config = Ok(of_kind(&documents, "ConfigMap").pop());
    objects.webhooks = Ok(of_kind(&documents, "MutatingWebhookConfiguration").pop());
    objects.cilium = Ok(None);
    objects.cluster_dns = Ok(None);
    objects.network_policies = Ok(Vec::new());
    let group = "policy.linkerd.io";
    objects.policies = Ok(documents
        .iter()
        .filter(|document| {
            document["apiVersion"]
                .as_str()
                .is_some_and(|api| api.starts_with(group))
        })
        .cloned()
        .collect());
    objects.workloads = Ok(of_workloads(&shop));
    objects.failed_creates = Ok(Vec::new());
    let (node_leases, leader_leases): (Vec<Lease>, _) = of_kind(&documents, "Lease")
        .into_iter()
        .partition(|lease: &Lease| lease.namespace().as_deref() == Some("kube-node-lease"));
    objects.leases = Ok(node_leases);
    objects.leader_leases = Ok(leader_leases);
    let (system_slices, slices): (Vec<EndpointSlice>, _) = of_kind(&documents, "EndpointSlice")
        .into_iter()
        .partition(|slice: &EndpointSlice| slice.namespace().as_deref() == Some("kube-system"));
    objects.slices = Ok(slices);
    objects.system_slices = Ok(system_slices);
    facts.access = vec![AccessReview {
        account: Some("linkerd-identity"),
        permission: Permission {
            verb: "create",
            group: "authentication.k8s.io",
            resource: "tokenreviews",
            namespaced: false,
        },
        allowed: Ok(true),
    }];
    add_certificates(&mut facts);
    facts
}

/// Returns the workloads and ServiceAccounts.
fn of_workloads(documents: &[Value]) -> Vec<Value> {
    let is_read = |document: &&Value| {
        WORKLOADS
            .iter()
            .any(|(_, _, kind)| document["kind"] == *kind)
    };
    documents.iter().filter(is_read).cloned().collect()
}

fn server() -> ApiServer {
    let served: BTreeSet<String> = super::super::kubernetes::required_kinds()
        .map(str::to_owned)
        .collect();
    ApiServer {
        version: "v1.34.1".to_owned(),
        major_minor: Some((1, 34)),
        clock: Some(NOW + 1),
        served: Ok(served),
    }
}

/// Adds the certificates of the cluster.
fn add_certificates(facts: &mut Facts) {
    let anchor = TestCa::new("root.linkerd.cluster.local", 3650);
    facts.trust.anchors = Ok(vec![anchor.der()]);
    facts.trust.issuer = Ok(vec![
        anchor.intermediate("identity.linkerd.cluster.local", 365),
    ]);
    facts.trust.key = Ok(());
    let bundle = anchor.pem();
    facts.objects.trust_roots = Ok(vec![trust_roots("linkerd", &bundle)]);
    facts.objects.trust_bundle = Ok(Some(trust_bundle(NUMBERED, &bundle)));
    facts.objects.denied_identities = Ok(None);
    facts.objects.rotation = Ok(None);
    facts.objects.issuer = Ok(None);
    facts.objects.issuer_certificate = Ok(None);
    let authority = TestCa::new("webhook", 365);
    let (der, pem) = authority.server(SERVER_NAME, 365);
    facts.objects.webhook_secret = Ok(Some(webhook_secret(&pem)));
    set_ca_bundle(facts, &authority.pem());
    let documents = documents();
    facts.objects.validators = VALIDATORS
        .map(|names| (names.container, validator(names, &documents, &authority)))
        .into();
    facts.webhook.presented =
        [("linkerd/linkerd-proxy-injector-0".to_owned(), Ok(vec![der]))].into();
    facts.webhook.dry_run = Ok(InjectionDryRun::Injected);
}

fn validator(names: ValidatorNames, documents: &[Value], authority: &TestCa) -> ValidatorObjects {
    let all: Vec<ValidatingWebhookConfiguration> =
        of_kind(documents, "ValidatingWebhookConfiguration");
    let mut registration = all
        .into_iter()
        .find(|registration| registration.name_any() == names.registration);
    let webhooks = registration.as_mut().unwrap().webhooks.as_mut().unwrap();
    webhooks[0].client_config.ca_bundle = Some(ByteString(authority.pem().into_bytes()));
    let service = webhooks[0].client_config.service.as_ref().unwrap();
    let (_, pem) = authority.server(&format!("{}.linkerd.svc", service.name), 365);
    ValidatorObjects {
        registration: Ok(registration),
        secret: Ok(Some(webhook_secret(&pem))),
    }
}

pub(in crate::check) fn set_ca_bundle(facts: &mut Facts, pem: &str) {
    let configuration = facts.objects.webhooks.as_mut().unwrap().as_mut().unwrap();
    let webhooks = configuration.webhooks.as_mut().unwrap();
    webhooks[0].client_config.ca_bundle = Some(ByteString(pem.as_bytes().to_vec()));
}
