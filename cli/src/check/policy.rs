//! Policies: whether each is valid, refers to existing objects and selects pods. A policy without
//! effect protects nothing.

pub(super) mod ip_families;
mod selected;

use std::collections::BTreeSet;

use mesh_core::policy::inbound::DefaultPolicy;
use mesh_k8s::crd::{
    AuthorizationPolicy, ExternalWorkload, HttpLocalRateLimitPolicy, Server, ServerAuthorization,
};
use mesh_k8s::kinds::{Namespace, ResourceExt, ServiceAccount};
use mesh_k8s::pod::ports;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::selected::{Selected, selected};
use super::facts::{Fact, fact_ref, full_name};
use super::{
    Category, Check, CheckResult, Environment, Facts, Finding, Outcome, count, data_plane, fix,
};

pub(super) const CATEGORY: Category = Category {
    name: "linkerd-policy",
    applies: |facts| facts.environment == Environment::Cluster && (data_plane::APPLIES)(facts),
    checks: &[
        Check::new(
            "policy-readable",
            "all policies are valid",
            "kubectl -n NAMESPACE edit KIND NAME; until then the controller uses the last valid version",
            readable,
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-references",
            "the objects that policies refer to exist",
            "kubectl -n NAMESPACE get server,meshtlsauthentication,networkauthentication,httproute; correct the name",
            references,
        )
        .explained_by(&[&["l5d-existence-crd"]]),
        Check::new(
            "policy-servers",
            "every Server selects a workload",
            "kubectl -n NAMESPACE get pods,externalworkloads --show-labels; correct the Server's selector",
            servers,
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
            server_ports,
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
            "policy-identities",
            "policies name identities that the mesh issues",
            "correct the identity",
            identities,
        )
        .explained_by(&[&["l5d-existence-crd"]]),
    ],
};

/// Returns the valid objects of a kind.
fn read<T: DeserializeOwned>(facts: &Facts, kind: &str) -> Fact<Vec<T>> {
    let all = of_kind(facts, kind)?;
    Ok(all
        .into_iter()
        .filter_map(|value| serde_json::from_value(value.clone()).ok())
        .collect())
}

fn of_kind<'a>(facts: &'a Facts, kind: &str) -> Fact<Vec<&'a Value>> {
    let all = fact_ref(&facts.objects.policies)?.iter();
    Ok(all
        .filter(|value| {
            value["kind"] == kind
                && facts
                    .scope
                    .contains(value["metadata"]["namespace"].as_str().unwrap_or_default())
        })
        .collect())
}

fn readable(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    let mut total = 0_usize;
    let mut inspect = |kind: &str, problem: fn(&Value) -> Option<String>| -> Fact<()> {
        for value in of_kind(facts, kind)? {
            total += 1;
            if let Some(problem) = problem(value) {
                let finding = Finding::new(format!("{}: {problem}", name(value)));
                wrong.push(finding.with_fix(edit(value)));
            }
        }
        Ok(())
    };
    inspect("Server", problem::<Server>)?;
    inspect("ServerAuthorization", problem::<ServerAuthorization>)?;
    inspect("AuthorizationPolicy", problem::<AuthorizationPolicy>)?;
    inspect(
        "MeshTLSAuthentication",
        problem::<mesh_k8s::crd::MeshTLSAuthentication>,
    )?;
    inspect(
        "NetworkAuthentication",
        problem::<mesh_k8s::crd::NetworkAuthentication>,
    )?;
    inspect(
        "HTTPLocalRateLimitPolicy",
        problem::<HttpLocalRateLimitPolicy>,
    )?;
    inspect("HTTPRoute", problem::<mesh_k8s::crd::PolicyHttpRoute>)?;
    Ok(Outcome::fail_if(wrong, count(total, "object", "objects")))
}

fn edit(value: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // Two API groups have a kind HTTPRoute.
    let group = text(&value["apiVersion"]);
    let group = group.split('/').next().unwrap_or_default();
    format!(
        "kubectl -n {} edit {}.{group} {}",
        text(&value["metadata"]["namespace"]),
        text(&value["kind"]).to_ascii_lowercase(),
        text(&value["metadata"]["name"])
    )
}

fn problem<T: DeserializeOwned>(value: &Value) -> Option<String> {
    serde_json::from_value::<T>(value.clone())
        .err()
        .map(|error| error.to_string())
}

fn name(value: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!(
        "{} {}/{}",
        text(&value["kind"]),
        text(&value["metadata"]["namespace"]),
        text(&value["metadata"]["name"])
    )
}

fn references(facts: &Facts) -> CheckResult {
    let there: BTreeSet<(String, String, String)> = fact_ref(&facts.objects.policies)?
        .iter()
        .map(|value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (
                text(&value["kind"]).to_ascii_lowercase(),
                text(&value["metadata"]["namespace"]),
                text(&value["metadata"]["name"]),
            )
        })
        .collect();
    let exists = |kind: &str, namespace: &str, name: &str| {
        let key = (
            kind.to_ascii_lowercase(),
            namespace.to_owned(),
            name.to_owned(),
        );
        there.contains(&key)
    };
    let mut wrong = Vec::new();
    for policy in read::<AuthorizationPolicy>(facts, "AuthorizationPolicy")? {
        let own = policy.namespace().unwrap_or_default();
        let title = format!("AuthorizationPolicy {own}/{}", policy.name_any());
        let edit = format!(
            "kubectl -n {own} edit authorizationpolicy {}, or create the object it refers to",
            policy.name_any()
        );
        let target = &policy.spec.target_ref;
        if target.targets::<Namespace>() {
            if target.name != own {
                let finding = Finding::new(format!(
                    "{title} targets namespace {}, but can only target its own",
                    target.name
                ));
                wrong.push(finding.with_fix(edit.as_str()));
            }
        } else if !exists(&target.kind, &own, &target.name) {
            let finding = Finding::new(format!(
                "{title} targets {} {}, which does not exist: it allows no request",
                target.kind, target.name
            ));
            wrong.push(finding.with_fix(edit.as_str()));
        }
        for reference in &policy.spec.required_authentication_refs {
            let namespace = reference.namespace.as_deref().unwrap_or(&own);
            // ServiceAccounts may be created later, together with their pods.
            if !reference.targets::<ServiceAccount>()
                && !exists(&reference.kind, namespace, &reference.name)
            {
                let finding = Finding::new(format!(
                    "{title} requires {} {namespace}/{}, which does not exist: no client satisfies it",
                    reference.kind, reference.name
                ));
                wrong.push(finding.with_fix(edit.as_str()));
            }
        }
    }
    for limit in read::<HttpLocalRateLimitPolicy>(facts, "HTTPLocalRateLimitPolicy")? {
        let own = limit.namespace().unwrap_or_default();
        let target = &limit.spec.target_ref;
        if !exists(&target.kind, &own, &target.name) {
            let finding = Finding::new(format!(
                "HTTPLocalRateLimitPolicy {own}/{} targets {} {}, which does not exist: it limits no request",
                limit.name_any(),
                target.kind,
                target.name
            ));
            wrong.push(finding.with_fix(format!(
                "kubectl -n {own} edit httplocalratelimitpolicy {}, or create the Server",
                limit.name_any()
            )));
        }
    }
    wrong.extend(routes_without_parent(facts, exists)?);
    Ok(Outcome::fail_if(wrong, ""))
}

/// Finds routes whose parent does not exist.
fn routes_without_parent(
    facts: &Facts,
    exists: impl Fn(&str, &str, &str) -> bool,
) -> Fact<Vec<Finding>> {
    let services = facts.objects.services.as_deref().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut wrong = Vec::new();
    for kind in ["HTTPRoute", "GRPCRoute"] {
        for route in of_kind(facts, kind)? {
            let own = text(&route["metadata"]["namespace"]);
            for parent in route["spec"]["parentRefs"].as_array().into_iter().flatten() {
                let namespace = match parent["namespace"].as_str() {
                    Some(namespace) => namespace.to_owned(),
                    None => own.clone(),
                };
                let target = text(&parent["name"]);
                let kind = text(&parent["kind"]);
                let there = match kind.as_str() {
                    "Server" => exists("server", &namespace, &target),
                    "Service" => services.iter().any(|service| {
                        service.name_any() == target
                            && service.namespace().as_deref() == Some(&namespace)
                    }),
                    // Other parents, such as Gateways, do not belong to the mesh.
                    _ => true,
                };
                if !there {
                    let finding = Finding::new(format!(
                        "{} has the parent {kind} {namespace}/{target}, which does not exist: it applies to no request",
                        name(route)
                    ));
                    wrong.push(finding.with_fix(edit(route)));
                }
            }
        }
    }
    Ok(wrong)
}

fn servers(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for server in read::<Server>(facts, "Server")? {
        let (namespace, name) = (server.namespace().unwrap_or_default(), server.name_any());
        let is_of_server = |workload: &Selected<'_>| workload.is_of(&server);
        let mut missing = |what: &str, field: &str, list: &str| {
            let finding = Finding::new(format!(
                "Server {namespace}/{name} (port {}) selects no {what}",
                server.spec.port
            ));
            wrong.push(finding.with_fix(format!(
                "compare its {field} with kubectl -n {namespace} get {list} --show-labels, and correct it: kubectl -n {namespace} edit server {name}"
            )));
        };
        if server.spec.pod_selector.is_some() {
            let mut pods = facts.live_pods()?.map(Selected::Pod);
            if !pods.any(|pod| is_of_server(&pod)) {
                missing("pod", "podSelector", "pods");
            }
        }
        if server.spec.external_workload_selector.is_some() {
            let external = read::<ExternalWorkload>(facts, "ExternalWorkload")?;
            let mut external = external.into_iter().map(Box::new).map(Selected::External);
            if !external.any(|workload| is_of_server(&workload)) {
                missing(
                    "ExternalWorkload",
                    "externalWorkloadSelector",
                    "externalworkloads",
                );
            }
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn title(server: &Server) -> String {
    format!(
        "Server {}/{}",
        server.namespace().unwrap_or_default(),
        server.name_any()
    )
}

/// Finds Servers that deny every request: their accessPolicy is deny, and neither an
/// AuthorizationPolicy nor a ServerAuthorization applies.
fn authorizations(facts: &Facts) -> CheckResult {
    let policies = read::<AuthorizationPolicy>(facts, "AuthorizationPolicy")?;
    let server_authorizations = read::<ServerAuthorization>(facts, "ServerAuthorization")?;
    let mut wrong = Vec::new();
    for server in read::<Server>(facts, "Server")? {
        let workloads = selected(facts, &server)?;
        let Some(first) = workloads.first() else {
            continue;
        };
        if server.spec.access_policy != DefaultPolicy::Deny {
            continue;
        }
        let routes = routes_of(facts, &server)?;
        let allowed = policies.iter().any(|policy| {
            let target = &policy.spec.target_ref;
            policy.namespace() == server.namespace()
                && (target.targets::<Namespace>()
                    || target.targets::<Server>() && target.name == server.name_any()
                    || routes.iter().any(|(kind, name)| {
                        target.kind.eq_ignore_ascii_case(kind) && target.name == *name
                    }))
        });
        let selected = server_authorizations
            .iter()
            .any(|authorization| authorization.selects(&server));
        if allowed || selected {
            continue;
        }
        let (namespace, name) = (server.namespace().unwrap_or_default(), server.name_any());
        let others = match workloads.len() {
            1 => String::new(),
            more => format!(" and {}", first.more(more - 1)),
        };
        let finding = Finding::new(format!(
            "{} denies every request to port {} of {}{others}: its accessPolicy is deny, and neither an AuthorizationPolicy nor a ServerAuthorization applies to it",
            title(&server),
            server.spec.port,
            first.title(),
        ));
        wrong.push(finding.with_fix(format!(
            "meshctl check explain policy-authorizations has an AuthorizationPolicy for it; to allow all meshed clients: kubectl -n {namespace} patch server {name} --type=merge -p '{{\"spec\": {{\"accessPolicy\": \"all-authenticated\"}}}}'"
        )));
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Returns kind and name of the routes whose parent is the Server.
fn routes_of(facts: &Facts, server: &Server) -> Fact<Vec<(&'static str, String)>> {
    let mut routes = Vec::new();
    for kind in ["HTTPRoute", "GRPCRoute"] {
        for route in of_kind(facts, kind)? {
            let own = server.namespace().unwrap_or_default();
            let parents = route["spec"]["parentRefs"].as_array();
            let is_parent = |parent: &Value| {
                parent["kind"] == "Server" && parent["name"] == server.name_any().as_str()
            };
            if route["metadata"]["namespace"] == own.as_str()
                && parents.is_some_and(|parents| parents.iter().any(is_parent))
            {
                let name = route["metadata"]["name"].as_str().unwrap_or_default();
                routes.push((kind, name.to_owned()));
            }
        }
    }
    Ok(routes)
}

/// Finds Servers that select the same port. The oldest applies; the others have no effect there.
fn server_ports(facts: &Facts) -> CheckResult {
    let mut servers = read::<Server>(facts, "Server")?;
    servers.sort_by_key(|server| {
        (
            server.creation_timestamp().map(|time| time.0),
            server.name_any(),
        )
    });
    let mut wrong = Vec::new();
    for (index, newer) in servers.iter().enumerate() {
        let workloads = selected(facts, newer)?;
        for older in &servers[..index] {
            let both = workloads.iter().find_map(|workload| {
                let of_older = workload.ports(older);
                let mut ports = workload.ports(newer).into_iter();
                let port = ports.find(|port| workload.is_of(older) && of_older.contains(port))?;
                Some((workload, port))
            });
            let Some((workload, port)) = both else {
                continue;
            };
            let finding = Finding::new(format!(
                "{} and {} both select port {port} of {}: only {}, the older one, applies there",
                title(older),
                title(newer),
                workload.title(),
                older.name_any()
            ));
            wrong.push(finding.with_fix(format!(
                "kubectl -n {0} delete server {1}, or kubectl -n {0} edit server {1} and narrow its selector",
                newer.namespace().unwrap_or_default(),
                newer.name_any()
            )));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Finds policies for ports that bypass the proxy, where policies have no effect.
fn skipped_ports(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for server in read::<Server>(facts, "Server")? {
        let workloads = selected(facts, &server)?;
        let around = workloads.iter().find_map(|workload| {
            let Selected::Pod(pod) = workload else {
                return None;
            };
            let skipped = ports::skip_inbound(pod);
            let mut numbers = workload.ports(&server).into_iter();
            let port = numbers.find(|port| skipped.contains(*port))?;
            Some((*pod, port))
        });
        let Some((pod, port)) = around else { continue };
        let finding = Finding::new(format!(
            "{} selects port {port} of {}, which bypasses the proxy ({}): the policy has no effect there",
            title(&server),
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
    let values = facts.values()?;
    let domain = values.trust_domain();
    let end = format!(".identity.{}.{domain}", facts.control_namespace);
    let mut wrong = Vec::new();
    let mesh_tls = of_kind(facts, "MeshTLSAuthentication")?.into_iter();
    let mesh_tls = mesh_tls.map(|object| (object, &object["spec"]["identities"]));
    let server = of_kind(facts, "ServerAuthorization")?.into_iter();
    let server = server.map(|it| (it, &it["spec"]["client"]["meshTLS"]["identities"]));
    for (object, identities) in mesh_tls.chain(server) {
        let listed = identities.as_array();
        let unknown = listed
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            // `*` and `*.namespace…` match a suffix.
            .filter(|identity| *identity != "*" && !identity.ends_with(&end));
        for identity in unknown {
            let finding = Finding::new(format!(
                "{} has the identity {identity:?}, which no client of this mesh has: its identities end in {end}",
                name(object)
            ));
            wrong.push(finding.with_fix(edit(object)));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}
