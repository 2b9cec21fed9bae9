//! Profiles of destinations (`GetProfile`): the ServiceProfile, or the single endpoint of a pod's
//! address.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::meta::Meta;
use crate::resilience::RetryBudget;

/// The profile of one destination.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The service's name, absent when the destination is not a service.
    pub fqn: Option<Arc<str>>,
    /// Whether the traffic is opaque.
    pub opaque: bool,
    /// The routes, in order of precedence. The controller shares them among all clients.
    pub routes: Arc<[ProfileRoute]>,
    /// The retry budget of the routes.
    pub retry_budget: Option<RetryBudget>,
    /// Splits the traffic among other authorities (`name:port`) by non-zero weights.
    pub overrides: Vec<WeightedAuthority>,
    /// The endpoint when the destination is the address of a pod or workload. Includes the labels
    /// of its set.
    pub endpoint: Option<Endpoint>,
    /// The object that the destination belongs to.
    pub parent: Option<Meta>,
    /// The workload of the client.
    pub source: Option<Meta>,
    /// The UID of the Service or pod that the address belongs to.
    pub uid: Option<Arc<str>>,
}

/// A part of a traffic split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedAuthority {
    /// The authority, `name:port`.
    pub authority: Arc<str>,
    /// The weight relative to the others.
    pub weight: u32,
}

/// A route of a ServiceProfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileRoute {
    /// The requests of the route.
    pub condition: RequestMatch,
    /// Classes of responses, in order of precedence.
    pub response_classes: Vec<ResponseClass>,
    /// Metric labels, without the `rt_` prefix.
    pub labels: BTreeMap<String, String>,
    /// Whether failed requests are retried.
    pub retryable: bool,
    /// Time limit of a request.
    pub timeout: Option<Duration>,
}

/// A condition on requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestMatch {
    /// All of the conditions.
    All(Vec<RequestMatch>),
    /// One of the conditions.
    Any(Vec<RequestMatch>),
    /// The opposite of the condition.
    Not(Box<RequestMatch>),
    /// The path matches the regular expression.
    Path(crate::route::AnchoredRegex),
    /// The request has this method.
    Method(http::Method),
}

/// A class of responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseClass {
    /// The responses of the class.
    pub condition: ResponseMatch,
    /// Whether they count as failures.
    pub is_failure: bool,
}

/// A condition on responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseMatch {
    /// All of the conditions.
    All(Vec<ResponseMatch>),
    /// One of the conditions.
    Any(Vec<ResponseMatch>),
    /// The opposite of the condition.
    Not(Box<ResponseMatch>),
    /// The status is in the range, including both bounds.
    Status {
        /// The lowest status.
        min: u16,
        /// The highest status.
        max: u16,
    },
}

impl Profile {
    /// Returns whether requests follow the profile, and not the routes of a policy.
    pub fn replaces_routes(&self) -> bool {
        !self.routes.is_empty() || !self.overrides.is_empty()
    }

    /// Returns the first route whose condition the request satisfies.
    pub fn route(&self, method: &http::Method, path: &str) -> Option<&ProfileRoute> {
        self.routes
            .iter()
            .find(|route| route.condition.is_match(method, path))
    }
}

impl ResponseClass {
    /// Whether a response is a failure, by the first class that it matches; `None` if it matches
    /// none, so that the default applies.
    pub fn classify(classes: &[Self], status: http::StatusCode) -> Option<bool> {
        let class = classes
            .iter()
            .find(|class| class.condition.is_match(status));
        class.map(|class| class.is_failure)
    }
}

impl RequestMatch {
    /// Whether the request satisfies the condition. The path is not decoded.
    pub fn is_match(&self, method: &http::Method, path: &str) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.is_match(method, path)),
            Self::Any(parts) => parts.iter().any(|part| part.is_match(method, path)),
            Self::Not(part) => !part.is_match(method, path),
            Self::Path(regex) => regex.is_match(path),
            Self::Method(want) => want == method,
        }
    }
}

impl ResponseMatch {
    /// Whether the response satisfies the condition.
    pub fn is_match(&self, status: http::StatusCode) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.is_match(status)),
            Self::Any(parts) => parts.iter().any(|part| part.is_match(status)),
            Self::Not(part) => !part.is_match(status),
            Self::Status { min, max } => (*min..=*max).contains(&status.as_u16()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, StatusCode};

    use super::*;
    use crate::route::AnchoredRegex;

    fn path(regex: &str) -> RequestMatch {
        RequestMatch::Path(AnchoredRegex::new(regex).unwrap())
    }

    fn route(
        name: &str,
        condition: RequestMatch,
        response_classes: Vec<ResponseClass>,
    ) -> ProfileRoute {
        ProfileRoute {
            condition,
            response_classes,
            labels: BTreeMap::from([("route".to_owned(), name.to_owned())]),
            retryable: false,
            timeout: None,
        }
    }

    #[test]
    fn first_matching_route_is_returned() {
        let get = RequestMatch::Method(Method::GET);
        let profile = Profile {
            routes: vec![
                route(
                    "get a",
                    RequestMatch::All(vec![get.clone(), path("/a")]),
                    vec![],
                ),
                route(
                    "a or b",
                    RequestMatch::Any(vec![path("/a"), path("/b/.*")]),
                    vec![],
                ),
                route("not get", RequestMatch::Not(Box::new(get)), vec![]),
                route("nothing", RequestMatch::Any(vec![]), vec![]),
                route("everything", RequestMatch::All(vec![]), vec![]),
            ]
            .into(),
            ..Profile::default()
        };
        let check = |method: Method, path: &str, expect: &str| {
            assert_eq!(
                profile.route(&method, path).unwrap().labels["route"],
                expect
            );
        };
        check(Method::GET, "/a", "get a");
        check(Method::PUT, "/a", "a or b");
        check(Method::GET, "/b/1", "a or b");
        check(Method::PUT, "/a/1", "not get");
        check(Method::GET, "/a/1", "everything");
    }

    #[test]
    fn first_matching_response_class_decides() {
        let class = |condition, is_failure| ResponseClass {
            condition,
            is_failure,
        };
        let status = |min, max| ResponseMatch::Status { min, max };
        let classes = [
            class(status(404, 404), false),
            class(
                ResponseMatch::All(vec![
                    status(400, 599),
                    ResponseMatch::Not(Box::new(status(501, 501))),
                ]),
                true,
            ),
            class(ResponseMatch::Any(vec![]), true),
        ];
        let check = |status: u16, expect: Option<bool>| {
            let status = StatusCode::from_u16(status).unwrap();
            let class = ResponseClass::classify(&classes, status);
            assert_eq!(class, expect, "{status}");
        };
        check(200, None);
        check(404, Some(false));
        check(403, Some(true));
        check(500, Some(true));
        check(501, None);
        check(399, None);
    }
}
