//! What a tap asks for: its target and its conditions.

mod message;

use std::fmt;

use mesh_api::linkerd2::tap::TapByResourceRequest;
use mesh_api::linkerd2::tap::tap_by_resource_request::extract::{
    self, Extract as ExtractKind, Http as ExtractHttp,
};
use mesh_api::linkerd2::tap::tap_by_resource_request::r#match::{
    Http, Match as MatchKind, Seq, http as http_match,
};
use mesh_api::linkerd2::tap::tap_by_resource_request::{Extract, Match};
use mesh_api::linkerd2::viz::{Resource as Message, ResourceSelection};
use mesh_api::tap_conditions;
use mesh_api::tap_request::{self, DEFAULT_MAX_RPS, PATH_PREFIX};
use mesh_core::tap::TapFilter;

use crate::exit::Failure;
use crate::resource::{Resource, ResourceKind};

/// A checked request.
#[derive(Clone, Debug)]
pub(crate) struct TapQuery {
    kind: ResourceKind,
    /// The namespace of the target; its name if it is one.
    namespace: String,
    /// Empty for a namespace.
    name: String,
    /// A label selector in the notation of kubectl; empty for all pods of the target.
    pub(crate) selector: String,
    /// The destination of the requests and its namespace.
    pub(crate) to: Option<(Resource, String)>,
    pub(crate) scheme: Option<String>,
    pub(crate) method: Option<String>,
    pub(crate) authority: Option<String>,
    /// The path begins with this.
    pub(crate) path: Option<String>,
    /// Requests per second over all pods of the target.
    pub(crate) max_rps: f32,
    pub(crate) with_headers: bool,
}

impl TapQuery {
    /// Creates a request for all requests of a target, which must be one object with pods.
    pub(crate) fn new(target: &Resource, namespace: &str) -> Result<Self, Failure> {
        let kind = target.kind;
        if !kind.has_pods() && kind != ResourceKind::Service {
            return Err(Failure::Input(format!(
                "{} cannot be tapped: expected a workload, a pod, a Service or a namespace",
                kind.as_str()
            )));
        }
        let name = target.name.clone().ok_or_else(|| {
            Failure::Input(format!(
                "expected the name of one object, as in {}/NAME; ns/{namespace} taps all pods of namespace {namespace}",
                kind.short()
            ))
        })?;
        let (namespace, name) = match kind {
            ResourceKind::Namespace => (name, String::new()),
            _ => (namespace.to_owned(), name),
        };
        // Both become parts of a path.
        for part in [&namespace, &name] {
            if !part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-._:".contains(c))
            {
                return Err(Failure::Input(format!(
                    "{part:?} is not the name of an object"
                )));
            }
        }
        Ok(Self {
            kind,
            namespace,
            name,
            selector: String::new(),
            to: None,
            scheme: None,
            method: None,
            authority: None,
            path: None,
            max_rps: DEFAULT_MAX_RPS,
            with_headers: false,
        })
    }

    /// Returns the kind of the target.
    pub(crate) fn kind(&self) -> ResourceKind {
        self.kind
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name of the target, which is empty for a namespace.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the conditions as proxies evaluate them.
    pub(crate) fn filter(&self) -> Result<TapFilter, Failure> {
        let conditions = self.to_message().r#match;
        tap_conditions::filter(conditions.as_ref())
            .map_err(|error| Failure::Input(error.to_string()))
    }

    /// Returns each pod's share of the requests per second, at least one, as the tap API does.
    pub(crate) fn rps_per_pod(&self, pods: usize) -> u32 {
        tap_request::rps_per_pod(self.max_rps, pods)
    }

    /// Returns the resource and subresource of the access that a tap needs.
    pub(crate) fn access_resource(&self) -> String {
        format!("{}/tap", self.kind.plural())
    }

    pub(crate) fn path(&self) -> String {
        let Self {
            namespace, name, ..
        } = self;
        match self.kind {
            ResourceKind::Namespace => format!("{PATH_PREFIX}{namespace}/tap"),
            kind => format!("{PATH_PREFIX}{namespace}/{}/{name}/tap", kind.plural()),
        }
    }

    pub(crate) fn to_message(&self) -> TapByResourceRequest {
        let target = match self.kind {
            ResourceKind::Namespace => message(self.kind, "", &self.namespace),
            kind => message(kind, &self.namespace, &self.name),
        };
        let extract = Extract {
            extract: Some(ExtractKind::Http(ExtractHttp {
                extract: Some(extract::http::Extract::Headers(extract::http::Headers {})),
            })),
        };
        TapByResourceRequest {
            target: Some(ResourceSelection {
                resource: Some(target),
                label_selector: self.selector.clone(),
            }),
            r#match: Some(Match {
                r#match: Some(MatchKind::All(Seq {
                    matches: self.conditions(),
                })),
            }),
            max_rps: self.max_rps,
            extract: self.with_headers.then_some(extract),
        }
    }

    fn conditions(&self) -> Vec<Match> {
        let http = |kind: http_match::Match| {
            MatchKind::Http(Http {
                r#match: Some(kind),
            })
        };
        let destination = self.to.as_ref().map(|(to, namespace)| {
            let name = to.name.as_deref().unwrap_or_default();
            let namespace = match to.kind {
                ResourceKind::Namespace => "",
                _ => namespace,
            };
            MatchKind::Destinations(ResourceSelection {
                resource: Some(message(to.kind, namespace, name)),
                label_selector: String::new(),
            })
        });
        let scheme = self.scheme.clone().map(http_match::Match::Scheme);
        let method = self.method.clone().map(http_match::Match::Method);
        let authority = self.authority.clone().map(http_match::Match::Authority);
        let path = self.path.clone().map(http_match::Match::Path);
        let of_http = [scheme, method, authority, path].into_iter().flatten();
        let kinds = destination.into_iter().chain(of_http.map(http));
        kinds
            .map(|kind| Match {
                r#match: Some(kind),
            })
            .collect()
    }
}

impl fmt::Display for TapQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ResourceKind::Namespace => write!(f, "namespace {}", self.namespace),
            kind => write!(
                f,
                "{}/{} in namespace {}",
                kind.as_str(),
                self.name,
                self.namespace
            ),
        }
    }
}

fn message(kind: ResourceKind, namespace: &str, name: &str) -> Message {
    Message {
        namespace: namespace.to_owned(),
        r#type: kind.as_str().to_owned(),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(target: &str) -> Result<TapQuery, Failure> {
        TapQuery::new(&Resource::parse(target).unwrap(), "shop")
    }

    #[test]
    fn path_names_the_target_of_the_message() {
        for (target, path, namespace, name) in [
            ("deploy/web", "shop/deployments/web/tap", "shop", "web"),
            ("po/web-0", "shop/pods/web-0/tap", "shop", "web-0"),
            ("ns/bank", "bank/tap", "", "bank"),
        ] {
            let query = query(target).unwrap();
            assert_eq!(query.path(), format!("{PATH_PREFIX}{path}"));
            let message = query.to_message();
            let resource = message.target.unwrap().resource.unwrap();
            assert_eq!((&*resource.namespace, &*resource.name), (namespace, name));
            assert!(message.extract.is_none());
        }
        assert_eq!(query("job/a").unwrap().access_resource(), "jobs/tap");
    }

    #[test]
    fn targets_must_be_one_object_with_pods() {
        for (target, problem) in [
            ("deploy", "as in deploy/NAME; ns/shop taps all pods"),
            ("au/web:80", "authority cannot be tapped"),
            ("all", "all cannot be tapped"),
            ("po/..?x", "not the name of an object"),
        ] {
            let error = query(target).unwrap_err().to_string();
            assert!(error.contains(problem), "{target}: {error}");
        }
    }

    #[test]
    fn each_flag_is_a_condition() {
        let mut query = query("deploy/web").unwrap();
        query.to = Some((Resource::parse("svc/api").unwrap(), "bank".to_owned()));
        query.method = Some("GET".to_owned());
        query.path = Some("/a".to_owned());
        query.with_headers = true;
        let message = query.to_message();
        let Some(MatchKind::All(all)) = message.r#match.unwrap().r#match else {
            panic!("not a list of conditions");
        };
        let kinds: Vec<MatchKind> = all
            .matches
            .into_iter()
            .filter_map(|it| it.r#match)
            .collect();
        let http = |kind| {
            MatchKind::Http(Http {
                r#match: Some(kind),
            })
        };
        let expect = [
            MatchKind::Destinations(ResourceSelection {
                resource: Some(super::message(ResourceKind::Service, "bank", "api")),
                label_selector: String::new(),
            }),
            http(http_match::Match::Method("GET".to_owned())),
            http(http_match::Match::Path("/a".to_owned())),
        ];
        assert_eq!(kinds, expect);
        assert!(message.extract.is_some());
    }
}
