//! Policies: can each be read, does what it names exist, and does it choose anything. An object
//! that says nothing protects nothing.

use std::collections::BTreeSet;

use mesh_core::policy::inbound::DefaultPolicy;
use mesh_k8s::{
    crd::{AuthorizationPolicy, PortRef, Server},
    kinds::{Namespace, Pod, ResourceExt, ServiceAccount},
    pod::ports,
    select,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Category, Check, Ends, Facts, Line, On, Outcome, Place, Verdict, count, data_plane,
    facts::{Seen, full_name, see},
    repair,
};

pub(super) const CATEGORY: Category = Category {
    name: "linkerd-policy",
    applies: |facts| facts.place == Place::Cluster && (data_plane::APPLIES)(facts),
    checks: &[
        Check {
            anchor: "policy-readable",
            description: "every policy can be read",
            advice: "kubectl -n NAMESPACE edit KIND NAME; until then the controller keeps the last version it could read",
            explained_by: &[&["l5d-existence-crd"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: readable,
        },
        Check {
            anchor: "policy-references",
            description: "what policies name exists",
            advice: "kubectl -n NAMESPACE get server,meshtlsauthentication,networkauthentication,httproute; correct the name",
            explained_by: &[&["l5d-existence-crd"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: references,
        },
        Check {
            anchor: "policy-servers",
            description: "every Server chooses a pod",
            advice: "kubectl -n NAMESPACE get pods --show-labels; correct the Server's podSelector",
            explained_by: &[&["l5d-existence-crd"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: servers,
        },
        Check {
            anchor: "policy-authorizations",
            description: "every Server lets some client in",
            advice: "meshctl check explain policy-authorizations has an AuthorizationPolicy to start from",
            explained_by: &[&["l5d-existence-crd", "policy-readable", "policy-references"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: authorizations,
        },
        Check {
            anchor: "policy-server-ports",
            description: "no two Servers select the same port",
            advice: "narrow the podSelector of one, or delete it",
            explained_by: &[&["l5d-existence-crd"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: server_ports,
        },
        Check {
            anchor: "policy-skipped-ports",
            description: "no policy is for a port that goes around the proxy",
            advice: "take the port out of config.linkerd.io/skip-inbound-ports",
            explained_by: &[&["l5d-existence-crd"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: skipped_ports,
        },
        Check {
            anchor: "policy-identities",
            description: "policies name identities that the mesh gives out",
            advice: "correct the identity",
            explained_by: &[&["l5d-existence-crd"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: identities,
        },
    ],
};

/// The objects of a kind that can be read.
fn read<T: DeserializeOwned>(facts: &Facts, kind: &str) -> Seen<Vec<T>> {
    let all = of_kind(facts, kind)?;
    Ok(all
        .into_iter()
        .filter_map(|value| serde_json::from_value(value.clone()).ok())
        .collect())
}

fn of_kind<'a>(facts: &'a Facts, kind: &str) -> Seen<Vec<&'a Value>> {
    let all = see(&facts.objects.policies)?.iter();
    Ok(all
        .filter(|value| {
            value["kind"] == kind
                && facts
                    .scope
                    .contains(value["metadata"]["namespace"].as_str().unwrap_or_default())
        })
        .collect())
}

fn readable(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    let mut seen = 0_usize;
    let mut judge = |kind: &str, problem: fn(&Value) -> Option<String>| -> Seen<()> {
        for value in of_kind(facts, kind)? {
            seen += 1;
            if let Some(problem) = problem(value) {
                let line = Line::new(format!("{}: {problem}", name(value)));
                wrong.push(line.fixed_by(edit(value)));
            }
        }
        Ok(())
    };
    judge("Server", problem::<Server>)?;
    judge("AuthorizationPolicy", problem::<AuthorizationPolicy>)?;
    judge(
        "MeshTLSAuthentication",
        problem::<mesh_k8s::crd::MeshTLSAuthentication>,
    )?;
    judge(
        "NetworkAuthentication",
        problem::<mesh_k8s::crd::NetworkAuthentication>,
    )?;
    judge("HTTPRoute", problem::<mesh_k8s::crd::PolicyHttpRoute>)?;
    Ok(Outcome::fail_if(wrong, count(seen, "object", "objects")))
}

fn edit(value: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // Two groups have routes of one name.
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

fn references(facts: &Facts) -> Verdict {
    let there: BTreeSet<(String, String, String)> = see(&facts.objects.policies)?
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
            "kubectl -n {own} edit authorizationpolicy {}, or apply what it names",
            policy.name_any()
        );
        let target = &policy.spec.target_ref;
        if target.targets::<Namespace>() {
            if target.name != own {
                let line = Line::new(format!(
                    "{title} is for namespace {}, and can only be for its own",
                    target.name
                ));
                wrong.push(line.fixed_by(edit.as_str()));
            }
        } else if !exists(&target.kind, &own, &target.name) {
            let line = Line::new(format!(
                "{title} is for {} {}, which does not exist: it allows no request",
                target.kind, target.name
            ));
            wrong.push(line.fixed_by(edit.as_str()));
        }
        for reference in &policy.spec.required_authentication_refs {
            let namespace = reference.namespace.as_deref().unwrap_or(&own);
            // Accounts need not exist yet: their pods may come later.
            if !reference.targets::<ServiceAccount>()
                && !exists(&reference.kind, namespace, &reference.name)
            {
                let line = Line::new(format!(
                    "{title} requires {} {namespace}/{}, which does not exist: no client satisfies it",
                    reference.kind, reference.name
                ));
                wrong.push(line.fixed_by(edit.as_str()));
            }
        }
    }
    wrong.extend(orphans(facts, exists)?);
    Ok(Outcome::fail_if(wrong, ""))
}

/// Routes whose parent does not exist apply to no request.
fn orphans(facts: &Facts, exists: impl Fn(&str, &str, &str) -> bool) -> Seen<Vec<Line>> {
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
                    // Gateways and the like are others' business.
                    _ => true,
                };
                if !there {
                    let line = Line::new(format!(
                        "{} is for {kind} {namespace}/{target}, which does not exist: it applies to no request",
                        name(route)
                    ));
                    wrong.push(line.fixed_by(edit(route)));
                }
            }
        }
    }
    Ok(wrong)
}

fn servers(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    for server in read::<Server>(facts, "Server")? {
        // External workloads are not pods of this cluster.
        let Some(selector) = &server.spec.pod_selector else {
            continue;
        };
        let chosen = facts.live_pods()?.any(|pod| {
            pod.namespace() == server.namespace()
                && select::matches(selector, pod.metadata.labels.as_ref())
        });
        if !chosen {
            let (namespace, name) = (server.namespace().unwrap_or_default(), server.name_any());
            let line = Line::new(format!(
                "Server {namespace}/{name} (port {}) chooses no pod",
                server.spec.port
            ));
            wrong.push(line.fixed_by(format!(
                "compare its podSelector with kubectl -n {namespace} get pods --show-labels, and correct it: kubectl -n {namespace} edit server {name}"
            )));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// The pods of a Server, meshed ones: policies do nothing elsewhere.
fn chosen<'a>(facts: &'a Facts, server: &Server) -> Seen<Vec<&'a Pod>> {
    let Some(selector) = &server.spec.pod_selector else {
        return Ok(Vec::new());
    };
    let pods = facts.meshed_pods()?.filter(|pod| {
        pod.namespace() == server.namespace()
            && select::matches(selector, pod.metadata.labels.as_ref())
    });
    Ok(pods.collect())
}

fn title(server: &Server) -> String {
    format!(
        "Server {}/{}",
        server.namespace().unwrap_or_default(),
        server.name_any()
    )
}

/// Servers that refuse every request: by default a Server denies, and nothing allows.
fn authorizations(facts: &Facts) -> Verdict {
    let policies = read::<AuthorizationPolicy>(facts, "AuthorizationPolicy")?;
    let mut wrong = Vec::new();
    for server in read::<Server>(facts, "Server")? {
        let pods = chosen(facts, &server)?;
        let Some(first) = pods.first() else { continue };
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
        if allowed {
            continue;
        }
        let (namespace, name) = (server.namespace().unwrap_or_default(), server.name_any());
        let others = match pods.len() {
            1 => String::new(),
            more => format!(" and {}", count(more - 1, "pod more", "pods more")),
        };
        let line = Line::new(format!(
            "{} refuses every request to port {} of {}{others}: its accessPolicy is deny, and no AuthorizationPolicy is for it{}",
            title(&server),
            server.spec.port,
            full_name(first),
            match of_kind(facts, "ServerAuthorization")?
                .iter()
                .any(|object| object["metadata"]["namespace"] == namespace.as_str())
            {
                true => " (ServerAuthorizations are not read: write AuthorizationPolicies)",
                false => "",
            }
        ));
        wrong.push(line.fixed_by(format!(
            "meshctl check explain policy-authorizations has an AuthorizationPolicy for it; to let every meshed client in: kubectl -n {namespace} patch server {name} --type=merge -p '{{\"spec\": {{\"accessPolicy\": \"all-authenticated\"}}}}'"
        )));
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Kind and name of the routes that have the Server as their parent.
fn routes_of(facts: &Facts, server: &Server) -> Seen<Vec<(&'static str, String)>> {
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

/// The controller takes the oldest of several Servers for a port; the others do nothing there.
fn server_ports(facts: &Facts) -> Verdict {
    let mut servers = read::<Server>(facts, "Server")?;
    servers.sort_by_key(|server| {
        (
            server.creation_timestamp().map(|time| time.0),
            server.name_any(),
        )
    });
    let mut wrong = Vec::new();
    for (index, late) in servers.iter().enumerate() {
        let pods = chosen(facts, late)?;
        for early in &servers[..index] {
            let both = pods.iter().find_map(|pod| {
                let selects = early.spec.pod_selector.as_ref().is_some_and(|selector| {
                    select::matches(selector, pod.metadata.labels.as_ref())
                });
                let same = pod.namespace() == early.namespace() && selects;
                let port = numbers(late, pod)
                    .into_iter()
                    .find(|port| same && numbers(early, pod).contains(port))?;
                Some((pod, port))
            });
            let Some((pod, port)) = both else { continue };
            let line = Line::new(format!(
                "{} and {} both select port {port} of {}: only {}, the older one, is in force there",
                title(early),
                title(late),
                full_name(pod),
                early.name_any()
            ));
            wrong.push(line.fixed_by(format!(
                "kubectl -n {0} delete server {1}, or kubectl -n {0} edit server {1} and narrow its podSelector",
                late.namespace().unwrap_or_default(),
                late.name_any()
            )));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn numbers(server: &Server, pod: &Pod) -> Vec<u16> {
    match &server.spec.port {
        PortRef::Number(port) => vec![*port],
        PortRef::Name(name) => pod
            .spec
            .as_ref()
            .map(|spec| ports::named(spec, name))
            .unwrap_or_default(),
    }
}

/// What a pod keeps away from its proxy, no policy reaches.
fn skipped_ports(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    for server in read::<Server>(facts, "Server")? {
        let pods = chosen(facts, &server)?;
        let around = pods.iter().find_map(|pod| {
            let skipped = ports::skip_inbound(pod);
            let mut numbers = numbers(&server, pod).into_iter();
            let port = numbers.find(|port| skipped.contains(*port))?;
            Some((pod, port))
        });
        let Some((pod, port)) = around else { continue };
        let line = Line::new(format!(
            "{} is for port {port} of {}, which goes around the proxy ({}): the policy does nothing there",
            title(&server),
            full_name(pod),
            mesh_core::annotation::SKIP_INBOUND_PORTS
        ));
        wrong.push(line.fixed_by(match repair::workload(pod) {
            Some(workload) => format!(
                "kubectl -n {} edit {workload}: take port {port} out of {} in its template",
                pod.namespace().unwrap_or_default(),
                mesh_core::annotation::SKIP_INBOUND_PORTS
            ),
            None => repair::restart(pod),
        }));
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// An identity ends in the control plane's namespace and the trust domain; another spelling is the
/// name of no client.
fn identities(facts: &Facts) -> Verdict {
    let values = facts.values()?;
    let domain = values.trust_domain();
    let end = format!(".identity.{}.{domain}", facts.control_namespace);
    let mut wrong = Vec::new();
    for object in of_kind(facts, "MeshTLSAuthentication")? {
        let listed = object["spec"]["identities"].as_array();
        let unknown = listed
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            // `*` and `*.namespace…` choose by what they end in.
            .filter(|identity| *identity != "*" && !identity.ends_with(&end));
        for identity in unknown {
            let line = Line::new(format!(
                "{} has the identity {identity:?}, which this mesh gives to no client: its identities end in {end}",
                name(object)
            ));
            wrong.push(line.fixed_by(edit(object)));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}
