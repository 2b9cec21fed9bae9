//! Computes the rows of `meshctl authz` from pods and policy objects.
//! [`mesh_objects::policy`] decides; docs/reference/access-policy.md has the rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use mesh_objects::model::{
    AuthenticationRef, AuthorizationPolicy, ExternalWorkload, Labels, Name, Server,
};
use mesh_objects::policy::attachment::{
    MistakenField, Refusal, RouteParents, attach_to_server, grpc_route_of_server,
};
use mesh_objects::policy::inbound::routes_in;
use mesh_objects::policy::server::{self, server_of_port};
use mesh_objects::store::Store;
use serde::Serialize;

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

/// A pod or an ExternalWorkload.
pub(super) enum Workload {
    Pod {
        namespace: String,
        labels: Labels,
        named_ports: Vec<(Arc<str>, u16)>,
    },
    External(Box<ExternalWorkload>),
}

/// Returns the ExternalWorkload of that name.
pub(super) fn external(store: &Store, namespace: &str, name: &str) -> Option<Workload> {
    let workload = store.external_workload(&Name::new(namespace, name))?;
    Some(Workload::External(Box::new(workload.clone())))
}

/// Returns a row for each authorization of the workloads' Servers and routes, and one for each
/// without authorization.
pub(super) fn rows(workloads: &[Workload], store: &Store) -> Vec<Row> {
    let namespaces: BTreeSet<Arc<str>> = workloads
        .iter()
        .map(|workload| workload.view().namespace.into())
        .collect();
    let is_selected = |server: &&Server| {
        let mut all = workloads.iter();
        all.any(|workload| server.selects_workload(workload.view()))
    };
    let mut rows = Vec::new();
    for namespace in &namespaces {
        for server in store.servers_in(namespace).filter(is_selected) {
            let base = Row {
                server: server.name.name.to_string(),
                port: server.port.to_string(),
                route: None,
                route_kind: None,
                authorization_policy: None,
                server_authorization: None,
                access_policy: server.access.to_string(),
                without_effect: older(store, server, workloads),
            };
            rows.extend(rows_of_server(store, server, &base));
            let routes = || routes_in(store, namespace);
            let grpc = grpc_route_of_server(server, routes());
            for route in routes() {
                if let Some(attached) = attached(route, server, grpc) {
                    rows.extend(rows_of_route(store, route, attached, &base));
                }
            }
        }
    }
    rows.sort();
    rows.dedup();
    rows
}

impl Workload {
    fn view(&self) -> server::Workload<'_> {
        match self {
            Self::Pod {
                namespace,
                labels,
                named_ports,
            } => server::Workload::pod(namespace, labels, named_ports),
            Self::External(workload) => (&**workload).into(),
        }
    }
}

impl From<&MeshPod> for Workload {
    fn from(pod: &MeshPod) -> Self {
        let ports = pod.named_ports.iter();
        Self::Pod {
            namespace: pod.namespace.clone(),
            labels: pod.labels.iter().cloned().collect(),
            named_ports: ports
                .map(|(name, port)| (name.as_str().into(), *port))
                .collect(),
        }
    }
}

/// Names the Servers that apply in place of a Server, if others apply to all its ports.
fn older(store: &Store, server: &Server, workloads: &[Workload]) -> Option<String> {
    let mut names = BTreeSet::new();
    for workload in workloads.iter().map(Workload::view) {
        for port in server.ports_of(workload) {
            let servers = store.servers_in(&server.name.namespace);
            let first = server_of_port(servers, workload, port)?;
            if first.name == server.name {
                return None;
            }
            names.insert(&*first.name.name);
        }
    }
    if names.is_empty() {
        return Some("no workload has the port".to_owned());
    }
    let names: Vec<&str> = names.into_iter().collect();
    Some(format!("Server {} is older", names.join(", ")))
}

fn rows_of_server(store: &Store, server: &Server, base: &Row) -> Vec<Row> {
    let namespace = &server.name.namespace;
    let is_for = |policy: &AuthorizationPolicy| policy.is_for_server(server);
    let mut rows = rows_of_policies(store, namespace, base, is_for);
    let selecting = store
        .server_authorizations_in(namespace)
        .filter(|authorization| authorization.is_for_server(server));
    rows.extend(selecting.map(|authorization| Row {
        server_authorization: Some(authorization.name.name.to_string()),
        ..base.clone()
    }));
    if rows.is_empty() {
        rows.push(base.clone());
    }
    rows
}

/// Returns the rows of a route that references a Server, with or without effect.
fn rows_of_route(
    store: &Store,
    route: RouteParents<'_>,
    attached: Result<(), Refusal>,
    base: &Row,
) -> Vec<Row> {
    let kind = format!("{}.{}", route.kind.as_str(), route.kind.group());
    let base = Row {
        route: Some(route.name.name.to_string()),
        route_kind: Some(kind.to_lowercase()),
        without_effect: base
            .without_effect
            .clone()
            .or_else(|| attached.err().map(|refusal| without_effect(&refusal))),
        ..base.clone()
    };
    let id = route.id();
    let is_for = |policy: &AuthorizationPolicy| policy.is_for_route(&id);
    let rows = rows_of_policies(store, &route.name.namespace, &base, is_for);
    if rows.is_empty() { vec![base] } else { rows }
}

fn rows_of_policies(
    store: &Store,
    namespace: &Arc<str>,
    base: &Row,
    applies: impl Fn(&AuthorizationPolicy) -> bool,
) -> Vec<Row> {
    let policies = store.authorization_policies_in(namespace);
    policies
        .filter(|policy| applies(policy))
        .map(|policy| Row {
            authorization_policy: Some(policy.name.name.to_string()),
            without_effect: base
                .without_effect
                .clone()
                .or_else(|| missing_reference(store, policy)),
            ..base.clone()
        })
        .collect()
}

fn missing_reference(store: &Store, policy: &AuthorizationPolicy) -> Option<String> {
    let (kind, name) = match policy.authentications(store).err()? {
        AuthenticationRef::MeshTls(name) => ("MeshTLSAuthentication", name),
        AuthenticationRef::Network(name) => ("NetworkAuthentication", name),
        AuthenticationRef::ServiceAccount(name) => ("ServiceAccount", name),
    };
    Some(format!("{kind} {} does not exist", name.name))
}

/// Returns whether the Server accepts the route; `None` if the route does not reference it.
fn attached(
    route: RouteParents<'_>,
    server: &Server,
    grpc: Option<&Name>,
) -> Option<Result<(), Refusal>> {
    let mut results = route
        .references_to(server)
        .map(|reference| attach_to_server(route, reference, Some(server), grpc));
    let first = results.next()?;
    Some(if results.any(|it| it.is_ok()) {
        Ok(())
    } else {
        first
    })
}

/// Says why a route of a Server has no effect.
fn without_effect(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Mistake(mistake) | Refusal::OtherMistake(mistake) => {
            let wrong = match mistake.field {
                MistakenField::Namespace => "another namespace",
                MistakenField::Port => "port",
                MistakenField::SectionName => "sectionName",
            };
            format!("a parent Server is referenced with {wrong}")
        }
        Refusal::Protocol {
            protocol, route, ..
        } => format!("a Server with proxyProtocol {protocol} has no {route}s"),
        Refusal::Conflict { kind, route, .. } => {
            format!("{kind} {} takes precedence", route.name)
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::Objects;

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
- {apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: two, namespace: shop},
   spec: {parentRefs: [{group: policy.linkerd.io, kind: Server, name: web},
     {group: policy.linkerd.io, kind: Server, name: gone, port: 8080}]}}
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
                "grpc 9090 get httproute.gateway - - audit GRPCRoute cart takes precedence",
                "web 8080 - - - front deny -",
                "web 8080 - - operators - deny -",
                "web 8080 get httproute.gateway - - deny -",
                "web 8080 get httproute.policy.linkerd.io clients - deny -",
                "web 8080 put httproute.gateway - - deny a parent Server is referenced with port",
                "web 8080 two httproute.gateway - - deny a parent Server is referenced with port",
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
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: vms, namespace: shop, creationTimestamp: '2026-01-02T00:00:00Z'},
   spec: {externalWorkloadSelector: {matchLabels: {app: web}}, port: http}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: vms-80, namespace: shop, creationTimestamp: '2026-01-01T00:00:00Z'},
   spec: {externalWorkloadSelector: {}, port: 80}}
- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: vms-dns, namespace: shop},
   spec: {externalWorkloadSelector: {}, port: dns}}
- {apiVersion: policy.linkerd.io/v1beta1, kind: ServerAuthorization, metadata: {name: all, namespace: shop},
   spec: {server: {name: vms}, client: {unauthenticated: true}}}
"#;
        let read = read(objects);
        assert!(external(read.store(), "other", "vm").is_none());
        let vm = external(read.store(), "shop", "vm").unwrap();
        assert_eq!(
            table(&vm, objects),
            [
                "vms http - - - all deny Server vms-80 is older",
                "vms-80 80 - - - - deny -",
                "vms-dns dns - - - - deny no workload has the port",
            ]
        );
    }

    fn read(objects: &str) -> Objects {
        let objects: Vec<serde_json::Value> = serde_norway::from_str(objects).unwrap();
        objects.into_iter().collect()
    }

    fn table(workload: &Workload, objects: &str) -> Vec<String> {
        rows(std::slice::from_ref(workload), read(objects).store())
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
