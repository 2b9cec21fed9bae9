//! ServiceProfiles that no client uses, and routes and retries of ServiceProfiles without effect.

use mesh_k8s::crd::service_profile::ServiceProfileSpec;
use mesh_k8s::validate::{self, Denied, Submission};
use mesh_objects::model::{Name, ParentKind, ParentRef};
use mesh_objects::policy::attachment::RouteRank;
use serde::Deserialize as _;

use self::condition::implies;
use super::finding::Finding;
use super::objects::{Object, Objects, PROFILE, text};
use super::routes;

mod condition;

/// What the name of a ServiceProfile stands for.
enum Destination<'a> {
    Service {
        namespace: &'a str,
        name: &'a str,
        domain: &'a str,
    },
    /// A name that clients do not look up, though it looks like a Service's.
    Short {
        namespace: &'a str,
        name: &'a str,
    },
    External,
}

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    for profile in objects.of(PROFILE, "ServiceProfile") {
        invalid(profile, findings);
        destination(objects, profile, findings);
        clients(objects, profile, findings);
        let Ok(spec) = ServiceProfileSpec::deserialize(profile.spec()) else {
            continue;
        };
        routes(profile, &spec, findings);
        retries(profile, &spec, findings);
        overrides(objects, profile, &spec, findings);
        replaced_routes(objects, profile, &spec, findings);
    }
}

fn invalid(profile: &Object, findings: &mut Vec<Finding>) {
    let submission = Submission {
        group: &profile.group,
        kind: &profile.kind,
        namespace: &profile.namespace,
        object: &profile.json,
    };
    let Err(Denied::Invalid(invalid)) = validate::profile(submission) else {
        return;
    };
    findings.extend(invalid.errors.iter().map(|error| {
        let (problem, fix) = match error.problem.split_once("; ") {
            Some((problem, fix)) => (problem, fix),
            None => (&*error.problem, "correct the field"),
        };
        Finding::new(profile, &*error.field, "invalid", problem, fix)
    }));
}

/// Splits a name of DNS as the controllers do, for any domain of the cluster.
fn parse<'a>(profile: &'a Object, authority: &'a str) -> Destination<'a> {
    let labels: Vec<&str> = authority.splitn(4, '.').collect();
    match labels[..] {
        [name, namespace, "svc", domain] => Destination::Service {
            namespace,
            name,
            domain,
        },
        [name, namespace, "svc"] | [name, namespace] => Destination::Short { namespace, name },
        [name] => Destination::Short {
            namespace: &profile.namespace,
            name,
        },
        _ => Destination::External,
    }
}

/// Reports a profile whose name stands for no Service.
fn destination(objects: &Objects, profile: &Object, findings: &mut Vec<Finding>) {
    match parse(profile, &profile.name) {
        Destination::Service {
            namespace,
            name,
            domain,
        } => {
            let Some(service) = objects.find("", "Service", namespace, name) else {
                findings.push(Finding::new(
                    profile,
                    "metadata.name",
                    "missing-reference",
                    format!("there is no Service {namespace}/{name}, so the profile has no effect"),
                    objects.fix_of_missing("", "Service"),
                ));
                return;
            };
            if text(&service.spec()["type"]) == "ExternalName" {
                findings.push(Finding::new(
                    profile,
                    "metadata.name",
                    "no-effect",
                    format!(
                        "Service {namespace}/{name} is an ExternalName, to which no profile applies"
                    ),
                    "name the profile after the external host",
                ));
            }
            match objects.values().map(|values| &*values.cluster_domain) {
                Some(own) if own != domain => findings.push(Finding::new(
                    profile,
                    "metadata.name",
                    "no-effect",
                    format!("has the domain {domain}, but that of the cluster is {own}, so no client looks it up"),
                    format!("create it as {name}.{namespace}.svc.{own}"),
                )),
                Some(_) => {}
                None => other_domain(objects, profile, (namespace, name, domain), findings),
            }
        }
        // A host outside of the cluster may have such a name, if there is no Service.
        Destination::Short { namespace, name } => {
            if objects.find("", "Service", namespace, name).is_some() {
                findings.push(Finding::new(
                    profile,
                    "metadata.name",
                    "no-effect",
                    format!(
                        "is not the full name of Service {namespace}/{name}, which clients look up"
                    ),
                    format!(
                        "name it {name}.{namespace}.svc.cluster.local, or with the domain of the cluster"
                    ),
                ));
            }
        }
        Destination::External => {}
    }
}

/// Reports profiles of one Service that differ in their domain; a cluster has only one.
fn other_domain(
    objects: &Objects,
    profile: &Object,
    (namespace, name, domain): (&str, &str, &str),
    findings: &mut Vec<Finding>,
) {
    let other = objects.of(PROFILE, "ServiceProfile").find(|other| {
        let (same, other_domain) = match parse(other, &other.name) {
            Destination::Service {
                namespace: of,
                name: named,
                domain,
            } => (of == namespace && named == name, domain),
            Destination::Short { .. } | Destination::External => (false, ""),
        };
        same && other_domain != domain
    });
    if let Some(other) = other {
        findings.push(Finding::new(
            profile,
            "metadata.name",
            "conflict",
            format!(
                "ServiceProfile {} is of the same Service with another domain; only the one with the domain of the cluster has an effect",
                other.full_name()
            ),
            "delete the one with the wrong domain",
        ));
    }
}

/// Reports a profile in a namespace with neither its Service nor any client. A namespace is known
/// to have no workloads only if it is among the objects.
fn clients(objects: &Objects, profile: &Object, findings: &mut Vec<Finding>) {
    let Destination::Service {
        namespace, name, ..
    } = parse(profile, &profile.name)
    else {
        return;
    };
    let own = &profile.namespace;
    if namespace == own || objects.find("", "Namespace", "", own).is_none() {
        return;
    }
    let mut workloads = objects.workloads().peekable();
    if workloads.peek().is_none() || workloads.any(|workload| workload.object.namespace == *own) {
        return;
    }
    findings.push(Finding::new(
        profile,
        "metadata.namespace",
        "no-effect",
        format!(
            "applies to clients of namespace {own}, which has none; it is not the namespace of Service {namespace}/{name}"
        ),
        format!("create it in {namespace}, for all clients, or in the namespace of the clients"),
    ));
}

/// Reports a route whose requests an earlier route has, which applies instead.
fn routes(profile: &Object, spec: &ServiceProfileSpec, findings: &mut Vec<Finding>) {
    let routes = spec.routes.as_deref().unwrap_or_default();
    for (at, route) in routes.iter().enumerate().take(MAX_ROUTES) {
        let before = routes[..at].iter();
        let earlier = before
            .enumerate()
            .find(|(_, earlier)| implies(&route.condition, &earlier.condition));
        if let Some((earlier_at, earlier)) = earlier {
            findings.push(Finding::new(
                profile,
                format!("spec.routes[{at}]"),
                "never-matches",
                format!(
                    "never matches: spec.routes[{earlier_at}], {:?}, has all of its requests",
                    earlier.name
                ),
                "write it before that route, or make the condition of that route narrower",
            ));
        }
    }
}

/// Routes after these are not compared: the number of comparisons is quadratic.
const MAX_ROUTES: usize = 500;

fn retries(profile: &Object, spec: &ServiceProfileSpec, findings: &mut Vec<Finding>) {
    let Some(budget) = &spec.retry_budget else {
        return;
    };
    let routes = spec.routes.iter().flatten();
    let mut retried = routes.filter(|route| route.is_retryable == Some(true));
    if budget.retry_ratio == 0.0
        && budget.min_retries_per_second == 0
        && let Some(route) = retried.next()
    {
        findings.push(Finding::new(
            profile,
            "spec.retryBudget",
            "no-effect",
            format!(
                "allows no retries, so isRetryable of route {:?} has no effect",
                route.name
            ),
            "raise retryRatio or minRetriesPerSecond, or remove isRetryable",
        ));
    }
}

fn overrides(
    objects: &Objects,
    profile: &Object,
    spec: &ServiceProfileSpec,
    findings: &mut Vec<Finding>,
) {
    for (at, part) in spec.dst_overrides.iter().flatten().enumerate() {
        let host = part
            .authority
            .rsplit_once(':')
            .map_or(&*part.authority, |(host, _)| host);
        if let Destination::Service {
            namespace, name, ..
        } = parse(profile, host)
            && objects.find("", "Service", namespace, name).is_none()
        {
            findings.push(Finding::new(
                profile,
                format!("spec.dstOverrides[{at}].authority"),
                "missing-reference",
                format!(
                    "there is no Service {namespace}/{name}, so requests to this destination fail"
                ),
                objects.fix_of_missing("", "Service"),
            ));
        }
    }
}

/// Reports the routes that a ServiceProfile with routes or a split replaces (docs/adr/0044).
fn replaced_routes(
    objects: &Objects,
    profile: &Object,
    spec: &ServiceProfileSpec,
    findings: &mut Vec<Finding>,
) {
    let has_routes = spec.routes.iter().flatten().next().is_some();
    let has_split = spec.dst_overrides.iter().flatten().next().is_some();
    let Destination::Service {
        namespace, name, ..
    } = parse(profile, &profile.name)
    else {
        return;
    };
    if !has_routes && !has_split {
        return;
    }
    let clients = if profile.namespace == namespace {
        String::new()
    } else {
        format!(" for clients in namespace {}", profile.namespace)
    };
    for (route, kind) in routes::routes(objects) {
        let of_service = |parent: &ParentRef| {
            parent.kind == ParentKind::Service && parent.name == Name::new(namespace, name)
        };
        let parent = routes::parents(route).iter().position(of_service);
        if let Some(at) = parent
            && matches!(
                RouteRank::new(kind.indexed()),
                Some(RouteRank::Grpc | RouteRank::Http)
            )
        {
            findings.push(Finding::new(
                route,
                format!("spec.parentRefs[{at}]"),
                "conflict",
                format!(
                    "ServiceProfile {} has routes or a split and replaces this route{clients}",
                    profile.full_name()
                ),
                format!(
                    "write the profile's routes as an HTTPRoute, then kubectl -n {} delete serviceprofile.linkerd.io {}",
                    profile.namespace, profile.name
                ),
            ));
        }
    }
}
