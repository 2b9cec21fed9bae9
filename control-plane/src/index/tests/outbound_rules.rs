//! The rules of outbound policies, each with the objects that show it and the message that proxies
//! get. The modules are in the order of the computation.

use std::sync::Arc;

use mesh_core::policy::outbound::{OutboundPolicy, Target};
use mesh_objects::model::Kind;
use mesh_objects::policy::outbound::OutboundError;
use tokio::sync::watch;

use super::super::PolicyIndex;
use super::super::version::Version;
use super::fixture::{apply, delete, policy_settings};

mod annotations;
mod attachment;
mod backends;
mod filters;
mod mirrors;
mod protocols;
mod targets;
mod wire;

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

/// Returns the text of the message with the current policy, and of its extension. It can also be
/// decoded again.
fn message(watched: &Watched) -> String {
    let policy = watched.borrow().value().as_ref().clone().unwrap();
    let message = mesh_api::outbound::extended_to_proto(&policy);
    let text = wire::text(&message.standard);
    let received = mesh_api::outbound::extended_policy(message).unwrap();
    assert_eq!(received.problem, None);
    text + &wire::extension_text(&received.policy)
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
