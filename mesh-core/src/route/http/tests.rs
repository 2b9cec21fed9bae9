//! Tables of matches and of their precedence.

use http::{HeaderValue, Request};

use super::*;

fn prefix(path: &str) -> HttpMatch {
    HttpMatch {
        path: Some(PathMatch::Prefix(path.to_owned())),
        ..HttpMatch::default()
    }
}

fn exact(path: &str) -> HttpMatch {
    HttpMatch {
        path: Some(PathMatch::Exact(path.to_owned())),
        ..HttpMatch::default()
    }
}

fn regex(source: &str) -> AnchoredRegex {
    AnchoredRegex::new(source).unwrap()
}

fn query(name: &str, value: &str) -> QueryMatch {
    QueryMatch {
        name: name.to_owned(),
        value: QueryValueMatch::Exact(value.to_owned()),
    }
}

fn request(uri: &str) -> Request<()> {
    Request::builder().uri(uri).body(()).unwrap()
}

fn at(routes: &[Route<HttpMatch, ()>], request: &Request<()>) -> Option<(usize, usize)> {
    find(routes, &RequestHead::from(request)).map(|found| (found.route, found.rule))
}

fn matches(entry: HttpMatch, request: &Request<()>) -> bool {
    at(&[Route::for_tests(&[], vec![vec![entry]])], request).is_some()
}

#[test]
fn host_matches_ignore_case_and_trailing_dot() {
    let check = |host: &str, uri: &str, expect: bool| {
        let found = at(&[Route::for_tests(&[host], vec![vec![]])], &request(uri));
        assert_eq!(found.is_some(), expect, "{host} for {uri}");
    };
    check("a.example", "http://a.example/", true);
    check("a.example", "http://A.EXAMPLE.:8080/", true);
    check("A.Example.", "http://a.example/", true);
    check("a.example", "http://b.example/", false);
    check("a.example", "/", false);
    check("*.example", "http://a.example/", true);
    check("*.example", "http://b.a.example./", true);
    check("*.EXAMPLE", "http://a.Example:80/", true);
    check("*.example", "http://example/", false);
    check("*.example", "http://aexample/", false);
    check("*.b.example", "http://a.example/", false);
    check("[::1]", "http://[::1]:80/", true);
    check("[::1]", "http://[::1]/", true);
}

/// For meaningless authorities, the same result as `http::uri`.
#[test]
fn port_is_parsed_from_authority() {
    for (uri, port) in [
        ("http://a:8080/", Some(8080)),
        ("http://a/", None),
        ("http://[::1]:80/", Some(80)),
        ("http://[::1]/", None),
        ("http://user:1@a:2/", Some(2)),
        ("http://user:1@a/", None),
        ("http://.[::1]:80/", Some(80)),
    ] {
        let request = request(uri);
        assert_eq!(RequestHead::from(&request).port(), port, "{uri}");
        assert_eq!(request.uri().port_u16(), port, "{uri}");
    }
}

#[test]
fn host_header_is_used_without_authority() {
    let routes = [Route::for_tests(&["a.example"], vec![vec![]])];
    let with = |uri: &str, host: &'static str| {
        let mut request = request(uri);
        request
            .headers_mut()
            .insert(HOST, HeaderValue::from_static(host));
        request
    };
    assert_eq!(at(&routes, &with("/", "a.example:80")), Some((0, 0)));
    assert_eq!(at(&routes, &with("http://b.example/", "a.example")), None);
}

#[test]
fn more_specific_host_takes_precedence() {
    let routes = [
        Route::for_tests(&[], vec![vec![exact("/long/path")]]),
        Route::for_tests(&["*.example"], vec![vec![exact("/long/path")]]),
        Route::for_tests(&["*.b.example", "*.example"], vec![vec![prefix("/")]]),
        Route::for_tests(&["a.b.example"], vec![vec![prefix("/")]]),
        Route::for_tests(&["a.b.example"], vec![vec![prefix("/only")]]),
    ];
    let check = |uri: &str, expect: usize| {
        assert_eq!(at(&routes, &request(uri)), Some((expect, 0)), "{uri}");
    };
    check("http://a.b.example/long/path", 3);
    check("http://a.b.example/only/this", 4);
    check("http://c.b.example/long/path", 2);
    check("http://c.example/long/path", 1);
    check("http://other/long/path", 0);
}

#[test]
fn precedence_is_path_then_headers_then_query_then_method() {
    let routes = [
        Route::for_tests(
            &[],
            vec![
                vec![prefix("/")],
                vec![prefix("/a")],
                vec![exact("/a/b")],
                vec![HttpMatch {
                    headers: vec![HeaderMatch::exact("x", "1")],
                    ..prefix("/a")
                }],
                vec![HttpMatch {
                    query: vec![query("q", "1")],
                    ..prefix("/a")
                }],
                vec![HttpMatch {
                    method: Some(Method::PUT),
                    ..prefix("/a")
                }],
                vec![prefix("/z"), exact("/c")],
            ],
        ),
        Route::for_tests(&[], vec![vec![prefix("/a")], vec![prefix("/c")]]),
    ];
    let check = |method: Method, uri: &str, headers: bool, expect: (usize, usize)| {
        let mut request = request(uri);
        *request.method_mut() = method;
        if headers {
            request
                .headers_mut()
                .insert("x", HeaderValue::from_static("1"));
        }
        assert_eq!(at(&routes, &request), Some(expect), "{uri}");
    };
    check(Method::GET, "/", false, (0, 0));
    check(Method::GET, "/a", false, (0, 1));
    check(Method::GET, "/a/b", true, (0, 2));
    check(Method::PUT, "/a/x?q=1", true, (0, 3));
    check(Method::PUT, "/a/x?q=1", false, (0, 4));
    check(Method::PUT, "/a/x?q=2", false, (0, 5));
    check(Method::GET, "/c", false, (0, 6));
    check(Method::GET, "/c/d", false, (1, 1));
}

#[test]
fn rule_without_matches_has_lowest_precedence() {
    let routes = [Route::for_tests(&[], vec![vec![], vec![prefix("/")]])];
    assert_eq!(at(&routes, &request("/x")), Some((0, 1)));
    let routes = [
        Route::for_tests(&[], vec![vec![]]),
        Route::for_tests(&[], vec![]),
    ];
    assert_eq!(at(&routes, &request("/x")), Some((0, 0)));
    assert_eq!(at(&[], &request("/x")), None);
}

#[test]
fn paths_are_compared_decoded() {
    assert!(matches(exact("/a b"), &request("/a%20b")));
    assert!(matches(exact("/a%20b"), &request("/a%20b")));
    assert!(matches(exact("/admin"), &request("/%61dmin")));
    assert!(matches(prefix("/admin"), &request("/%61dmin/x")));
    assert!(!matches(prefix("/a"), &request("/a%2Fb")));
    assert!(!matches(exact("/a"), &request("/A")));
    let by_regex = |source: &str| HttpMatch {
        path: Some(PathMatch::Regex(regex(source))),
        ..HttpMatch::default()
    };
    assert!(matches(by_regex("/v[0-9]+/.*"), &request("/v1/%61")));
    assert!(!matches(by_regex("/v[0-9]"), &request("/v12")));
    assert!(!matches(by_regex("/a|/b"), &request("/a/b")));
    assert!(!matches(by_regex(".*"), &request("/%FF")));
}

#[test]
fn special_request_targets_match_root_prefix() {
    let routes = [Route::for_tests(
        &[],
        vec![vec![prefix("/a")], vec![prefix("/")]],
    )];
    let mut connect = request("example:443");
    *connect.method_mut() = Method::CONNECT;
    assert_eq!(at(&routes, &connect), Some((0, 1)));
    assert_eq!(at(&routes, &request("*")), Some((0, 1)));
}

#[test]
fn header_matches_any_value() {
    let with = |values: &[&[u8]]| {
        let mut request = request("/");
        for value in values {
            request
                .headers_mut()
                .append("x", HeaderValue::from_bytes(value).unwrap());
        }
        request
    };
    let entry = |value: HeaderValueMatch| HttpMatch {
        headers: vec![HeaderMatch {
            name: "X".parse().unwrap(),
            value,
        }],
        ..HttpMatch::default()
    };
    let is_one = || entry(HeaderValueMatch::Exact(HeaderValue::from_static("1")));
    assert!(matches(is_one(), &with(&[b"1"])));
    assert!(matches(is_one(), &with(&[b"2", b"1"])));
    assert!(!matches(is_one(), &with(&[b"12"])));
    assert!(!matches(is_one(), &with(&[])));
    let by_regex = || entry(HeaderValueMatch::Regex(regex("1.*")));
    assert!(matches(by_regex(), &with(&[b"12"])));
    assert!(!matches(by_regex(), &with(&[b"1\xff"])));
    assert!(!matches(by_regex(), &with(&[b"21"])));
}

#[test]
fn query_matches_first_parameter() {
    let entry = |value: QueryValueMatch| HttpMatch {
        query: vec![QueryMatch {
            name: "q x".to_owned(),
            value,
        }],
        ..HttpMatch::default()
    };
    let check = |uri: &str, expect: bool| {
        let value = QueryValueMatch::Exact("a b".to_owned());
        assert_eq!(matches(entry(value), &request(uri)), expect, "{uri}");
        let value = QueryValueMatch::Regex(regex("a.b"));
        assert_eq!(matches(entry(value), &request(uri)), expect, "{uri}");
    };
    check("/?q+x=a+b", true);
    check("/?y&q%20x=a%20b", true);
    check("/?q+x=a+b&q+x=c", true);
    check("/?q+x=c&q+x=a+b", false);
    check("/?q+x=a%FFb", false);
    check("/?q+x", false);
    check("/", false);
}

#[test]
fn matched_prefix_length_is_returned() {
    let check = |matches: Vec<HttpMatch>, uri: &str, expect: Option<usize>| {
        let routes = [Route::for_tests(&[], vec![matches])];
        let request = request(uri);
        let found = find(&routes, &RequestHead::from(&request)).unwrap();
        assert_eq!(found.prefix, expect, "{uri}");
    };
    check(vec![prefix("/a/")], "/a/b", Some(2));
    check(vec![prefix("/a")], "/%61/b", Some(4));
    check(vec![prefix("/")], "/a", Some(0));
    check(vec![prefix("/a"), prefix("/a/b")], "/a/b/c", Some(4));
    check(vec![exact("/a/b"), prefix("/a")], "/a/b", None);
    check(vec![], "/a", None);
}

#[test]
fn distinguishes_paths_depends_on_path_matches() {
    let check = |matches: Vec<HttpMatch>, expect: bool| {
        assert_eq!(
            distinguishes_paths(&Route::for_tests(&[], vec![matches])),
            expect
        );
    };
    check(vec![], false);
    check(vec![prefix("/"), HttpMatch::default()], false);
    check(vec![prefix("/"), prefix("/a")], true);
    check(vec![exact("/")], true);
}

#[test]
fn checked_expression_is_limited_and_matches_like_a_compiled_one() {
    let limit = 64 << 10;
    let checked = AnchoredRegex::checked("/a/[^/]*", limit).unwrap();
    assert_eq!(checked, regex("/a/[^/]*"));
    assert!(checked.is_match("/a/b"));
    assert!(!checked.clone().is_match("/a/b/c"));
    assert!(AnchoredRegex::checked("(", limit).is_err());
    assert!(AnchoredRegex::checked("\\w{100}", limit).is_err());
    assert!(AnchoredRegex::checked("\\w{100}", 8 << 20).is_ok());
}
