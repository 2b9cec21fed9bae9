//! Requests to the JSON API, most of them as messages to the metrics API.
//!
//! Parameters have the names, defaults and conditions of Linkerd's dashboard.

use std::collections::HashMap;

use mesh_api::linkerd2::viz::stat_summary_request::Outbound;
use mesh_api::linkerd2::viz::{
    AuthzRequest, EdgesRequest, GatewaysRequest, ListPodsRequest, ListServicesRequest, Resource,
    ResourceSelection, StatSummaryRequest, TopRoutesRequest, top_routes_request,
};

/// A question of a page. Equal questions are asked once for all viewers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Query {
    Metrics(MetricsQuery),
    Workload(WorkloadQuery),
}

/// A question to the metrics API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MetricsQuery {
    Stat(StatSummaryRequest),
    Routes(TopRoutesRequest),
    Edges(EdgesRequest),
    Topology(EdgesRequest),
    Pods(ListPodsRequest),
    Services(ListServicesRequest),
    Gateways(GatewaysRequest),
    Authz(AuthzRequest),
    SelfCheck,
}

/// A question about one workload or Service, which Linkerd's API does not have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WorkloadQuery {
    Policies(Resource),
    Proxies(Resource),
    /// The endpoints of a Service.
    Endpoints(Resource),
}

/// The parameters of a URL's query. The first value of a repeated parameter counts.
#[derive(Debug, Default)]
pub(crate) struct Params(HashMap<String, String>);

/// The type of resources without `resource_type`.
const DEFAULT_TYPE: &str = "deployment";

/// The namespace without `namespace` and `all_namespaces`.
const DEFAULT_NAMESPACE: &str = "default";

const DEFAULT_WINDOW: &str = "1m";

/// Names in Kubernetes have at most 253 characters, label selectors a few names.
const MAX_VALUE: usize = 1024;

/// A name in Kubernetes.
const MAX_NAME: usize = 253;

/// Types whose pods are known.
const WITH_PODS: [&str; 8] = [
    "daemonset",
    "deployment",
    "job",
    "pod",
    "replicaset",
    "replicationcontroller",
    "service",
    "statefulset",
];

/// Types of resources with the names that `kubectl` also accepts; the plural is accepted too.
const TYPES: [(&str, &[&str]); 16] = [
    ("all", &[]),
    ("authority", &["au", "authorities"]),
    (
        "authorizationpolicy",
        &["authzpolicy", "authorizationpolicies"],
    ),
    ("cronjob", &["cj"]),
    ("daemonset", &["ds"]),
    ("deployment", &["deploy"]),
    ("httproute", &[]),
    ("job", &[]),
    ("namespace", &["ns"]),
    ("pod", &["po"]),
    ("replicaset", &["rs"]),
    ("replicationcontroller", &["rc"]),
    ("server", &["srv"]),
    ("serverauthorization", &["saz", "serverauthz"]),
    ("service", &["svc"]),
    ("statefulset", &["sts"]),
];

impl Params {
    /// Parses the query of a URL.
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let mut values = HashMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if value.len() > MAX_VALUE {
                let name: String = name.chars().take(40).collect();
                return Err(format!(
                    "the value of {name} has {} bytes; expected at most {MAX_VALUE}",
                    value.len()
                ));
            }
            let entry = values.entry(name.into_owned());
            entry.or_insert_with(|| value.into_owned());
        }
        Ok(Self(values))
    }

    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn is_true(&self, name: &str) -> bool {
        self.get(name) == "true"
    }

    fn window(&self) -> String {
        or(self.get("window"), DEFAULT_WINDOW)
    }

    /// Returns the namespace that is asked about; empty for all.
    fn namespace(&self) -> String {
        if self.is_true("all_namespaces") {
            return String::new();
        }
        or(self.get("namespace"), DEFAULT_NAMESPACE)
    }

    /// Returns the peer that the parameters with `prefix` describe, if there are any. Without its
    /// own type or namespace it has the selected resource's.
    fn peer(&self, prefix: &str, selected: &Resource) -> Result<Option<Resource>, String> {
        let value = |name: &str| self.get(&format!("{prefix}_{name}"));
        let (name, kind, namespace) = (value("name"), value("type"), value("namespace"));
        if name.is_empty() && kind.is_empty() && namespace.is_empty() {
            return Ok(None);
        }
        let kind = if kind.is_empty() {
            selected.r#type.clone()
        } else {
            canonical_type(kind)?
        };
        Ok(Some(Resource {
            namespace: or(namespace, &selected.namespace),
            r#type: kind,
            name: name.to_owned(),
        }))
    }

    fn resource(&self) -> Result<Resource, String> {
        let name = self.get("resource_name");
        if self.is_true("all_namespaces") && !name.is_empty() {
            return Err(
                "stats for a resource cannot be retrieved by name across all namespaces".to_owned(),
            );
        }
        Ok(Resource {
            namespace: self.namespace(),
            r#type: canonical_type(&or(self.get("resource_type"), DEFAULT_TYPE))?,
            name: name.to_owned(),
        })
    }

    /// Returns the workload or Service that is asked about, which must have pods.
    fn workload(&self) -> Result<Resource, String> {
        let resource = self.resource()?;
        let kind = resource.r#type.as_str();
        if !WITH_PODS.contains(&kind) {
            return Err(format!(
                "a {kind} has no pods: expected {}",
                WITH_PODS.join(", ")
            ));
        }
        if resource.name.is_empty() {
            return Err("resource_name is missing".to_owned());
        }
        if !is_object_name(&resource.namespace) || !is_object_name(&resource.name) {
            return Err("namespace and resource_name are not names of objects".to_owned());
        }
        Ok(resource)
    }

    fn service(&self) -> Result<Resource, String> {
        let resource = self.workload()?;
        match resource.r#type.as_str() {
            "service" => Ok(resource),
            kind => Err(format!(
                "a {kind} has no endpoints: expected resource_type=service"
            )),
        }
    }

    fn selection(&self) -> Result<ResourceSelection, String> {
        Ok(ResourceSelection {
            resource: Some(self.resource()?),
            label_selector: self.get("label_selector").to_owned(),
        })
    }
}

impl Query {
    /// Returns the question of an endpoint, which is named without `/api/`; `None` if the endpoint
    /// has none.
    pub(crate) fn parse(endpoint: &str, params: &Params) -> Option<Result<Self, String>> {
        let metrics = MetricsQuery::parse(endpoint, params).map(|query| query.map(Self::Metrics));
        metrics.or_else(|| {
            let query = WorkloadQuery::parse(endpoint, params)?;
            Some(query.map(Self::Workload))
        })
    }

    /// Parses an endpoint with its query, such as `pods?namespace=shop`.
    pub(crate) fn parse_path(path: &str) -> Result<Self, String> {
        let (endpoint, query) = path.split_once('?').unwrap_or((path, ""));
        let params = Params::parse(query)?;
        Self::parse(endpoint, &params).unwrap_or_else(|| {
            let endpoint: String = endpoint.chars().take(40).collect();
            Err(format!("{endpoint:?} cannot be streamed"))
        })
    }
}

impl MetricsQuery {
    fn parse(endpoint: &str, params: &Params) -> Option<Result<Self, String>> {
        Some(match endpoint {
            "tps-reports" => stat(params).map(Self::Stat),
            "routes" => routes(params).map(Self::Routes),
            "edges" => edges(params).map(Self::Edges),
            "topology" => edges(params).map(Self::Topology),
            "pods" => Ok(Self::Pods(pods_request(params.get("namespace")))),
            "services" => Ok(Self::Services(ListServicesRequest {
                namespace: params.get("namespace").to_owned(),
            })),
            "gateways" => Ok(Self::Gateways(gateways(params))),
            "authz" => authz(params).map(Self::Authz),
            "self-check" => Ok(Self::SelfCheck),
            _ => return None,
        })
    }
}

impl WorkloadQuery {
    fn parse(endpoint: &str, params: &Params) -> Option<Result<Self, String>> {
        Some(match endpoint {
            "policies" => params.workload().map(Self::Policies),
            "proxies" => params.workload().map(Self::Proxies),
            "endpoints" => params.service().map(Self::Endpoints),
            _ => return None,
        })
    }
}

/// Whether a text may be the name of an object, so that it cannot change the path of a request to
/// the API server.
pub(crate) fn is_object_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    (1..=MAX_NAME).contains(&text.len())
        && text.bytes().all(allowed)
        && !text.starts_with('.')
        && !text.ends_with('.')
}

/// Returns the request for the pods of a namespace; of all without one.
pub(crate) fn pods_request(namespace: &str) -> ListPodsRequest {
    let resource = Resource {
        namespace: namespace.to_owned(),
        ..Resource::default()
    };
    ListPodsRequest {
        selector: Some(ResourceSelection {
            resource: Some(resource),
            label_selector: String::new(),
        }),
    }
}

/// Returns the name of a type in messages.
pub(crate) fn canonical_type(name: &str) -> Result<String, String> {
    let lower = name.to_ascii_lowercase();
    let singular = lower.strip_suffix('s').unwrap_or(&lower);
    let known = TYPES.iter().find(|(kind, others)| {
        *kind == lower || *kind == singular || others.contains(&lower.as_str())
    });
    known.map(|(kind, _)| (*kind).to_owned()).ok_or_else(|| {
        let name: String = name.chars().take(40).collect();
        format!("{name:?} is not a type of resources; expected for example deployment or pod")
    })
}

fn or(value: &str, default: &str) -> String {
    if value.is_empty() { default } else { value }.to_owned()
}

fn stat(params: &Params) -> Result<StatSummaryRequest, String> {
    let selector = params.selection()?;
    let resource = selector.resource.clone().unwrap_or_default();
    let to = params.peer("to", &resource)?.map(Outbound::ToResource);
    let from = params.peer("from", &resource)?.map(Outbound::FromResource);
    Ok(StatSummaryRequest {
        selector: Some(selector),
        time_window: params.window(),
        skip_stats: params.is_true("skip_stats"),
        tcp_stats: params.is_true("tcp_stats"),
        outbound: to.or(from).or(Some(Outbound::None(Default::default()))),
    })
}

fn routes(params: &Params) -> Result<TopRoutesRequest, String> {
    let selector = params.selection()?;
    let resource = selector.resource.clone().unwrap_or_default();
    let to = params.peer("to", &resource)?;
    let to = to.map(top_routes_request::Outbound::ToResource);
    Ok(TopRoutesRequest {
        selector: Some(selector),
        time_window: params.window(),
        outbound: to.or(Some(top_routes_request::Outbound::None(Default::default()))),
    })
}

fn edges(params: &Params) -> Result<EdgesRequest, String> {
    Ok(EdgesRequest {
        selector: Some(params.selection()?),
    })
}

fn gateways(params: &Params) -> GatewaysRequest {
    GatewaysRequest {
        remote_cluster_name: params.get("remoteClusterName").to_owned(),
        gateway_namespace: params.get("gatewayNamespace").to_owned(),
        time_window: params.window(),
    }
}

fn authz(params: &Params) -> Result<AuthzRequest, String> {
    Ok(AuthzRequest {
        resource: Some(params.resource()?),
        time_window: params.window(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(path: &str) -> Query {
        Query::parse_path(path).unwrap()
    }

    fn resource(namespace: &str, kind: &str, name: &str) -> Resource {
        Resource {
            namespace: namespace.to_owned(),
            r#type: kind.to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn stat_parameters_have_the_defaults_of_linkerd() {
        let Query::Metrics(MetricsQuery::Stat(request)) = query("tps-reports") else {
            panic!();
        };
        let selector = request.selector.unwrap();
        assert_eq!(
            selector.resource,
            Some(resource("default", "deployment", ""))
        );
        assert_eq!(request.time_window, "1m");
        assert!(!request.skip_stats && !request.tcp_stats);
        assert_eq!(request.outbound, Some(Outbound::None(Default::default())));

        let Query::Metrics(MetricsQuery::Stat(request)) = query(
            "tps-reports?resource_type=po&all_namespaces=true&window=30s&tcp_stats=true&skip_stats=true&label_selector=a%3Db",
        ) else {
            panic!();
        };
        let selector = request.selector.unwrap();
        assert_eq!(selector.resource, Some(resource("", "pod", "")));
        assert_eq!(selector.label_selector, "a=b");
        assert_eq!(request.time_window, "30s");
        assert!(request.skip_stats && request.tcp_stats);
    }

    #[test]
    fn peers_complete_from_the_selected_resource() {
        let table = [
            (
                "to_name=db",
                Outbound::ToResource(resource("shop", "deployment", "db")),
            ),
            (
                "from_type=sts&from_namespace=bank",
                Outbound::FromResource(resource("bank", "statefulset", "")),
            ),
        ];
        for (peer, expected) in table {
            let path = format!("tps-reports?namespace=shop&resource_name=web&{peer}");
            let Query::Metrics(MetricsQuery::Stat(request)) = query(&path) else {
                panic!();
            };
            assert_eq!(request.outbound, Some(expected));
        }
    }

    #[test]
    fn equal_questions_are_equal_whatever_their_notation() {
        assert_eq!(
            query("tps-reports?resource_type=deploy&namespace=shop&window=1m"),
            query("tps-reports?namespace=shop&resource_type=deployments")
        );
        assert_ne!(
            query("edges?namespace=shop"),
            query("topology?namespace=shop")
        );
    }

    #[test]
    fn types_have_the_names_of_kubectl() {
        let table = [
            ("deploy", "deployment"),
            ("Deployments", "deployment"),
            ("ns", "namespace"),
            ("sts", "statefulset"),
            ("authorities", "authority"),
            ("services", "service"),
        ];
        for (name, expected) in table {
            assert_eq!(canonical_type(name).as_deref(), Ok(expected));
        }
        for bad in ["", "s", "secret", "deployment/web"] {
            assert!(canonical_type(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn invalid_questions_are_refused() {
        let long = format!("tps-reports?namespace={}", "x".repeat(MAX_VALUE + 1));
        for (path, problem) in [
            (
                "tps-reports?resource_type=secret",
                "\"secret\" is not a type",
            ),
            (
                "tps-reports?all_namespaces=true&resource_name=web",
                "by name",
            ),
            ("check", "\"check\" cannot be streamed"),
            (long.as_str(), "namespace has 1025 bytes"),
        ] {
            let error = Query::parse_path(path).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        let fits = format!("tps-reports?namespace={}", "x".repeat(MAX_VALUE));
        assert!(Query::parse_path(&fits).is_ok());
    }

    #[test]
    fn questions_about_workloads_need_a_type_with_pods_and_a_name() {
        assert_eq!(
            query("policies?namespace=shop&resource_type=deploy&resource_name=web"),
            Query::Workload(WorkloadQuery::Policies(resource(
                "shop",
                "deployment",
                "web"
            )))
        );
        assert_eq!(
            query("endpoints?namespace=shop&resource_type=svc&resource_name=web"),
            Query::Workload(WorkloadQuery::Endpoints(resource("shop", "service", "web")))
        );
        let long = format!("proxies?resource_name={}", "x".repeat(MAX_NAME + 1));
        for (path, problem) in [
            ("policies?namespace=shop", "resource_name is missing"),
            (
                "proxies?resource_type=namespace&resource_name=shop",
                "a namespace has no pods",
            ),
            (
                "proxies?resource_type=cj&resource_name=a",
                "a cronjob has no pods",
            ),
            (
                "endpoints?resource_name=web",
                "a deployment has no endpoints",
            ),
            ("proxies?resource_name=a%2F..", "not names"),
            ("proxies?namespace=..&resource_name=a", "not names"),
            ("proxies?all_namespaces=true&resource_name=a", "by name"),
            (long.as_str(), "not names"),
        ] {
            let error = Query::parse_path(path).unwrap_err();
            assert!(error.contains(problem), "{path}: {error}");
        }
        let fits = format!("proxies?resource_name={}", "x".repeat(MAX_NAME));
        assert!(Query::parse_path(&fits).is_ok());
    }
}
