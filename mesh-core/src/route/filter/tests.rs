//! Header changes, redirect targets and ratios.

use http::{HeaderMap, Request};
use proptest::prelude::*;

use super::*;
use crate::backend::BackendTarget;
use crate::meta::Meta;
use crate::route::cors::CorsSettings;

fn pairs(pairs: &[(&str, &str)]) -> Vec<(HeaderName, HeaderValue)> {
    pairs
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect()
}

#[test]
fn headers_are_added_then_set_then_removed() {
    let mut headers: HeaderMap = pairs(&[("a", "1"), ("b", "1"), ("c", "1")])
        .into_iter()
        .collect();
    let modifier = HeaderModifier {
        add: pairs(&[("a", "2"), ("b", "2"), ("d", "2")]),
        set: pairs(&[("b", "3"), ("d", "3"), ("e", "3")]),
        remove: vec!["c".parse().unwrap(), "e".parse().unwrap()],
    };
    modifier.apply(&mut headers);
    let mut seen: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
        .collect();
    seen.sort();
    assert_eq!(seen, ["a=1", "a=2", "b=3", "d=3"]);
}

/// Returns the status and target for a request of `uri` as text, or the error.
fn target(redirect: &Redirect, uri: &str, prefix: Option<usize>) -> Result<Option<String>, String> {
    let request = Request::builder().uri(uri).body(()).unwrap();
    redirect
        .target(&RequestHead::from(&request), prefix)
        .map(|target| target.map(|(status, uri)| format!("{} {uri}", status.as_u16())))
        .map_err(|error| error.to_string())
}

#[test]
fn redirect_replaces_host_port_and_scheme() {
    let check = |redirect: Redirect, uri: &str, expect: Option<&str>| {
        let seen = target(&redirect, uri, None).unwrap();
        assert_eq!(seen.as_deref(), expect, "{redirect:?} of {uri}");
    };
    let to = |scheme: Option<Scheme>, host: &str, port: Option<u16>| Redirect {
        scheme,
        host: (!host.is_empty()).then(|| host.into()),
        port,
        ..Redirect::default()
    };
    let https = || Some(Scheme::HTTPS);
    check(
        to(https(), "", None),
        "http://a.example/x?y=1",
        Some("301 https://a.example/x?y=1"),
    );
    check(
        to(https(), "", None),
        "http://a.example:8080/x",
        Some("301 https://a.example/x"),
    );
    check(
        to(https(), "", Some(443)),
        "http://a.example:8080/x",
        Some("301 https://a.example/x"),
    );
    check(
        to(https(), "", Some(8443)),
        "http://a.example:8080/x",
        Some("301 https://a.example:8443/x"),
    );
    check(
        Redirect {
            status: Some(StatusCode::FOUND),
            ..to(None, "b.example", None)
        },
        "http://a.example:8080/x",
        Some("302 http://b.example:8080/x"),
    );
    check(
        to(None, "b.example", Some(80)),
        "http://a.example:8080/x",
        Some("301 http://b.example/x"),
    );
    check(
        to(None, "b.example", None),
        "http://[::1]:8080/x",
        Some("301 http://b.example:8080/x"),
    );
    check(
        to(None, "", Some(81)),
        "http://[::1]/x",
        Some("301 http://[::1]:81/x"),
    );
    for nowhere in ["http://a.example/x", "http://A.example:80/x"] {
        check(to(None, "a.example", None), nowhere, None);
    }
}

#[test]
fn redirect_that_names_only_a_status_redirects_to_the_same_uri() {
    let redirect = Redirect {
        status: Some(StatusCode::SEE_OTHER),
        ..Redirect::default()
    };
    let seen = target(&redirect, "http://a.example:8080/x?y=1", None).unwrap();
    assert_eq!(seen.as_deref(), Some("303 http://a.example:8080/x?y=1"));
}

#[test]
fn redirect_replaces_path_or_prefix() {
    let check = |path: PathModifier, uri: &str, prefix: Option<usize>, expect: &str| {
        let redirect = Redirect {
            path: Some(path),
            ..Redirect::default()
        };
        let seen = target(&redirect, uri, prefix).unwrap().unwrap();
        assert_eq!(
            seen,
            format!("301 http://h{expect}"),
            "{redirect:?} of {uri}"
        );
    };
    let prefix = |path: &str| PathModifier::Prefix(path.into());
    check(
        PathModifier::Full("/new".into()),
        "http://h/x?q",
        None,
        "/new?q",
    );
    // The table of the Gateway API.
    check(prefix("/xyz"), "http://h/foo/bar", Some(4), "/xyz/bar");
    check(prefix("/xyz/"), "http://h/foo/bar", Some(4), "/xyz/bar");
    check(prefix("/xyz"), "http://h/foo", Some(4), "/xyz");
    check(prefix("/xyz/"), "http://h/foo/", Some(4), "/xyz/");
    check(prefix("/"), "http://h/foo/bar", Some(4), "/bar");
    check(prefix(""), "http://h/foo/bar", Some(4), "/bar");
    check(prefix("/"), "http://h/foo", Some(4), "/");
    check(
        prefix("/xyz"),
        "http://h/foo/bar?q=1",
        Some(0),
        "/xyz/foo/bar?q=1",
    );
}

#[test]
fn redirect_without_valid_target_fails() {
    let prefix = Redirect {
        path: Some(PathModifier::Prefix("/x".into())),
        ..Redirect::default()
    };
    let error = target(&prefix, "http://h/a", None).unwrap_err();
    assert!(error.contains("matched no prefix"), "{error}");
    let error = target(&Redirect::default(), "/a", None).unwrap_err();
    assert!(error.contains("without a host"), "{error}");
    let hostile = Redirect {
        host: Some("evil.example/\r\nx".into()),
        ..Redirect::default()
    };
    let error = target(&hostile, "http://h/a", None).unwrap_err();
    assert!(error.contains("invalid target"), "{error}");
}

/// Returns the URI that is forwarded for a request of `uri`, or the error.
fn rewritten(rewrite: &UrlRewrite, uri: &str, prefix: Option<usize>) -> Result<String, String> {
    let uri = uri.parse().unwrap();
    let rewritten = rewrite.apply(&uri, prefix);
    rewritten
        .map(|uri| uri.to_string())
        .map_err(|error| error.to_string())
}

fn rewrite_path(path: PathModifier) -> UrlRewrite {
    UrlRewrite {
        path: Some(path),
        ..UrlRewrite::default()
    }
}

/// The table of the Gateway API, with requests that have a query too.
#[test]
fn rewritten_prefix_follows_the_table_of_the_gateway_api() {
    for (requested, matched, replacement, expected) in [
        ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
        ("/foo", "/foo", "/xyz", "/xyz"),
        ("/foo/", "/foo", "/xyz", "/xyz/"),
        ("/foo/bar", "/foo", "", "/bar"),
        ("/foo/", "/foo", "", "/"),
        ("/foo", "/foo", "", "/"),
        ("/foo/", "/foo", "/", "/"),
        ("/foo", "/foo", "/", "/"),
        ("/foo", "/", "/xyz", "/xyz/foo"),
        ("/", "/", "/xyz", "/xyz/"),
        ("/foo//bar", "/foo", "/xyz", "/xyz//bar"),
    ] {
        let prefix = super::super::path::length_of_prefix(requested, matched);
        assert!(prefix.is_some(), "{matched} of {requested}");
        let rewrite = rewrite_path(PathModifier::Prefix(replacement.into()));
        for query in ["", "?q=/foo"] {
            let seen = rewritten(&rewrite, &format!("http://h{requested}{query}"), prefix);
            let expected = format!("http://h{expected}{query}");
            assert_eq!(seen, Ok(expected), "{requested} {matched} {replacement:?}");
        }
    }
}

#[test]
fn rewrite_replaces_full_path_and_host() {
    let rewrite = UrlRewrite {
        host: Some("b.example".into()),
        path: Some(PathModifier::Full("/new".into())),
    };
    let seen = rewritten(&rewrite, "http://a.example:8080/old/x?q=1", None);
    assert_eq!(seen, Ok("http://b.example/new?q=1".to_owned()));
    let host = UrlRewrite {
        path: None,
        ..rewrite
    };
    let seen = rewritten(&host, "/old?q", Some(4));
    assert_eq!(seen, Ok("http://b.example/old?q".to_owned()));
    assert_eq!(
        rewritten(&host, "http://a.example/*", None),
        Ok("http://b.example/*".to_owned())
    );
    let nothing = UrlRewrite::default();
    let same = "http://a.example:8080/old?q";
    assert_eq!(rewritten(&nothing, same, None), Ok(same.to_owned()));
}

#[test]
fn rewrite_without_valid_uri_fails() {
    let prefix = rewrite_path(PathModifier::Prefix("/x".into()));
    let error = rewritten(&prefix, "http://h/a", None).unwrap_err();
    assert!(error.contains("matched no prefix"), "{error}");
    // A prefix of another path, as after an earlier change.
    let error = rewritten(&prefix, "http://h/a", Some(9)).unwrap_err();
    assert!(error.contains("matched no prefix"), "{error}");
    for bad in ["/a?b", "/a#b", "/a b", "/a\r\nb", "a", "", "//h?"] {
        let full = rewrite_path(PathModifier::Full(bad.into()));
        let error = rewritten(&full, "http://h/a", None).unwrap_err();
        assert!(error.contains("is not a path"), "{bad:?}: {error}");
    }
    for without_path in ["h:443", "*"] {
        let full = rewrite_path(PathModifier::Full("/a".into()));
        let error = rewritten(&full, without_path, None).unwrap_err();
        assert_eq!(error, "the request has no path", "{without_path}");
    }
    let host = UrlRewrite {
        host: Some("b.example".into()),
        path: None,
    };
    let error = rewritten(&host, "h:443", None).unwrap_err();
    assert_eq!(error, "the request has no path");
    for bad in ["user@h", "h/x", "h x", ""] {
        let host = UrlRewrite {
            host: Some(bad.into()),
            ..UrlRewrite::default()
        };
        let error = rewritten(&host, "http://h/a", None).unwrap_err();
        assert!(error.contains("is not a host"), "{bad:?}: {error}");
    }
}

#[test]
fn ratio_includes_its_share_of_draws() {
    let ratio = |numerator, denominator| Ratio {
        numerator,
        denominator,
    };
    for draw in [0, 1, u32::MAX / 2, u32::MAX] {
        assert!(!ratio(0, 7).includes(draw));
        assert!(ratio(7, 7).includes(draw));
        assert!(ratio(9, 7).includes(draw));
        assert!(ratio(0, 0).includes(draw));
    }
    assert!(ratio(1, 2).includes(u32::MAX / 2));
    assert!(!ratio(1, 2).includes(u32::MAX / 2 + 1));
}

/// Linkerd's proxies apply the filters that Linkerd's API has, and fail requests of a filter that
/// is not supported.
#[test]
fn filters_beyond_linkerd_and_left_out_ones_are_named() {
    let cors = Cors::new(CorsSettings::default()).unwrap();
    let mirror = RequestMirror {
        backend: Arc::new(Backend {
            meta: Meta::new_default("mirror"),
            target: BackendTarget::None,
        }),
        ratio: Ratio::ALL,
    };
    let response = || Filter::ResponseHeaders(HeaderModifier::default());
    let delay = Filter::Delay {
        duration: Duration::from_secs(1),
        ratio: Ratio::ALL,
    };
    let http_failure = Filter::InjectHttpFailure {
        status: StatusCode::TOO_MANY_REQUESTS,
        message: "busy".into(),
        ratio: Ratio::ALL,
    };
    for (filter, http, grpc, by_server, by_linkerd) in [
        (
            Filter::UrlRewrite(UrlRewrite::default()),
            "URLRewrite",
            "URLRewrite",
            false,
            false,
        ),
        (response(), "", "ResponseHeaderModifier", true, false),
        (
            Filter::RequestMirror(mirror),
            "RequestMirror",
            "RequestMirror",
            false,
            false,
        ),
        (Filter::Cors(Arc::new(cors)), "CORS", "CORS", false, false),
        (
            delay,
            "ExtensionRef to a delay",
            "ExtensionRef to a delay",
            false,
            true,
        ),
        (
            Filter::RequestHeaders(HeaderModifier::default()),
            "",
            "",
            false,
            false,
        ),
        (Filter::Redirect(Redirect::default()), "", "", false, false),
        (http_failure, "", "", false, false),
        (
            Filter::InternalError("unknown".into()),
            "",
            "",
            false,
            false,
        ),
    ] {
        let beyond = |requests| filter.type_beyond_linkerd(requests).unwrap_or_default();
        assert_eq!(beyond(RequestKind::Http), http, "{filter:?}");
        assert_eq!(beyond(RequestKind::Grpc), grpc, "{filter:?}");
        let left_out = [Proxies::OfServer, Proxies::Linkerd].map(|by| filter.left_out(by));
        let is_left_out = left_out.map(|clause| clause.is_some_and(|it| it.contains("do not")));
        assert_eq!(is_left_out, [by_server, by_linkerd], "{filter:?}");
    }
}

proptest! {
    /// Uniformly distributed draws are included in the given share of cases.
    #[test]
    fn ratios_are_exact(numerator in 0u32..=64, denominator in 1u32..=64) {
        let ratio = Ratio { numerator, denominator };
        let draws = denominator * 16;
        let step = (u64::from(u32::MAX) + 1) / u64::from(draws);
        let included = (0..draws)
            .filter(|i| ratio.includes(u32::try_from(u64::from(*i) * step + step / 2).unwrap()))
            .count();
        prop_assert_eq!(included, numerator.min(denominator) as usize * 16);
    }
}
