//! What `GetProfile` tells about a destination: the ServiceProfile, or the single endpoint behind a
//! pod's address.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{endpoint::Endpoint, meta::Meta, resilience::RetryBudget};

/// The profile of one destination.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The service's name, absent when the destination is no service.
    pub fqn: Option<Arc<str>>,
    pub opaque: bool,
    pub routes: Vec<ProfileRoute>,
    pub retry_budget: Option<RetryBudget>,
    /// Weighted split of the traffic among other authorities (`name:port`), none of weight 0.
    pub overrides: Vec<WeightedAuthority>,
    /// The endpoint itself when the destination is a pod or workload address. Its set labels are
    /// merged in.
    pub endpoint: Option<Endpoint>,
    pub parent: Option<Meta>,
    pub source: Option<Meta>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedAuthority {
    pub authority: Arc<str>,
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRoute {
    pub condition: RequestMatch,
    pub response_classes: Vec<ResponseClass>,
    /// Without the `rt_` prefix.
    pub labels: BTreeMap<String, String>,
    pub retryable: bool,
    pub timeout: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestMatch {
    All(Vec<RequestMatch>),
    Any(Vec<RequestMatch>),
    Not(Box<RequestMatch>),
    /// Anchored regular expression over the path.
    Path(crate::route::AnchoredRegex),
    Method(http::Method),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseClass {
    pub condition: ResponseMatch,
    pub is_failure: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseMatch {
    All(Vec<ResponseMatch>),
    Any(Vec<ResponseMatch>),
    Not(Box<ResponseMatch>),
    Status { min: u16, max: u16 },
}

impl Profile {
    /// The first route whose condition the request meets.
    pub fn route(&self, method: &http::Method, path: &str) -> Option<&ProfileRoute> {
        self.routes
            .iter()
            .find(|route| route.condition.is_match(method, path))
    }
}

impl ProfileRoute {
    /// Whether a response counts as failed: by the first class it falls in, and by its status where
    /// it falls in none.
    pub fn is_failure(&self, status: http::StatusCode) -> bool {
        self.response_classes
            .iter()
            .find(|class| class.condition.is_match(status))
            .map_or(status.is_server_error(), |class| class.is_failure)
    }
}

impl RequestMatch {
    /// The path is matched as it was sent.
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
    fn the_first_route_whose_condition_is_met() {
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
            ],
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
    fn response_classes() {
        let class = |condition, is_failure| ResponseClass {
            condition,
            is_failure,
        };
        let status = |min, max| ResponseMatch::Status { min, max };
        let route = route(
            "test",
            RequestMatch::All(vec![]),
            vec![
                class(status(404, 404), false),
                class(
                    ResponseMatch::All(vec![
                        status(400, 599),
                        ResponseMatch::Not(Box::new(status(501, 501))),
                    ]),
                    true,
                ),
                class(ResponseMatch::Any(vec![]), true),
            ],
        );
        let check = |status: u16, expect: bool| {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(route.is_failure(status), expect, "{status}");
        };
        check(200, false);
        check(404, false);
        check(403, true);
        check(500, true);
        check(501, true);
        check(399, false);
    }
}
