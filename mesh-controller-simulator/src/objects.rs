//! The objects of a world, each in the generations that its script writes.
//!
//! What clients see of an object contains its generation as a [`marker`], so that the oracle knows
//! the version of it that a message was computed from.

use serde_json::{Value, json};

/// An object that scripts write.
pub struct Template {
    pub name: &'static str,
    object: fn(&str) -> Value,
}

/// When all objects were created. The age of an object decides nothing here.
const CREATED: &str = "2026-01-01T00:00:00Z";

#[rustfmt::skip] // a table, one row a line
const TEMPLATES: [Template; 21] = [
    Template { name: "service web", object: |it| service("web", "10.96.0.1", it) },
    Template { name: "service cart", object: |it| service("cart", "10.96.0.2", it) },
    Template { name: "slice web", object: |it| slice("web", "web-a", "10.2.0.1", it) },
    Template { name: "slice cart", object: |it| slice("cart", "cart-a", "10.2.0.3", it) },
    Template { name: "pod web-a", object: |it| pod("web", "web-a", "10.2.0.1", it) },
    Template { name: "pod cart-a", object: |it| pod("cart", "cart-a", "10.2.0.3", it) },
    Template { name: "node", object: node },
    Template { name: "replica set", object: replica_set },
    Template { name: "profile", object: profile },
    Template { name: "server", object: server },
    Template { name: "authorization", object: authorization },
    Template { name: "authentication", object: authentication },
    Template { name: "networks", object: networks },
    Template { name: "server authorization", object: server_authorization },
    Template { name: "route of policy", object: |it| route("policy.linkerd.io/v1beta3", "web", it) },
    Template { name: "route of gateway", object: |it| route("gateway.networking.k8s.io/v1", "cart", it) },
    Template { name: "route of server", object: route_of_server },
    Template { name: "rate limit", object: rate_limit },
    Template { name: "egress network", object: egress_network },
    Template { name: "workload", object: workload },
    Template { name: "namespace", object: namespace },
];

/// The number of objects that scripts write.
pub const COUNT: usize = TEMPLATES.len();

/// Returns the text that only this generation has. No marker is a part of another.
pub fn marker(generation: u64) -> String {
    format!("gen-{generation:06}")
}

/// Returns the generations in a text.
pub fn generations(text: &str) -> impl Iterator<Item = u64> {
    let after = text.split("gen-").skip(1);
    after.filter_map(|rest| rest.get(..6)?.parse().ok())
}

/// Returns a generation of an object.
pub fn object(index: usize, generation: u64) -> Value {
    let template = &TEMPLATES[index % COUNT];
    let marker = marker(generation);
    let mut object = (template.object)(&marker);
    let meta = &mut object["metadata"];
    if meta["namespace"].is_null() && !matches!(template.name, "node" | "namespace") {
        meta["namespace"] = "shop".into();
    }
    meta["uid"] = format!("{}-{marker}", template.name).into();
    meta["creationTimestamp"] = CREATED.into();
    meta["annotations"]["example.com/generation"] = marker.into();
    object
}

/// Returns the name of an object in scripts.
pub fn name(index: usize) -> &'static str {
    TEMPLATES[index % COUNT].name
}

/// Returns the objects that are always there.
pub fn fixed() -> [Value; 1] {
    [json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "linkerd-destination", "namespace": "linkerd", "uid": "fixed" },
        "spec": {},
    })]
}

fn service(name: &str, ip: &str, _marker: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": {
            "clusterIP": ip,
            "selector": { "app": name },
            "ports": [{ "name": "http", "port": 80 }],
        },
    })
}

fn slice(service: &str, pod: &str, pod_ip: &str, marker: &str) -> Value {
    let number: u64 = generations(marker).sum();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-1"), "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080 }],
        "endpoints": [
            { "addresses": [address(number)] },
            {
                "addresses": [pod_ip],
                "targetRef": { "kind": "Pod", "name": pod, "namespace": "shop" },
            },
        ],
    })
}

/// Returns the address that only this generation of an EndpointSlice has.
pub fn address(generation: u64) -> String {
    format!("10.1.{}.{}", generation / 250, generation % 250 + 1)
}

/// Returns the generation that has an address.
pub fn generation_of(address: &str) -> Option<u64> {
    let (high, low) = address.strip_prefix("10.1.")?.split_once('.')?;
    Some(high.parse::<u64>().ok()? * 250 + low.parse::<u64>().ok()?.checked_sub(1)?)
}

fn pod(app: &str, name: &str, ip: &str, marker: &str) -> Value {
    let port = |name: &str, port: u16| json!({ "name": name, "value": format!("0.0.0.0:{port}") });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "app": app, "linkerd.io/control-plane-ns": "linkerd", "pod-template-hash": marker,
            },
            "ownerReferences": [
                { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-rs", "uid": "u", "controller": true },
            ],
        },
        "spec": {
            "nodeName": "node-a", "serviceAccountName": app,
            "containers": [
                { "name": app, "image": "app", "ports": [{ "name": "http", "containerPort": 8080 }] },
                { "name": "linkerd-proxy", "image": "proxy", "env": [
                    port("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", 4143),
                    port("LINKERD2_PROXY_CONTROL_LISTEN_ADDR", 4190),
                    port("LINKERD2_PROXY_ADMIN_LISTEN_ADDR", 4191),
                ] },
            ],
        },
        "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] },
    })
}

fn node(marker: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "node-a", "labels": { "topology.kubernetes.io/zone": marker } },
        "spec": {},
    })
}

fn replica_set(marker: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": "web-rs",
            "ownerReferences": [
                { "apiVersion": "apps/v1", "kind": "Deployment", "name": marker, "uid": "u", "controller": true },
            ],
        },
        "spec": {},
    })
}

fn profile(marker: &str) -> Value {
    json!({
        "apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile",
        "metadata": { "name": "web.shop.svc.cluster.local" },
        "spec": { "routes": [{ "name": marker, "condition": { "method": "GET" } }] },
    })
}

fn server(_marker: &str) -> Value {
    json!({
        "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
        "metadata": { "name": "web-http" },
        "spec": {
            "podSelector": { "matchLabels": { "app": "web" } }, "port": "http",
            "proxyProtocol": "HTTP/1",
        },
    })
}

fn of_server() -> Value {
    json!({ "group": "policy.linkerd.io", "kind": "Server", "name": "web-http" })
}

fn authorization(_marker: &str) -> Value {
    json!({
        "apiVersion": "policy.linkerd.io/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": { "name": "allow" },
        "spec": {
            "targetRef": of_server(),
            "requiredAuthenticationRefs": [
                { "group": "policy.linkerd.io", "kind": "MeshTLSAuthentication", "name": "clients" },
            ],
        },
    })
}

fn authentication(marker: &str) -> Value {
    json!({
        "apiVersion": "policy.linkerd.io/v1alpha1", "kind": "MeshTLSAuthentication",
        "metadata": { "name": "clients" }, "spec": { "identities": [identity(marker)] },
    })
}

fn identity(marker: &str) -> String {
    format!("{marker}.shop.serviceaccount.identity.linkerd.cluster.local")
}

fn networks(_marker: &str) -> Value {
    json!({
        "apiVersion": "policy.linkerd.io/v1alpha1", "kind": "NetworkAuthentication",
        "metadata": { "name": "networks" },
        "spec": { "networks": [{ "cidr": "10.0.0.0/8" }] },
    })
}

fn server_authorization(marker: &str) -> Value {
    json!({
        "apiVersion": "policy.linkerd.io/v1beta1", "kind": "ServerAuthorization",
        "metadata": { "name": "legacy" },
        "spec": {
            "server": { "name": "web-http" },
            "client": { "meshTLS": { "identities": [identity(marker)] } },
        },
    })
}

fn route(api_version: &str, service: &str, marker: &str) -> Value {
    json!({
        "apiVersion": api_version, "kind": "HTTPRoute",
        "metadata": { "name": format!("{service}-route") },
        "spec": {
            "parentRefs": [{ "group": "", "kind": "Service", "name": service, "port": 80 }],
            "rules": [{
                "matches": [{ "headers": [{ "name": "x-generation", "value": marker }] }],
                "backendRefs": [{ "kind": "Service", "name": service, "port": 80 }],
            }],
        },
    })
}

fn route_of_server(marker: &str) -> Value {
    json!({
        "apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute",
        "metadata": { "name": "inbound-route" },
        "spec": {
            "parentRefs": [of_server()],
            "rules": [{ "matches": [{ "headers": [{ "name": "x-generation", "value": marker }] }] }],
        },
    })
}

fn rate_limit(_marker: &str) -> Value {
    json!({
        "apiVersion": "policy.linkerd.io/v1alpha1", "kind": "HTTPLocalRateLimitPolicy",
        "metadata": { "name": "limit" },
        "spec": { "targetRef": of_server(), "total": { "requestsPerSecond": 100 } },
    })
}

fn egress_network(_marker: &str) -> Value {
    json!({
        "apiVersion": "policy.linkerd.io/v1alpha1", "kind": "EgressNetwork",
        "metadata": { "name": "outside" }, "spec": { "trafficPolicy": "Allow" },
    })
}

fn workload(marker: &str) -> Value {
    json!({
        "apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
        "metadata": { "name": "vm", "labels": { "app": "web", "generation": marker } },
        "spec": {
            "meshTLS": { "identity": "vm.example", "serverName": "vm.example" },
            "ports": [{ "name": "http", "port": 8080 }],
            "workloadIPs": [{ "ip": "192.0.2.1" }],
        },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn namespace(marker: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": "shop",
            "annotations": {
                "linkerd.io/inject": "enabled",
                "config.linkerd.io/proxy-log-level": format!("warn,{marker}=info"),
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Id;

    #[test]
    fn every_object_is_served_and_has_its_generation() {
        for index in 0..COUNT {
            let object = object(index, 4711);
            let id = Id::of(&object);
            assert!(!id.name.is_empty());
            assert!(generations(&object.to_string()).all(|it| it == 4711));
            assert!(generations(&object.to_string()).count() > 0);
        }
        assert_eq!(generation_of(&address(4711)), Some(4711));
        assert_eq!(generation_of("10.2.0.1"), None);
    }
}
