//! gRPC matches, and the rule that matches a gRPC call. A call is `POST /service/method`.

use std::sync::Arc;

use super::http::{HeaderMatch, RequestHead};
use super::{Route, RuleIndex};

/// A match of calls; all present parts must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GrpcMatch {
    /// The service, with its package.
    pub service: Option<Arc<str>>,
    /// The method, without the service.
    pub method: Option<Arc<str>>,
    /// Required headers.
    pub headers: Vec<HeaderMatch>,
}

/// The precedence of a match. The fields compare in this order: length of the service's name, of
/// the method's name, headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct MatchPrecedence {
    service: usize,
    method: usize,
    headers: usize,
}

/// Returns the rule that applies to the call; `None` for requests that are not gRPC calls.
pub fn find<R>(routes: &[Route<GrpcMatch, R>], request: &RequestHead<'_>) -> Option<RuleIndex> {
    if request.method != http::Method::POST {
        return None;
    }
    let (service, method) = request.path.strip_prefix('/')?.split_once('/')?;
    let rank = |entry: &GrpcMatch| entry.rank(service, method, request.headers);
    let (_, route, rule) = super::find(
        routes.iter().enumerate(),
        request.host(),
        MatchPrecedence::default(),
        rank,
    )?;
    Some(RuleIndex {
        route,
        rule,
        prefix: None,
    })
}

impl GrpcMatch {
    fn rank(
        &self,
        service: &str,
        method: &str,
        headers: &http::HeaderMap,
    ) -> Option<MatchPrecedence> {
        let length = |want: &Option<Arc<str>>, have: &str| match want {
            None => Some(0),
            Some(want) if **want == *have => Some(want.len()),
            Some(_) => None,
        };
        let rank = MatchPrecedence {
            service: length(&self.service, service)?,
            method: length(&self.method, method)?,
            headers: self.headers.len(),
        };
        self.headers
            .iter()
            .all(|entry| entry.is_match(headers))
            .then_some(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(service: &str, method: &str, headers: &[(&str, &str)]) -> GrpcMatch {
        let name = |text: &str| (!text.is_empty()).then(|| Arc::from(text));
        GrpcMatch {
            service: name(service),
            method: name(method),
            headers: headers
                .iter()
                .map(|(name, value)| HeaderMatch::exact(name, value))
                .collect(),
        }
    }

    fn at(routes: &[Route<GrpcMatch, ()>], method: &str, uri: &str) -> Option<(usize, usize)> {
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header("k", "v")
            .body(())
            .unwrap();
        find(routes, &RequestHead::from(&request)).map(|found| (found.route, found.rule))
    }

    #[test]
    fn most_specific_match_wins() {
        let routes = [
            Route::for_tests(&[], vec![vec![], vec![entry("pkg.Svc", "", &[])]]),
            Route::for_tests(
                &[],
                vec![
                    vec![entry("pkg.Svc", "Get", &[])],
                    vec![entry("pkg.Svc", "Get", &[("k", "v")])],
                    vec![entry("", "Longest", &[])],
                ],
            ),
            Route::for_tests(&["other"], vec![vec![]]),
        ];
        assert_eq!(at(&routes, "POST", "http://h/pkg.Svc/Get"), Some((1, 1)));
        assert_eq!(at(&routes, "POST", "http://h/pkg.Svc/Put"), Some((0, 1)));
        assert_eq!(
            at(&routes, "POST", "http://h/pkg.Svc/Longest"),
            Some((0, 1))
        );
        assert_eq!(at(&routes, "POST", "http://h/o/Longest"), Some((1, 2)));
        assert_eq!(at(&routes, "POST", "http://h/o/Put"), Some((0, 0)));
        assert_eq!(
            at(&routes, "POST", "http://other/pkg.Svc/Get"),
            Some((2, 0))
        );
    }

    #[test]
    fn only_grpc_calls_are_matched() {
        let routes = [Route::for_tests(&[], vec![vec![]])];
        for (method, uri) in [
            ("GET", "http://h/pkg.Svc/Get"),
            ("POST", "http://h/pkg.Svc"),
            ("POST", "http://h/"),
        ] {
            assert_eq!(at(&routes, method, uri), None, "{method} {uri}");
        }
        let exact = [Route::for_tests(
            &[],
            vec![vec![entry("pkg.Svc", "Get", &[])]],
        )];
        for uri in [
            "http://h/pkg.svc/Get",
            "http://h/pkg.Svc/Get/",
            "http://h//pkg.Svc/Get",
        ] {
            assert_eq!(at(&exact, "POST", uri), None, "{uri}");
        }
    }
}
