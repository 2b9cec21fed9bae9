//! Objects whose status the policy controller writes.
//!
//! An object that the index cannot use has a status too, which says why. The fields that decide
//! about the status are therefore read separately, and all of them may be missing.

use std::sync::Arc;

use kube::core::DynamicObject;
use mesh_core::route::filter::{Filter, Proxies, RequestKind};
use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::http::HttpMatch;
use serde::Deserialize;
use serde_json::Value;

use super::backend::backend_ref;
use super::parent::parent_ref;
use super::{Json, Manifest, created, name};
use crate::model::{
    Kind, Name, Object, ReportedBackend, ReportedKind, ReportedObject, ReportedRoute, ReportedSpec,
    ReportedTarget, Rule,
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RouteFields {
    parent_refs: Option<Vec<Reference>>,
    rules: Option<Vec<RuleFields>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuleFields {
    backend_refs: Option<Vec<Reference>>,
    #[serde(default)]
    filters: Value,
}

/// A parent or a backend.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    group: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    #[serde(default)]
    name: String,
    port: Option<i32>,
    section_name: Option<String>,
}

/// The conversion for the index: the record, or why there is none.
type Indexed = Result<Object, Arc<str>>;

pub(super) fn reported<M: Manifest>(
    kind: ReportedKind,
    manifest: &M,
    convert: impl FnOnce(Kind, &Json) -> Result<Object, String>,
) -> Result<ReportedObject, M::Error> {
    let read: DynamicObject = manifest.read()?;
    let indexed: Indexed = without_status(&read)
        .and_then(|json| convert(kind.indexed(), &json))
        .map_err(Arc::from);
    let meta = &read.metadata;
    let own = name(meta);
    let spec = read.data.get("spec").unwrap_or(&Value::Null);
    let spec = match kind {
        ReportedKind::PolicyHttpRoute
        | ReportedKind::GatewayHttpRoute
        | ReportedKind::GatewayGrpcRoute
        | ReportedKind::GatewayTlsRoute
        | ReportedKind::GatewayTcpRoute => ReportedSpec::Route(route(&own, spec, &indexed)),
        ReportedKind::RateLimitPolicy => ReportedSpec::RateLimit(target(&spec["targetRef"])),
        ReportedKind::EgressNetwork => ReportedSpec::EgressNetwork(match &indexed {
            Ok(Object::EgressNetwork(network)) => Some(network.clone()),
            _ => None,
        }),
    };
    Ok(ReportedObject {
        kind,
        api_version: read
            .types
            .as_ref()
            .map_or("", |types| types.api_version.as_str())
            .into(),
        resource_version: meta.resource_version.as_deref().map(Arc::from),
        generation: meta.generation,
        created: created(meta),
        problem: indexed.err(),
        spec,
        status: read.data.get("status").cloned().unwrap_or_default(),
        name: own,
    })
}

/// Returns the object without its status, which has no influence on traffic.
fn without_status(read: &DynamicObject) -> Result<Json, String> {
    let mut json = serde_json::to_value(read).map_err(|error| error.to_string())?;
    if let Some(fields) = json.as_object_mut() {
        fields.remove("status");
        // The index has the types of one version only.
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    Ok(Json(json))
}

/// A field of an unexpected type counts as missing; it is the problem of the object.
fn route(own: &Name, spec: &Value, indexed: &Indexed) -> ReportedRoute {
    let fields = RouteFields::deserialize(spec).unwrap_or_default();
    let parents = fields.parent_refs.iter().flatten();
    let parents = parents.map(|parent| parent_ref!(own, parent));
    let rules = fields.rules.iter().flatten().enumerate();
    let backends = rules.flat_map(|(rule_at, rule)| {
        let backends = rule.backend_refs.iter().flatten().enumerate();
        let backends = backends.map(move |(at, backend)| {
            let field = format!("spec.rules[{rule_at}].backendRefs[{at}]");
            let problem = backend_problem(indexed, rule_at, at);
            reported_backend(field, backend, problem)
        });
        let filters = rule.filters.as_array().into_iter().flatten().enumerate();
        let mirrors = filters.filter_map(move |(at, filter)| {
            let is_mirror = filter["type"] == "RequestMirror";
            let reference = &filter["requestMirror"]["backendRef"];
            let reference = Reference::deserialize(reference).ok();
            let reference = reference.filter(|_| is_mirror)?;
            let field = format!("spec.rules[{rule_at}].filters[{at}].requestMirror.backendRef");
            Some(reported_backend(field, &reference, None))
        });
        backends.chain(mirrors)
    });
    ReportedRoute {
        parents: parents.collect(),
        backends: backends.collect(),
        unsupported: rule_problem(indexed, internal_error, internal_error),
        unsupported_by_servers: rule_problem(
            indexed,
            |rule| rule.problem_of_servers(RequestKind::Http),
            |rule| rule.problem_of_servers(RequestKind::Grpc),
        ),
        left_out_by_servers: left_out(indexed, Proxies::OfServer),
        left_out_by_linkerd: left_out(indexed, Proxies::Linkerd),
    }
}

/// Returns a backend, or a mirror's backend. Its filters have the `problem`.
fn reported_backend(
    field: String,
    reference: &Reference,
    problem: Option<Arc<str>>,
) -> ReportedBackend {
    ReportedBackend {
        field: field.into(),
        reference: backend_ref!(reference),
        kind: reference.kind.as_deref().unwrap_or("Service").into(),
        problem,
    }
}

/// Returns why the mesh cannot apply a filter of a rule.
fn internal_error<M>(rule: &Rule<M>) -> Option<String> {
    rule.filters.iter().find_map(|filter| match filter {
        Filter::InternalError(problem) => Some(problem.to_string()),
        _ => None,
    })
}

fn left_out(indexed: &Indexed, by: Proxies) -> Option<Arc<str>> {
    rule_problem(indexed, |rule| rule.left_out(by), |rule| rule.left_out(by))
}

/// Returns the first problem of the rules, with its field. There is one function for each kind of
/// matches.
fn rule_problem(
    indexed: &Indexed,
    http: impl Fn(&Rule<HttpMatch>) -> Option<String>,
    grpc: impl Fn(&Rule<GrpcMatch>) -> Option<String>,
) -> Option<Arc<str>> {
    fn of<M>(rules: &[Rule<M>], problem: impl Fn(&Rule<M>) -> Option<String>) -> Option<Arc<str>> {
        let mut problems = rules.iter().enumerate().filter_map(|(at, rule)| {
            let problem = problem(rule)?;
            Some(format!("spec.rules[{at}].{problem}").into())
        });
        problems.next()
    }
    match indexed.as_ref().ok()? {
        Object::PolicyHttpRoute(route) | Object::GatewayHttpRoute(route) => of(&route.rules, http),
        Object::GatewayGrpcRoute(route) => of(&route.rules, grpc),
        _ => None,
    }
}

fn target(target: &Value) -> ReportedTarget {
    let text = |field: &str| target[field].as_str().unwrap_or_default().into();
    ReportedTarget {
        group: text("group"),
        kind: text("kind"),
        name: text("name"),
    }
}

/// Returns why the filters of a backend cannot be applied.
fn backend_problem(indexed: &Indexed, rule: usize, backend: usize) -> Option<Arc<str>> {
    fn of<M>(rules: &[Rule<M>], rule: usize, backend: usize) -> Option<Arc<str>> {
        let backends = rules.get(rule)?.backends.as_ref()?;
        backends.get(backend)?.filters.clone().err()
    }
    match indexed.as_ref().ok()? {
        Object::PolicyHttpRoute(route) | Object::GatewayHttpRoute(route) => {
            of(&route.rules, rule, backend)
        }
        Object::GatewayGrpcRoute(route) => of(&route.rules, rule, backend),
        _ => None,
    }
}
