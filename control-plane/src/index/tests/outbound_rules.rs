//! The rules of outbound policies, each with the objects that show it and the message that proxies
//! get. The modules are in the order of the computation.

use std::sync::Arc;

use mesh_core::policy::outbound::{OutboundPolicy, Target};
use mesh_objects::model::Kind;
use mesh_objects::policy::json;
use mesh_objects::policy::outbound::OutboundError;
use serde_json::Value;
use tokio::sync::watch;

use super::super::PolicyIndex;
use super::super::version::Version;
use super::compact;
use super::fixture::{apply, delete, policy_settings};

mod annotations;
mod attachment;
mod backends;
mod filters;
mod mirrors;
mod protocols;
mod targets;

type Watched = watch::Receiver<Arc<Version<Option<OutboundPolicy>>>>;

/// An index with changing objects.
struct Cluster(PolicyIndex);

impl Cluster {
    fn new(objects: &str) -> Self {
        let mut index = PolicyIndex::new(policy_settings());
        index.apply(apply(objects));
        Self(index)
    }

    fn apply(&mut self, objects: &str) {
        self.0.apply(apply(objects));
    }

    fn delete(&mut self, kind: Kind, namespace: &str, name: &str) {
        self.0.apply(delete(kind, namespace, name));
    }

    /// Looks up a target, an address or an authority, for the clients of a namespace.
    fn lookup(&mut self, target: &str, client: &str) -> Result<Watched, OutboundError> {
        let target = match target.parse() {
            Ok(addr) => Target::Addr(addr),
            Err(_) => Target::Authority(target.into()),
        };
        self.0.outbound(&target, &client.into())
    }

    fn watch(&mut self, target: &str, client: &str) -> Watched {
        self.lookup(target, client).unwrap()
    }
}

/// Returns the current policy as proxies decode its message, with and without the extension.
fn decoded(watched: &Watched) -> [Value; 2] {
    let policy = watched.borrow().value().as_ref().clone().unwrap();
    let message = mesh_api::outbound::extended_to_proto(&policy);
    let standard = mesh_api::outbound::outbound_policy(message.standard.clone()).unwrap();
    let received = mesh_api::outbound::extended_policy(message).unwrap();
    assert_eq!(received.problem, None);
    [received.policy, standard].map(|policy| json::outbound(&policy))
}

fn policy(watched: &Watched) -> Value {
    let [policy, _] = decoded(watched);
    policy
}

/// Returns the lines of the current policy, and the lines without the extension if they differ.
fn message(watched: &Watched) -> String {
    let [policy, standard] = decoded(watched);
    let mut lines = compact::lines(&policy);
    if standard != policy {
        lines.push("without extension".to_owned());
        lines.extend(compact::lines(&standard));
    }
    lines.join("\n")
}

/// Returns the lines of rules, and the line that separates them.
fn rule_lines(watched: &Watched) -> String {
    let text = message(watched);
    let lines = text.lines();
    let rules = lines.filter(|line| line.starts_with("rule") || line.starts_with("without"));
    rules.collect::<Vec<_>>().join("\n")
}

/// Returns the line of a rule of `web` without matches and with these filters.
fn filtering(filters: &str) -> String {
    format!("rule {TO_WEB} filters=[{filters}] headersOverride")
}

/// Returns the lines of a rule with these filters, and with the ones without the extension.
fn extended(filters: &str, standard: &str) -> String {
    let lines = [
        filtering(filters),
        "without extension".to_owned(),
        filtering(standard),
    ];
    lines.join("\n")
}

/// Returns the filter that stands for one that needs the extension, the first of a rule.
fn unsupported(route: &str, filter: &str) -> String {
    let message = format!("message=filters[0].type: {filter} is not supported by this proxy");
    match route {
        "GRPCRoute" => format!("failure=(code=13 {message} ratio=1/1)"),
        _ => format!("failure=({message} ratio=1/1 status=500)"),
    }
}

/// Returns the routes of all protocols, for connections first.
fn routes(policy: &Value) -> impl DoubleEndedIterator<Item = &Value> {
    let lists = ["httpRoutes", "grpcRoutes", "tlsRoutes"].map(|name| policy[name].as_array());
    policy
        .get("tcpRoute")
        .into_iter()
        .chain(lists.into_iter().flatten().flatten())
}

/// Returns the routes that are not default ones.
fn attached_routes(policy: &Value) -> impl Iterator<Item = &Value> {
    routes(policy).filter(|route| route["object"].get("default").is_none())
}

/// Checks the message of a target for clients in the namespace `shop`.
#[track_caller]
fn check(objects: &str, target: &str, expected: &str) {
    let watched = Cluster::new(objects).watch(target, "shop");
    assert_text(&message(&watched), expected);
}

/// Compares texts without the indentation of the expected one.
#[track_caller]
fn assert_text(text: &str, expected: &str) {
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.trim().to_owned());
        lines.filter(|line| !line.is_empty()).collect()
    };
    assert_eq!(lines(text), lines(expected), "\n{text}");
}

/// Returns a Service in the namespace `shop`; `more` is added to its metadata.
fn service(name: &str, ip: &str, ports: &str, more: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop{more}}}
spec: {{clusterIP: {ip}, clusterIPs: [{ip}], ports: [{ports}]}}
"
    )
}

/// The Service `web` with its address 10.96.0.1 and the port 80.
fn web() -> String {
    service("web", "10.96.0.1", "{port: 80}", "")
}

/// Returns the Service `web` with annotations.
fn annotated_web(annotations: &str) -> String {
    let more = format!(", annotations: {{{annotations}}}");
    service("web", "10.96.0.1", "{port: 80}", &more)
}

/// Returns an EgressNetwork; `more` is added to its metadata.
fn network(namespace: &str, name: &str, policy: &str, cidrs: &str, more: &str) -> String {
    let networks = match cidrs {
        "" => String::new(),
        cidrs => {
            let cidrs = cidrs.split(' ').map(|cidr| format!("{{cidr: '{cidr}'}}"));
            format!(", networks: [{}]", cidrs.collect::<Vec<_>>().join(", "))
        }
    };
    format!(
        "---
apiVersion: policy.linkerd.io/v1alpha1
kind: EgressNetwork
metadata: {{name: {name}, namespace: {namespace}{more}}}
spec: {{trafficPolicy: {policy}{networks}}}
"
    )
}

/// Returns a route of the Gateway API in the namespace `shop`; `parent` is a reference and `rules`
/// a list.
fn route(kind: &str, name: &str, parent: &str, rules: &str) -> String {
    route_in("shop", kind, name, parent, rules)
}

fn route_in(namespace: &str, kind: &str, name: &str, parent: &str, rules: &str) -> String {
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  parentRefs: [{{{parent}}}]
  rules: {rules}
"
    )
}

/// The reference to the Service `web`.
const WEB: &str = "group: '', kind: Service, name: web, namespace: shop";
/// The reference to the EgressNetwork `outside` and port 443.
const OUTSIDE: &str =
    "group: policy.linkerd.io, kind: EgressNetwork, name: outside, namespace: shop, port: 443";
/// The backend `web`.
const TO_WEB: &str = "backends=[core/Service shop/web:80 balances]";
