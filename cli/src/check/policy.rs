//! Policies: whether each is valid, refers to existing objects and selects pods. A policy without
//! effect protects nothing. Most rules come from `meshctl analyze` ([`super::analysis`]).

pub(super) mod ip_families;
mod probes;

use mesh_core::policy::inbound::DefaultPolicy;
use mesh_k8s::kinds::ResourceExt;
use mesh_objects::model::{Name, RouteId, Server};
use mesh_objects::policy::attachment::RouteParents;
use serde_json::Value;

use super::framework::{Category, Check, CheckResult, Finding, Outcome};
use super::selected::{Selected, routes_of, selected, servers};
use super::{analysis, data_plane, fix};
use crate::analyze::{Object, POLICY};
use crate::facts::{Environment, Facts, fact_ref, full_name};

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
            "remove the port from config.linkerd.io/skip-inbound-ports",
            skipped_ports,
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
            identities,
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
            let required = policy.authentications(|reference| store.authentication(reference));
            required.is_ok()
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

/// Finds policies for ports that bypass the proxy, where policies have no effect.
fn skipped_ports(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for server in servers(facts)? {
        let workloads = selected(facts, server)?;
        let around = workloads.iter().find_map(|workload| {
            let Selected::Pod(pod, record) = *workload else {
                return None;
            };
            let mut numbers = server.ports_of(record.into()).into_iter();
            let port = numbers.find(|port| record.skip_inbound_ports.contains(*port))?;
            Some((pod, port))
        });
        let Some((pod, port)) = around else { continue };
        let finding = Finding::new(format!(
            "{} selects port {port} of {}, which bypasses the proxy ({}): the policy has no effect there",
            title(server),
            full_name(pod),
            mesh_core::annotation::SKIP_INBOUND_PORTS
        ));
        wrong.push(finding.with_fix(match fix::workload(pod) {
            Some(workload) => format!(
                "kubectl -n {} edit {workload}: remove port {port} from {} in its template",
                pod.namespace().unwrap_or_default(),
                mesh_core::annotation::SKIP_INBOUND_PORTS
            ),
            None => fix::restart_command(pod),
        }));
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Finds identities that no client has, because they do not end in the control plane's namespace
/// and the trust domain.
fn identities(facts: &Facts) -> CheckResult {
    let domain = facts.values()?.trust_domain();
    fact_ref(&facts.objects.policies)?;
    let end = format!(".identity.{}.{domain}", facts.control_namespace);
    let mut wrong = Vec::new();
    let of_kind = |kind| facts.traffic().of(POLICY, kind);
    let mesh_tls = of_kind("MeshTLSAuthentication");
    let mesh_tls = mesh_tls.map(|object| (object, &object.json["spec"]["identities"]));
    let server = of_kind("ServerAuthorization");
    let server = server.map(|it| (it, &it.json["spec"]["client"]["meshTLS"]["identities"]));
    let in_scope = |object: &Object| facts.scope.contains(&object.namespace);
    for (object, identities) in mesh_tls.chain(server).filter(|(it, _)| in_scope(it)) {
        let name = Name::new(&object.namespace, &object.name);
        let listed = identities.as_array();
        let unknown = listed
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            // `*` and `*.namespace…` match a suffix.
            .filter(|identity| *identity != "*" && !identity.ends_with(&end));
        for identity in unknown {
            let finding = Finding::new(format!(
                "{} {name} has the identity {identity:?}, which no client of this mesh has: its identities end in {end}",
                object.kind
            ));
            wrong.push(finding.with_fix(edit(POLICY, &object.kind, &name)));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}
