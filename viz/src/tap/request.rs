//! The content of a tap request: its path, its target and its conditions.

use std::fmt;

use mesh_api::linkerd2::tap::TapByResourceRequest;
use mesh_api::linkerd2::tap::tap_by_resource_request::Match;
use mesh_api::linkerd2::viz::Resource;
use mesh_api::tap_conditions::{self, ConditionError};
use mesh_api::tap_request::{self, PATH_PREFIX};
use mesh_core::tap::TapFilter;
use mesh_objects::model::ListedKind;
use tonic::Status;

/// The object whose pods are tapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: ListedKind,
    /// The namespace of the object; the name of a namespace.
    pub(crate) namespace: String,
    /// Empty for a namespace.
    pub(crate) name: String,
}

/// A checked request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TapQuery {
    pub(crate) target: Target,
    /// Which pods of the target; all if it is empty.
    pub(crate) label_selector: String,
    pub(crate) filter: TapFilter,
    pub(crate) with_headers: bool,
    /// Requests per second over all pods.
    pub(crate) max_rps: f32,
}

/// The kinds whose pods can be tapped.
pub(crate) const TARGET_KINDS: [ListedKind; 10] = [
    ListedKind::Namespace,
    ListedKind::Pod,
    ListedKind::ReplicationController,
    ListedKind::Service,
    ListedKind::DaemonSet,
    ListedKind::Deployment,
    ListedKind::ReplicaSet,
    ListedKind::StatefulSet,
    ListedKind::Job,
    ListedKind::CronJob,
];

/// Returns the resource in paths and in access reviews, the plural of the type in messages.
pub(crate) fn resource(kind: ListedKind) -> String {
    format!("{}s", kind.resource_type())
}

fn target_kind(resource_type: &str) -> Option<ListedKind> {
    ListedKind::of_resource_type(resource_type).filter(|kind| TARGET_KINDS.contains(kind))
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            namespace,
            name,
        } = self;
        match kind {
            ListedKind::Namespace => write!(f, "namespaces/{namespace}"),
            _ => write!(f, "{}/{name} in namespace {namespace}", resource(*kind)),
        }
    }
}

impl Target {
    /// Reads the path of a request, with or without `/tap` at its end. Returns whether it ends so.
    pub(crate) fn from_path(path: &str) -> Option<(Self, bool)> {
        let parts: Vec<&str> = path.strip_prefix(PATH_PREFIX)?.split('/').collect();
        let (parts, is_tap) = match parts.as_slice() {
            [parts @ .., "tap"] => (parts, true),
            parts => (parts, false),
        };
        let (kind, namespace, name) = match parts {
            [namespace] => (ListedKind::Namespace, namespace, &""),
            [namespace, resource, name] => {
                let kind = target_kind(resource.strip_suffix('s')?)?;
                let is_valid = kind != ListedKind::Namespace && !name.is_empty();
                (is_valid.then_some(kind)?, namespace, name)
            }
            _ => return None,
        };
        let target = Self {
            kind,
            namespace: (*namespace).to_owned(),
            name: (*name).to_owned(),
        };
        (!namespace.is_empty()).then_some((target, is_tap))
    }

    /// Returns whether it has all names that its path needs.
    pub(crate) fn is_complete(&self) -> bool {
        let has_name = self.kind == ListedKind::Namespace || !self.name.is_empty();
        has_name && !self.namespace.is_empty()
    }

    /// Returns the path of the target's tap.
    pub(crate) fn path(&self) -> String {
        let Self {
            kind,
            namespace,
            name,
        } = self;
        match kind {
            ListedKind::Namespace => format!("{PATH_PREFIX}{namespace}/tap"),
            _ => format!("{PATH_PREFIX}{namespace}/{}/{name}/tap", resource(*kind)),
        }
    }

    /// Returns the object that a message names.
    pub(crate) fn from_message(resource: &Resource) -> Result<Self, Status> {
        let kind = target_kind(&resource.r#type).ok_or_else(|| {
            Status::unimplemented(format!("unimplemented resource type: {}", resource.r#type))
        })?;
        Ok(match kind {
            ListedKind::Namespace => Self {
                kind,
                namespace: resource.name.clone(),
                name: String::new(),
            },
            _ => Self {
                kind,
                namespace: resource.namespace.clone(),
                name: resource.name.clone(),
            },
        })
    }
}

impl TapQuery {
    /// Checks a request. Its path must name its target, because the target of the path is the one
    /// that access was reviewed for.
    pub(crate) fn new(request: &TapByResourceRequest, path: &str) -> Result<Self, Status> {
        let selection = request
            .target
            .as_ref()
            .ok_or_else(|| Status::invalid_argument("TapByResource received nil target"))?;
        let resource = selection.resource.as_ref().ok_or_else(|| {
            Status::invalid_argument("TapByResource received nil target ResourceSelection")
        })?;
        let target = Target::from_message(resource)?;
        if target.path() != path {
            return Err(Status::invalid_argument(format!(
                "tap request body did not match request path: expected {}, got {path}",
                target.path()
            )));
        }
        let max_rps = tap_request::max_rps(request)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Self {
            target,
            label_selector: selection.label_selector.clone(),
            filter: filter(request.r#match.as_ref())?,
            with_headers: tap_request::extracts_headers(request),
            max_rps,
        })
    }

    /// Returns each pod's share of the requests per second, at least one.
    pub(crate) fn rps_per_pod(&self, pods: usize) -> u32 {
        tap_request::rps_per_pod(self.max_rps, pods)
    }
}

/// Converts the conditions.
fn filter(conditions: Option<&Match>) -> Result<TapFilter, Status> {
    tap_conditions::filter(conditions).map_err(|error| match error {
        ConditionError::Unsupported(_) => Status::unimplemented(error.to_string()),
        ConditionError::TooMany(_) | ConditionError::Method(_) => {
            Status::invalid_argument(error.to_string())
        }
    })
}

#[cfg(test)]
mod tests {
    use http::Method;
    use mesh_api::linkerd2::tap::tap_by_resource_request::r#match::{
        Http, Match as MatchKind, Seq, http as http_match,
    };
    use mesh_api::linkerd2::viz::ResourceSelection;
    use mesh_core::tap::TextFilter;
    use tonic::Code;

    use super::*;

    fn target(kind: ListedKind, namespace: &str, name: &str) -> Target {
        Target {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn selection(kind: &str, namespace: &str, name: &str) -> ResourceSelection {
        ResourceSelection {
            resource: Some(Resource {
                namespace: namespace.to_owned(),
                r#type: kind.to_owned(),
                name: name.to_owned(),
            }),
            label_selector: String::new(),
        }
    }

    fn all(matches: Vec<MatchKind>) -> Match {
        let matches = matches
            .into_iter()
            .map(|kind| Match {
                r#match: Some(kind),
            })
            .collect();
        Match {
            r#match: Some(MatchKind::All(Seq { matches })),
        }
    }

    fn http(kind: http_match::Match) -> MatchKind {
        MatchKind::Http(Http {
            r#match: Some(kind),
        })
    }

    #[test]
    fn paths_name_targets() {
        let table = [
            (
                "shop/tap",
                Some((target(ListedKind::Namespace, "shop", ""), true)),
            ),
            (
                "shop",
                Some((target(ListedKind::Namespace, "shop", ""), false)),
            ),
            (
                "shop/deployments/web/tap",
                Some((target(ListedKind::Deployment, "shop", "web"), true)),
            ),
            // An object that is called tap.
            (
                "shop/pods/tap/tap",
                Some((target(ListedKind::Pod, "shop", "tap"), true)),
            ),
            ("shop/deployments//tap", None),
            ("shop/namespaces/web/tap", None),
            ("shop/secrets/web/tap", None),
            ("/tap", None),
            ("shop/pods/web/tap/tap", None),
        ];
        for (path, expected) in table {
            let found = Target::from_path(&format!("{PATH_PREFIX}{path}"));
            assert_eq!(found, expected, "{path}");
            if let Some((target, true)) = found {
                assert_eq!(target.path(), format!("{PATH_PREFIX}{path}"));
            }
        }
        assert_eq!(Target::from_path("/apis/tap.linkerd.io/v1alpha1"), None);
    }

    #[test]
    fn request_is_converted() {
        let request = TapByResourceRequest {
            target: Some(selection("deployment", "shop", "web")),
            r#match: Some(all(vec![
                MatchKind::Destinations(selection("job", "other", "import")),
                MatchKind::Destinations(selection("namespace", "", "third")),
                http(http_match::Match::Method("get".to_owned())),
                http(http_match::Match::Scheme("HTTP".to_owned())),
                http(http_match::Match::Authority("a:80".to_owned())),
                http(http_match::Match::Path("/p".to_owned())),
            ])),
            max_rps: 0.0,
            extract: None,
        };
        let path = format!("{PATH_PREFIX}shop/deployments/web/tap");
        let query = TapQuery::new(&request, &path).unwrap();
        let label = |name: &str, value: &str| TapFilter::DestinationLabel {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let expected = vec![
            label("k8s_job", "import"),
            label("namespace", "other"),
            label("namespace", "third"),
            TapFilter::Method(Method::GET),
            TapFilter::Scheme("http".to_owned()),
            TapFilter::Authority(TextFilter::Exact("a:80".to_owned())),
            TapFilter::Path(TextFilter::Prefix("/p".to_owned())),
        ];
        assert_eq!(query.filter, TapFilter::All(expected));
        assert!(!query.with_headers);
        assert_eq!(
            [1, 3, 1000].map(|pods| query.rps_per_pod(pods)),
            [100, 33, 1]
        );
    }

    #[test]
    fn invalid_requests_are_refused() {
        let path = format!("{PATH_PREFIX}shop/pods/web/tap");
        let valid = TapByResourceRequest {
            target: Some(selection("pod", "shop", "web")),
            ..TapByResourceRequest::default()
        };
        assert!(TapQuery::new(&valid, &path).is_ok());
        let with_match = |conditions: Match| TapByResourceRequest {
            r#match: Some(conditions),
            ..valid.clone()
        };
        let nested = all(vec![MatchKind::Not(Box::default())]);
        let any = Match {
            r#match: Some(MatchKind::Any(Seq::default())),
        };
        let many = all(vec![
            MatchKind::Destinations(ResourceSelection::default());
            101
        ]);
        let table = [
            (TapByResourceRequest::default(), Code::InvalidArgument),
            (
                TapByResourceRequest {
                    target: Some(ResourceSelection::default()),
                    ..valid.clone()
                },
                Code::InvalidArgument,
            ),
            (
                TapByResourceRequest {
                    target: Some(selection("secret", "shop", "web")),
                    ..valid.clone()
                },
                Code::Unimplemented,
            ),
            // Not the object of the path.
            (
                TapByResourceRequest {
                    target: Some(selection("pod", "shop", "db")),
                    ..valid.clone()
                },
                Code::InvalidArgument,
            ),
            (
                TapByResourceRequest {
                    max_rps: -1.0,
                    ..valid.clone()
                },
                Code::InvalidArgument,
            ),
            (
                TapByResourceRequest {
                    max_rps: f32::NAN,
                    ..valid.clone()
                },
                Code::InvalidArgument,
            ),
            (with_match(nested), Code::Unimplemented),
            (with_match(any), Code::Unimplemented),
            (with_match(many), Code::InvalidArgument),
            (
                with_match(all(vec![http(http_match::Match::Method("a b".to_owned()))])),
                Code::InvalidArgument,
            ),
        ];
        for (request, code) in table {
            let error = TapQuery::new(&request, &path).unwrap_err();
            assert_eq!(error.code(), code, "{error}");
        }
    }
}
