//! Header changes, redirect targets and ratios.

use http::{HeaderMap, Request};
use proptest::prelude::*;

use super::*;

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
    check(prefix("/xyz/"), "http://h/foo/", Some(4), "/xyz");
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
