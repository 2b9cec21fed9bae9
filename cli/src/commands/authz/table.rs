//! Computes the rows of `meshctl authz` from pods and policy objects, by the rules of
//! docs/reference/access-policy.md.

use std::collections::{BTreeMap, BTreeSet};

use mesh_k8s::crd::{
    AuthorizationPolicy, ExternalWorkload, PortRef, ProxyProtocol, Server, ServerAuthorization,
};
use mesh_k8s::kinds::{Namespace, ResourceExt, ServiceAccount};
use mesh_k8s::select;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::resource::MeshPod;

/// A Server's port, optionally a route of it, and an authorization of its clients.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) server: String,
    pub(super) port: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) route: Option<String>,
    /// The kind of the route with its API group, in the notation of kubectl.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) route_kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authorization_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_authorization: Option<String>,
    /// The policy for clients without authorization.
    pub(super) access_policy: String,
    /// Why the row is not enforced; `None` if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) without_effect: Option<String>,
}

/// The fields that all kinds of routes share.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Route {
    api_version: String,
    kind: String,
    metadata: RouteMeta,
    spec: RouteSpec,
}

#[derive(Deserialize)]
struct RouteMeta {
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RouteSpec {
    #[serde(default)]
    parent_refs: Vec<Parent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Parent {
    #[serde(default)]
    kind: String,
    name: String,
    namespace: Option<String>,
    port: Option<i64>,
    section_name: Option<String>,
}

/// The policy objects of the mesh.
struct Objects<'a> {
    policies: Vec<AuthorizationPolicy>,
    server_authorizations: Vec<ServerAuthorization>,
    routes: Vec<Route>,
    all: &'a [Value],
}

/// A pod or an ExternalWorkload.
pub(super) struct Workload {
    is_external: bool,
    namespace: String,
    labels: BTreeMap<String, String>,
    /// The names of TCP ports.
    named_ports: Vec<(String, u16)>,
}

/// Returns the ExternalWorkload of that name.
pub(super) fn external(objects: &[Value], namespace: &str, name: &str) -> Option<Workload> {
    let mut all = read::<ExternalWorkload>(objects, "ExternalWorkload").into_iter();
    let found = all.find(|workload| {
        workload.namespace().as_deref() == Some(namespace) && workload.name_any() == name
    })?;
    let ports = found.spec.ports.iter().flatten();
    let named = ports.filter(|port| port.is_tcp());
    Some(Workload {
        is_external: true,
        namespace: namespace.to_owned(),
        labels: found.metadata.labels.clone().unwrap_or_default(),
        named_ports: named
            .filter_map(|port| Some((port.name.clone()?, port.port)))
            .collect(),
    })
}

/// Returns a row for each authorization of the workloads' Servers and routes, and one for each
/// without authorization.
pub(super) fn rows(workloads: &[Workload], objects: &[Value]) -> Vec<Row> {
    let mut servers: Vec<Server> = read(objects, "Server");
    servers.retain(|server| workloads.iter().any(|workload| workload.is_of(server)));
    // Objects without creation time are the youngest.
    servers.sort_by_key(|server| {
        let created = server.creation_timestamp().map(|time| time.0);
        (created.is_none(), created, server.name_any())
    });
    let objects = Objects {
        policies: read(objects, "AuthorizationPolicy"),
        server_authorizations: read(objects, "ServerAuthorization"),
        routes: ["HTTPRoute", "GRPCRoute"]
            .iter()
            .flat_map(|kind| read(objects, kind))
            .collect(),
        all: objects,
    };
    let mut rows = Vec::new();
    for (at, server) in servers.iter().enumerate() {
        let base = Row {
            server: server.name_any(),
            port: server.spec.port.to_string(),
            route: None,
            route_kind: None,
            authorization_policy: None,
            server_authorization: None,
            access_policy: server.spec.access_policy.to_string(),
            without_effect: older(server, &servers[..at], workloads),
        };
        rows.extend(objects.rows_of_server(server, &base));
        for route in objects.routes.iter().filter(|route| route.names(server)) {
            rows.extend(objects.rows_of_route(route, server, &base));
        }
    }
    rows.sort();
    rows.dedup();
    rows
}

/// Names the Servers that apply to all ports of a Server instead of it.
fn older(server: &Server, older: &[Server], workloads: &[Workload]) -> Option<String> {
    let mut names = BTreeSet::new();
    for workload in workloads.iter().filter(|workload| workload.is_of(server)) {
        for port in workload.ports(server) {
            let first = older
                .iter()
                .find(|older| workload.is_of(older) && workload.ports(older).contains(&port));
            names.insert(first?.name_any());
        }
    }
    if names.is_empty() {
        return Some("no workload has the port".to_owned());
    }
    let names: Vec<String> = names.into_iter().collect();
    Some(format!("Server {} is older", names.join(", ")))
}

impl Workload {
    fn is_of(&self, server: &Server) -> bool {
        let selector = if self.is_external {
            &server.spec.external_workload_selector
        } else {
            &server.spec.pod_selector
        };
        let selector = selector.as_ref();
        server.namespace().as_deref() == Some(&self.namespace)
            && selector.is_some_and(|selector| select::matches(selector, Some(&self.labels)))
    }

    fn ports(&self, server: &Server) -> Vec<u16> {
        match &server.spec.port {
            PortRef::Number(port) => vec![*port],
            PortRef::Name(name) => {
                let of_name = self.named_ports.iter().filter(|(have, _)| have == name);
                of_name.map(|(_, port)| *port).collect()
            }
        }
    }
}

impl From<&MeshPod> for Workload {
    fn from(pod: &MeshPod) -> Self {
        Self {
            is_external: false,
            namespace: pod.namespace.clone(),
            labels: pod.labels.iter().cloned().collect(),
            named_ports: pod.named_ports.clone(),
        }
    }
}

impl Objects<'_> {
    fn rows_of_server(&self, server: &Server, base: &Row) -> Vec<Row> {
        let mut rows = self.rows_of_policies(server.namespace(), base, |policy| {
            let target = &policy.spec.target_ref;
            target.targets::<Namespace>()
                || target.targets::<Server>() && target.name == server.name_any()
        });
        let selecting = self
            .server_authorizations
            .iter()
            .filter(|authorization| authorization.selects(server));
        rows.extend(selecting.map(|authorization| Row {
            server_authorization: Some(authorization.name_any()),
            ..base.clone()
        }));
        if rows.is_empty() {
            rows.push(base.clone());
        }
        rows
    }

    fn rows_of_route(&self, route: &Route, server: &Server, base: &Row) -> Vec<Row> {
        let base = Row {
            route: Some(route.metadata.name.clone()),
            route_kind: Some(format!("{}.{}", route.kind, route.group()).to_lowercase()),
            without_effect: base
                .without_effect
                .clone()
                .or_else(|| route.without_effect(server)),
            ..base.clone()
        };
        let rows = self.rows_of_policies(server.namespace(), &base, |policy| {
            let target = &policy.spec.target_ref;
            let group = target.group.as_deref().unwrap_or_default();
            group.eq_ignore_ascii_case(route.group())
                && target.kind.eq_ignore_ascii_case(&route.kind)
                && target.name == route.metadata.name
        });
        if rows.is_empty() { vec![base] } else { rows }
    }

    fn rows_of_policies(
        &self,
        namespace: Option<String>,
        base: &Row,
        applies: impl Fn(&AuthorizationPolicy) -> bool,
    ) -> Vec<Row> {
        let policies = self
            .policies
            .iter()
            .filter(|policy| policy.namespace() == namespace && applies(policy));
        policies
            .map(|policy| Row {
                authorization_policy: Some(policy.name_any()),
                without_effect: base
                    .without_effect
                    .clone()
                    .or_else(|| self.missing_reference(policy)),
                ..base.clone()
            })
            .collect()
    }

    /// A policy with a missing reference authorizes no client. ServiceAccounts need not exist.
    fn missing_reference(&self, policy: &AuthorizationPolicy) -> Option<String> {
        let own = policy.namespace().unwrap_or_default();
        let mut required = policy.spec.required_authentication_refs.iter();
        let missing = required.find(|reference| {
            let namespace = reference.namespace.as_deref().unwrap_or(&own);
            let is_it = |object: &Value| {
                let kind = object["kind"].as_str().unwrap_or_default();
                kind.eq_ignore_ascii_case(&reference.kind)
                    && object["metadata"]["namespace"] == namespace
                    && object["metadata"]["name"] == reference.name.as_str()
            };
            !reference.targets::<ServiceAccount>() && !self.all.iter().any(is_it)
        })?;
        Some(format!("{} {} does not exist", missing.kind, missing.name))
    }
}

impl Route {
    fn group(&self) -> &str {
        self.api_version.split('/').next().unwrap_or_default()
    }

    /// Returns whether a parent of the route is meant to be the Server.
    fn names(&self, server: &Server) -> bool {
        server.namespace().as_deref() == Some(&self.metadata.namespace)
            && self
                .servers()
                .any(|parent| parent.name == server.name_any())
    }

    fn servers(&self) -> impl Iterator<Item = &Parent> {
        let parents = self.spec.parent_refs.iter();
        parents.filter(|parent| parent.kind.eq_ignore_ascii_case("Server"))
    }

    fn without_effect(&self, server: &Server) -> Option<String> {
        let is_elsewhere = |namespace: &String| *namespace != self.metadata.namespace;
        let wrong = self.servers().find_map(|parent| {
            if parent.port.is_some() {
                Some("port")
            } else if parent.section_name.is_some() {
                Some("sectionName")
            } else if parent.namespace.as_ref().is_some_and(is_elsewhere) {
                Some("another namespace")
            } else {
                None
            }
        });
        if let Some(wrong) = wrong {
            return Some(format!("a parent Server is referenced with {wrong}"));
        }
        let protocol = server.spec.proxy_protocol;
        let fits = match protocol {
            ProxyProtocol::Unknown | ProxyProtocol::Http1 | ProxyProtocol::Http2 => {
                self.kind == "HTTPRoute"
            }
            ProxyProtocol::Grpc => self.kind == "GRPCRoute",
            ProxyProtocol::Opaque | ProxyProtocol::Tls => false,
        };
        let name = serde_json::to_value(protocol).unwrap_or_default();
        let name = name.as_str().unwrap_or_default();
        (!fits).then(|| format!("a Server with proxyProtocol {name} has no {}s", self.kind))
    }
}

/// Returns the valid objects of a kind; the check `policy-readable` reports the others.
fn read<T: DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<T> {
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .filter_map(|object| serde_json::from_value(object.clone()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTS: &str = r#"
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: web, namespace: shop, labels: {tier: front}},
   spec: {podSelector: {matchLabels: {app: web}}, port: 8080, accessPolicy: deny}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: admin, namespace: shop},
   spec: {podSelector: {matchLabels: {app: web}}, port: admin}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: grpc, namespace: shop},
   spec: {podSelector: {matchLabels: {app: web}}, port: 9090, proxyProtocol: gRPC, accessPolicy: audit}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: web-2, namespace: shop},
   spec: {podSelector: {}, port: http}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: db, namespace: shop},
   spec: {podSelector: {matchLabels: {app: db}}, port: 5432}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: HTTPRoute, metadata: {name: get, namespace: shop},
   spec: {parentRefs: [{group: policy.linkerd.io, kind: Server, name: web}]}}
- {apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: get, namespace: shop},
   spec: {parentRefs: [{group: policy.linkerd.io, kind: Server, name: web}, {group: policy.linkerd.io, kind: Server, name: grpc}]}}
- {apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: put, namespace: shop},
   spec: {parentRefs: [{group: policy.linkerd.io, kind: Server, name: web, port: 8080}]}}
- {apiVersion: gateway.networking.k8s.io/v1, kind: GRPCRoute, metadata: {name: cart, namespace: shop},
   spec: {parentRefs: [{group: policy.linkerd.io, kind: Server, name: grpc}]}}
- {apiVersion: policy.linkerd.io/v1alpha1, kind: AuthorizationPolicy, metadata: {name: clients, namespace: shop},
   spec: {targetRef: {group: policy.linkerd.io, kind: HTTPRoute, name: get}, requiredAuthenticationRefs: []}}
- {apiVersion: policy.linkerd.io/v1alpha1, kind: AuthorizationPolicy, metadata: {name: carts, namespace: shop},
   spec: {targetRef: {group: gateway.networking.k8s.io, kind: GRPCRoute, name: cart}, requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: gone}]}}
- {apiVersion: policy.linkerd.io/v1alpha1, kind: AuthorizationPolicy, metadata: {name: operators, namespace: shop},
   spec: {targetRef: {group: policy.linkerd.io, kind: Server, name: web}, requiredAuthenticationRefs: []}}
- {apiVersion: policy.linkerd.io/v1alpha1, kind: AuthorizationPolicy, metadata: {name: operators, namespace: other},
   spec: {targetRef: {kind: Namespace, name: other}, requiredAuthenticationRefs: []}}
- {apiVersion: policy.linkerd.io/v1beta1, kind: ServerAuthorization, metadata: {name: old, namespace: shop},
   spec: {server: {name: admin}, client: {unauthenticated: true}}}
- {apiVersion: policy.linkerd.io/v1beta1, kind: ServerAuthorization, metadata: {name: front, namespace: shop},
   spec: {server: {selector: {matchLabels: {tier: front}}}, client: {unauthenticated: true}}}
"#;

    const POD: &str = "
metadata: {name: web-0, namespace: shop, labels: {app: web}}
spec:
  containers: [{name: web, ports: [{name: http, containerPort: 8080}, {name: admin, containerPort: 8081}]}]
";

    #[test]
    fn every_way_into_a_workload_and_what_has_no_effect() {
        let pod = MeshPod::new(&serde_norway::from_str(POD).unwrap(), &[]);
        assert_eq!(
            table(&Workload::from(&pod), OBJECTS),
            [
                "admin admin - - - old deny -",
                "grpc 9090 - - - - audit -",
                "grpc 9090 cart grpcroute.gateway carts - audit MeshTLSAuthentication gone does not exist",
                "grpc 9090 get httproute.gateway - - audit a Server with proxyProtocol gRPC has no HTTPRoutes",
                "web 8080 - - - front deny -",
                "web 8080 - - operators - deny -",
                "web 8080 get httproute.gateway - - deny -",
                "web 8080 get httproute.policy.linkerd.io clients - deny -",
                "web 8080 put httproute.gateway - - deny a parent Server is referenced with port",
                "web-2 http - - - - deny Server web is older",
            ]
        );
    }

    #[test]
    fn external_workload_has_the_servers_that_select_it() {
        let objects = r#"
- {apiVersion: workload.linkerd.io/v1beta1, kind: ExternalWorkload, metadata: {name: vm, namespace: shop, labels: {app: web}},
   spec: {meshTLS: {identity: vm, serverName: vm}, ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: pods, namespace: shop},
   spec: {podSelector: {matchLabels: {app: web}}, port: http}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: vms, namespace: shop},
   spec: {externalWorkloadSelector: {matchLabels: {app: web}}, port: http}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: vms-80, namespace: shop},
   spec: {externalWorkloadSelector: {}, port: 80}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: vms-dns, namespace: shop},
   spec: {externalWorkloadSelector: {}, port: dns}}
- {apiVersion: policy.linkerd.io/v1beta1, kind: ServerAuthorization, metadata: {name: all, namespace: shop},
   spec: {server: {name: vms}, client: {unauthenticated: true}}}
"#;
        let values: Vec<Value> = serde_norway::from_str(objects).unwrap();
        assert!(external(&values, "other", "vm").is_none());
        let vm = external(&values, "shop", "vm").unwrap();
        assert_eq!(
            table(&vm, objects),
            [
                "vms http - - - all deny -",
                "vms-80 80 - - - - deny Server vms is older",
                "vms-dns dns - - - - deny no workload has the port",
            ]
        );
    }

    fn table(workload: &Workload, objects: &str) -> Vec<String> {
        let objects: Vec<Value> = serde_norway::from_str(objects).unwrap();
        rows(std::slice::from_ref(workload), &objects)
            .iter()
            .map(|row| {
                let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
                let kind = or(&row.route_kind).replace("gateway.networking.k8s.io", "gateway");
                format!(
                    "{} {} {} {kind} {} {} {} {}",
                    row.server,
                    row.port,
                    or(&row.route),
                    or(&row.authorization_policy),
                    or(&row.server_authorization),
                    row.access_policy,
                    or(&row.without_effect)
                )
            })
            .collect()
    }
}
