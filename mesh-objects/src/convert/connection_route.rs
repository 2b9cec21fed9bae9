//! TLSRoutes and TCPRoutes.

use mesh_k8s::kinds::{self, ConnectionRule, ObjectMeta, httproutes};

use super::backend::backend_ref;
use super::route::{ParentFields, host_match, parent_ref, weight};
use super::{created, name};
use crate::model::{BackendRule, ConnectionRoute, Kind, ParentRef, RouteId, Rule};

pub(crate) fn gateway_tls_route(route: &kinds::TlsRoute) -> ConnectionRoute {
    let spec = &route.spec;
    let hosts = spec.hostnames.iter().flatten();
    ConnectionRoute {
        hosts: hosts.map(|host| host_match(host)).collect(),
        ..connection_route(
            Kind::GatewayTlsRoute,
            &route.metadata,
            &spec.parent_refs,
            &spec.rules,
        )
    }
}

pub(crate) fn gateway_tcp_route(route: &kinds::TcpRoute) -> ConnectionRoute {
    let spec = &route.spec;
    connection_route(
        Kind::GatewayTcpRoute,
        &route.metadata,
        &spec.parent_refs,
        &spec.rules,
    )
}

fn connection_route(
    kind: Kind,
    meta: &ObjectMeta,
    parents: &Option<Vec<httproutes::HttpRouteParentRefs>>,
    rules: &Option<Vec<ConnectionRule>>,
) -> ConnectionRoute {
    let own = name(meta);
    let parent = |parent: &httproutes::HttpRouteParentRefs| -> ParentRef {
        let fields = ParentFields {
            group: parent.group.as_deref(),
            kind: parent.kind.as_deref(),
            namespace: parent.namespace.as_deref(),
            name: &parent.name,
            port: parent.port,
            section: parent.section_name.as_deref(),
        };
        parent_ref(&own, fields)
    };
    ConnectionRoute {
        created: created(meta),
        parents: parents.iter().flatten().map(parent).collect(),
        hosts: Vec::new(),
        rules: rules.iter().flatten().map(rule).collect(),
        timeouts: None,
        retries: None,
        id: RouteId { kind, name: own },
    }
}

fn rule(rule: &ConnectionRule) -> Rule<()> {
    let backend = |backend: &kinds::TlsRouteRulesBackendRefs| BackendRule {
        backend: backend_ref!(backend),
        weight: weight(backend.weight),
        filters: Ok(Vec::new()),
    };
    let backends = rule.backend_refs.as_ref();
    Rule {
        matches: Vec::new(),
        filters: Vec::new(),
        mirrors: Vec::new(),
        backends: backends.map(|backends| backends.iter().map(backend).collect()),
        request_timeout: None,
        backend_timeout: None,
    }
}
