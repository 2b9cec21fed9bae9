//! Changes of the healthy cluster that make up the faults.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};

use mesh_core::node::NodeStatus;
use mesh_k8s::kinds::{ByteString, CronJob, MutatingWebhook, Pod, ResourceExt, ValidatingWebhook};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::fixture::{self, TestCa, pod};
use crate::facts::names::TRUST_ROOTS;
use crate::facts::{AccessReview, Fact, Facts, Mode, Permission, ValidatorObjects};

/// An object of the cluster as JSON, which replaces the object when it is dropped.
pub(super) struct Edit<'a, T: DeserializeOwned> {
    object: &'a mut T,
    value: Value,
}

impl<'a, T: Serialize + DeserializeOwned> Edit<'a, T> {
    fn new(object: &'a mut T) -> Self {
        let value = serde_json::to_value(&*object).unwrap();
        Self { object, value }
    }
}

impl<T: DeserializeOwned> Deref for Edit<'_, T> {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

impl<T: DeserializeOwned> DerefMut for Edit<'_, T> {
    fn deref_mut(&mut self) -> &mut Value {
        &mut self.value
    }
}

impl<T: DeserializeOwned> Drop for Edit<'_, T> {
    fn drop(&mut self) {
        *self.object = serde_json::from_value(self.value.take()).unwrap();
    }
}

/// Edits the object of that name.
pub(super) fn edit<'a, T>(objects: &'a mut Fact<Vec<T>>, name: &str) -> Edit<'a, T>
where
    T: ResourceExt + Serialize + DeserializeOwned,
{
    let mut objects = objects.as_mut().unwrap().iter_mut();
    Edit::new(objects.find(|object| object.name_any() == name).unwrap())
}

pub(super) fn edit_pod<'a>(facts: &'a mut Facts, name: &str) -> Edit<'a, Pod> {
    edit(&mut facts.objects.pods, name)
}

/// Gives `shop/web-0` an IPv6 address, the families that are redirected, and a default policy.
pub(super) fn dual_stack(facts: &mut Facts, families: &str, policy: &str) {
    let mut pod = edit_pod(facts, "web-0");
    pod["status"]["podIPs"] = json!([{"ip": "10.1.0.5"}, {"ip": "fd00::5"}]);
    let annotations = &mut pod["metadata"]["annotations"];
    annotations["linkerd.io/redirected-ip-families"] = json!(families);
    annotations["config.linkerd.io/default-inbound-policy"] = json!(policy);
}

pub(super) fn edit_webhook(facts: &mut Facts) -> Edit<'_, MutatingWebhook> {
    let configuration = facts.objects.webhooks.as_mut().unwrap().as_mut().unwrap();
    Edit::new(&mut configuration.webhooks.as_mut().unwrap()[0])
}

/// Returns the objects of the validator that a container serves.
pub(super) fn edit_objects<'a>(facts: &'a mut Facts, container: &str) -> &'a mut ValidatorObjects {
    facts.objects.validators.get_mut(container).unwrap()
}

/// Returns the webhook of a validator.
pub(super) fn edit_validator<'a>(
    facts: &'a mut Facts,
    container: &str,
) -> Edit<'a, ValidatingWebhook> {
    let objects = edit_objects(facts, container);
    let registration = objects.registration.as_mut().unwrap();
    let webhooks = registration.as_mut().unwrap().webhooks.as_mut().unwrap();
    Edit::new(&mut webhooks[0])
}

/// Gives a validator an accepted certificate that is valid for 20 more days.
pub(super) fn expire_validator(facts: &mut Facts, container: &str, server_name: &str) {
    let authority = TestCa::new("validator", 365);
    let (_, pem) = authority.server(server_name, 20);
    edit_validator(facts, container)["clientConfig"]["caBundle"] = bundle(&authority);
    edit_objects(facts, container).secret = Ok(Some(fixture::webhook_secret(&pem)));
}

/// Returns the `caBundle` of another CA.
pub(super) fn stranger() -> Value {
    bundle(&TestCa::new("stranger", 365))
}

fn bundle(authority: &TestCa) -> Value {
    serde_json::to_value(ByteString(authority.pem().into_bytes())).unwrap()
}

pub(super) fn pods(facts: &mut Facts) -> &mut Vec<Pod> {
    facts.objects.pods.as_mut().unwrap()
}

/// Removes the pods whose names begin with `prefix`.
pub(super) fn remove_pods(facts: &mut Facts, prefix: &str) {
    pods(facts).retain(|pod| !pod.name_any().starts_with(prefix));
}

pub(super) fn served(facts: &mut Facts) -> &mut BTreeSet<String> {
    facts.api_server.as_mut().unwrap().served.as_mut().unwrap()
}

/// Records the events of the control plane's namespace.
pub(super) fn set_events(facts: &mut Facts, events: Value) {
    facts.objects.events = Ok(serde_json::from_value(events).unwrap());
}

pub(super) fn status(facts: &mut Facts, agent: usize) -> &mut NodeStatus {
    facts.agents[agent].status.as_mut().unwrap()
}

/// Withdraws a permission from the user before the installation.
pub(super) fn deny(facts: &mut Facts, permission: Permission) {
    pre(facts);
    facts.access = vec![AccessReview {
        account: None,
        permission,
        allowed: Ok(false),
    }];
}

/// Replaces the certificate that the injector's pods present.
pub(super) fn present(facts: &mut Facts, der: &[u8]) {
    for chain in facts.webhook.presented.values_mut() {
        *chain = Ok(vec![der.to_vec()]);
    }
}

pub(super) fn set_value(facts: &mut Facts, line: &str, other: &str) {
    let config = facts.objects.config.as_mut().unwrap().as_mut().unwrap();
    let text = config.data.as_mut().unwrap().get_mut("values").unwrap();
    *text = text.replace(line, other);
}

/// Has reports of the installation sent, without their CronJob.
pub(super) fn send_reports(facts: &mut Facts) {
    let domain = "clusterDomain: cluster.local";
    let values = format!("{domain}\nheartbeatUrl: https://a.example");
    set_value(facts, domain, &values);
    let account = json!({ "metadata": { "name": "linkerd-heartbeat", "namespace": "linkerd" } });
    let accounts = facts.objects.accounts.as_mut().unwrap();
    accounts.push(serde_json::from_value(account).unwrap());
}

/// Returns the CronJob of reports.
pub(super) fn cron_job(status: Value) -> CronJob {
    let template = json!({ "spec": { "template": {} } });
    serde_json::from_value(json!({
        "metadata": { "name": "linkerd-heartbeat", "namespace": "linkerd" },
        "spec": { "schedule": "5 4 * * *", "jobTemplate": template },
        "status": status,
    }))
    .unwrap()
}

pub(super) fn not_ready(facts: &mut Facts, name: &str) {
    edit_pod(facts, name)["status"]["conditions"][0]["status"] = json!("False");
}

/// Returns the status of a container that has no restarts and is not ready unless `state` says so.
pub(super) fn container_status(name: &str, state: Value) -> Value {
    let mut status =
        json!({"name": name, "image": "x", "imageID": "", "ready": false, "restartCount": 0});
    let Value::Object(state) = state else {
        panic!("{state} is not an object")
    };
    status.as_object_mut().unwrap().extend(state);
    status
}

pub(super) fn set_container(facts: &mut Facts, pod: &str, container: &str, state: Value) {
    edit_pod(facts, pod)["status"]["containerStatuses"] =
        json!([container_status(container, state)]);
}

/// Reports a container whose image does not exist.
pub(super) fn cannot_pull(facts: &mut Facts, pod: &str, container: &str, reason: &str) {
    let waiting = json!({"reason": reason, "message": "no such image"});
    set_container(
        facts,
        pod,
        container,
        json!({"state": {"waiting": waiting}}),
    );
}

/// Reports a pod of the identity service that no node can run.
pub(super) fn cannot_schedule(facts: &mut Facts, message: &str) {
    edit_pod(facts, "linkerd-identity-1")["status"]["conditions"] = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message
    }]);
}

/// Sets how many of the two agents could be created.
pub(super) fn set_scheduled(facts: &mut Facts, agents: u32) {
    edit(&mut facts.objects.daemon_sets, "mesh-agent")["status"] = json!({
        "currentNumberScheduled": agents, "desiredNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": agents
    });
}

pub(super) fn enforce_restricted(facts: &mut Facts) {
    enforce(facts, "linkerd-agent", Some("restricted"));
}

/// Sets the Pod Security level that a namespace enforces, or removes it.
pub(super) fn enforce(facts: &mut Facts, namespace: &str, level: Option<&str>) {
    let mut namespace = edit(&mut facts.objects.namespaces, namespace);
    let labels = namespace["metadata"]["labels"].as_object_mut().unwrap();
    labels.remove("pod-security.kubernetes.io/enforce");
    labels.extend(level.map(|level| {
        let label = "pod-security.kubernetes.io/enforce".to_owned();
        (label, json!(level))
    }));
}

/// Starts a proxy with trust anchors in its environment.
pub(super) fn trust_old_anchors(pod: &mut Value) {
    let env = pod["spec"]["containers"][1]["env"].as_array_mut().unwrap();
    env.push(json!({"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": "old"}));
}

/// Mounts the ConfigMap of trust anchors, as earlier versions did.
pub(super) fn mount_anchors(pod: &mut Value) {
    let roots = json!({"name": "roots", "configMap": {"name": TRUST_ROOTS, "optional": true}});
    pod["spec"]["volumes"].as_array_mut().unwrap().push(roots);
}

pub(super) fn add_host_pod(facts: &mut Facts) {
    pods(facts).push(pod("shop", "host", "a", false));
    edit_pod(facts, "host")["spec"]["hostNetwork"] = json!(true);
}

pub(super) fn scale_injector_to_zero(facts: &mut Facts) {
    edit(&mut facts.objects.deployments, "linkerd-proxy-injector")["spec"]["replicas"] = json!(0);
    remove_pods(facts, "linkerd-proxy-injector");
}

pub(super) fn add_policy(facts: &mut Facts, object: Value) {
    facts.objects.policies.as_mut().unwrap().push(object);
}

/// Adds the ExternalWorkload `shop/vm` and a Server for ExternalWorkloads with a label.
pub(super) fn add_external_server(facts: &mut Facts, name: &str, app: &str) {
    let external = json!({
        "apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
        "metadata": {"name": "vm", "namespace": "shop", "labels": {"app": "vm"}},
        "spec": {"meshTLS": {"identity": "vm", "serverName": "vm"}, "ports": [{"port": 80}]},
    });
    add_policy(facts, external);
    let server = json!({
        "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"externalWorkloadSelector": {"matchLabels": {"app": app}}, "port": 80},
    });
    add_policy(facts, server);
}

/// Adds a route of the Server of that name.
pub(super) fn add_route(facts: &mut Facts, server: &str) {
    let route = json!({
        "apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute",
        "metadata": {"name": "get", "namespace": "shop"},
        "spec": {"parentRefs": [{"group": "policy.linkerd.io", "kind": "Server", "name": server}]},
    });
    add_policy(facts, route);
}

pub(super) fn policy<'a>(facts: &'a mut Facts, kind: &str) -> &'a mut Value {
    let mut all = facts.objects.policies.as_mut().unwrap().iter_mut();
    all.find(|object| object["kind"] == kind).unwrap()
}

pub(super) fn pre(facts: &mut Facts) {
    facts.mode = Mode::Pre;
    facts.objects.config = Ok(None);
}

/// Has the mesh deny the identities of a text.
pub(super) fn deny_identities(facts: &mut Facts, text: &str) {
    let object = json!({
        "metadata": {"name": "linkerd-denied-identities", "namespace": "linkerd"},
        "data": {"identities": text},
    });
    facts.objects.denied_identities = Ok(Some(serde_json::from_value(object).unwrap()));
}
