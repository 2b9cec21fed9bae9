//! The messages about a workload's port for sets of objects, by the rules of
//! docs/reference/access-policy.md. Each test has the name of its rule.

mod authorization_policies;
mod ports_without_server;
mod probes;
mod rate_limits;
mod routes;
mod server_authorizations;
mod servers;

use mesh_objects::model::{Name, WorkloadRef};
use mesh_objects::policy::json;

use super::super::{InboundKey, PolicyIndex};
use crate::index::tests::compact;
use crate::index::tests::fixture::{apply, pod, policy_settings};

/// Checks the policy of the message about the port 3306 of the pod `web-1`, line by line.
#[track_caller]
fn check(objects: &str, expect: &str) {
    check_port(objects, 3306, expect);
}

#[track_caller]
fn check_port(objects: &str, port: u16, expect: &str) {
    check_workload(
        objects,
        WorkloadRef::Pod(Name::new("shop", "web-1")),
        port,
        expect,
    );
}

#[track_caller]
fn check_workload(objects: &str, workload: WorkloadRef, port: u16, expect: &str) {
    let mut index = PolicyIndex::new(policy_settings());
    index.apply(apply(objects));
    assert_eq!(
        message(&mut index, workload, port),
        lines(expect),
        "{objects}"
    );
}

fn message(index: &mut PolicyIndex, workload: WorkloadRef, port: u16) -> Vec<String> {
    let policies = index.inbound(InboundKey { workload, port }).unwrap();
    let policy = policies.borrow();
    let message = mesh_api::inbound::to_proto((**policy).as_ref().unwrap());
    compact::lines(&json::inbound(
        &mesh_api::inbound::server_policy(message).unwrap(),
    ))
}

/// Returns the lines without indentation and empty ones.
fn lines(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The pod `web-1`, with annotations in the notation of YAML's flow style.
fn web(annotations: &str) -> String {
    let more = format!("annotations: {{{annotations}}}");
    pod("web-1", "10.1.0.1", true, &more)
}

/// A document of `policy.linkerd.io` in the namespace `shop`.
fn object(version: &str, kind: &str, metadata: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: policy.linkerd.io/{version}\nkind: {kind}\nmetadata: {{namespace: shop, {metadata}}}\nspec: {spec}\n"
    )
}

/// The Server `db` of the port 3306, with more fields of its spec.
fn server(spec: &str) -> String {
    let spec = format!("{{podSelector: {{matchLabels: {{app: web}}}}, port: 3306, {spec}}}");
    object("v1beta3", "Server", "name: db, labels: {tier: data}", &spec)
}

/// An AuthorizationPolicy `allow`.
fn policy(target: &str, required: &str) -> String {
    let spec = format!("{{targetRef: {{{target}}}, requiredAuthenticationRefs: [{required}]}}");
    object("v1alpha1", "AuthorizationPolicy", "name: allow", &spec)
}

const TO_SERVER: &str = "group: policy.linkerd.io, kind: Server, name: db";

/// The first lines of the message about `db` without objects that refer to it.
const DB: &str = "
    policy/server /db detectTimeout=10s protocol=detect
    routes default/default
    rule matches=[/*]
";
