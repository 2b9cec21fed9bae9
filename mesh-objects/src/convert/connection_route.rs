//! TLSRoutes and TCPRoutes.

use mesh_k8s::kinds::{self, ConnectionRule, ObjectMeta, httproutes};

use super::backend::backend_ref;
use super::parent::parent_ref;
use super::route::{host_match, weight};
use super::{created, name};
use crate::model::{BackendRule, ConnectionRoute, Kind, RouteId, Rule};

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
    let parents = parents.iter().flatten();
    ConnectionRoute {
        created: created(meta),
        parents: parents.map(|parent| parent_ref!(&own, parent)).collect(),
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
