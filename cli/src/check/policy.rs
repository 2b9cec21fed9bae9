//! Policies: whether each is valid, refers to existing objects and selects pods. A policy without
//! effect protects nothing. Most rules come from `meshctl analyze` ([`super::analysis`]).

pub(super) mod ip_families;
mod probes;

use mesh_core::policy::inbound::DefaultPolicy;
use mesh_objects::model::{Name, RouteId, Server};
use mesh_objects::policy::attachment::RouteParents;

use super::framework::{Category, Check, CheckResult, Finding, Outcome};
use super::selected::{routes_of, selected, servers};
use super::{analysis, data_plane};
use crate::facts::{Environment, Facts};

pub(super) const CATEGORY: Category = Category {
    name: "linkerd-policy",
    applies: |facts| facts.environment == Environment::Cluster && (data_plane::APPLIES)(facts),
    checks: &[
        Check::new(
            "policy-readable",
            "all policies are valid",
            "kubectl -n NAMESPACE edit KIND NAME; until then the controller uses the last valid version",
            |facts| analysis::INVALID.fail(facts),
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-references",
            "the objects that policies refer to exist",
            "kubectl -n NAMESPACE get server,meshtlsauthentication,networkauthentication,httproute; correct the name",
            |facts| analysis::REFERENCES.fail(facts),
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-servers",
            "every Server selects a workload",
            "kubectl -n NAMESPACE get pods,externalworkloads --show-labels; correct the Server's selector",
            |facts| analysis::SERVERS.warn(facts),
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-authorizations",
            "every Server allows some client",
            "meshctl check explain policy-authorizations has an AuthorizationPolicy as a template",
            authorizations,
        )
        .explained_by(&[&["l5d-existence-crd", "policy-readable", "policy-references"]]),
        Check::new(
            "policy-server-ports",
            "no two Servers select the same port",
            "narrow the selector of one, or delete it",
            |facts| analysis::SERVER_PORTS.warn(facts),
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-skipped-ports",
            "no policy applies to a port that bypasses the proxy",
            "remove the port from config.linkerd.io/skip-inbound-ports or skip-outbound-ports",
            |facts| analysis::SKIPPED_PORTS.warn_by_values(facts),
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-default-deny",
            "no Service leads to a port that denies every client by default",
            "create a Server for the port and an AuthorizationPolicy, or change config.linkerd.io/default-inbound-policy",
            |facts| analysis::DEFAULT_DENY.warn_by_values(facts),
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-ip-families",
            "every policy applies to IPv6 too",
            "helm upgrade with disableIPv6=false or refuseIPv6=true, then restart the workloads",
            ip_families::bypassed,
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-probes",
            "routes of Servers let the kubelet's probes through",
            "add a rule for the path of the probe to the route",
            probes::unmatched,
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-identities",
            "policies name identities that the mesh issues",
            "correct the identity",
            |facts| analysis::IDENTITIES.warn_by_values(facts),
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-accounts",
            "the ServiceAccounts that policies name exist and have meshed pods",
            "correct name and namespace of the ServiceAccount",
            |facts| analysis::ACCOUNTS.warn(facts),
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-effects",
            "every policy and route has an effect",
            "meshctl analyze -A names the object that replaces it",
            |facts| analysis::EFFECTS.warn(facts),
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "request-timeouts",
            "no attempt of a request may take longer than the request",
            "shorten the limit of the attempt, or lengthen the request's",
            |facts| analysis::TIMEOUTS.warn(facts),
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "service-ports",
            "Services lead to pods that declare their ports",
            "kubectl -n NAMESPACE describe service NAME; correct its selector or targetPort",
            |facts| analysis::SERVICES.warn(facts),
        ),
    ],
};

/// Two API groups have a kind HTTPRoute.
fn edit(group: &str, kind: &str, Name { namespace, name }: &Name) -> String {
    let kind = kind.to_ascii_lowercase();
    format!("kubectl -n {namespace} edit {kind}.{group} {name}")
}

fn title(server: &Server) -> String {
    format!("Server {}", server.name)
}

/// Finds Servers that deny every request: their accessPolicy is deny, and neither an
/// AuthorizationPolicy that clients can satisfy nor a ServerAuthorization applies.
fn authorizations(facts: &Facts) -> CheckResult {
    let store = facts.store()?;
    let mut wrong = Vec::new();
    for server in servers(facts)? {
        let workloads = selected(facts, server)?;
        let Some(first) = workloads.first() else {
            continue;
        };
        if server.access != DefaultPolicy::Deny {
            continue;
        }
        let routes: Vec<RouteId> = routes_of(store, server).map(RouteParents::id).collect();
        let namespace = &server.name.namespace;
        let allowed = store.authorization_policies_in(namespace).any(|policy| {
            policy.authentications(store).is_ok()
                && (policy.is_for_server(server)
                    || routes.iter().any(|route| policy.is_for_route(route)))
        });
        let selected = store
            .server_authorizations_in(namespace)
            .any(|authorization| authorization.is_for_server(server));
        if allowed || selected {
            continue;
        }
        let Name { namespace, name } = &server.name;
        let others = match workloads.len() {
            1 => String::new(),
            more => format!(" and {}", first.more(more - 1)),
        };
        let finding = Finding::new(format!(
            "{} denies every request to port {} of {}{others}: its accessPolicy is deny, and neither an AuthorizationPolicy nor a ServerAuthorization applies to it",
            title(server),
            server.port,
            first.title(),
        ));
        wrong.push(finding.with_fix(format!(
            "meshctl check explain policy-authorizations has an AuthorizationPolicy for it; to allow all meshed clients: kubectl -n {namespace} patch server {name} --type=merge -p '{{\"spec\": {{\"accessPolicy\": \"all-authenticated\"}}}}'"
        )));
    }
    Ok(Outcome::warn_if(wrong, ""))
}
