//! Matching origins, responses with their headers, and invalid settings.

use super::*;

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn allowing(origins: &[&str]) -> CorsSettings {
    CorsSettings {
        allow_origins: texts(origins),
        max_age: 5,
        ..CorsSettings::default()
    }
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let pairs = pairs.iter().map(|(name, value)| {
        let name: HeaderName = name.parse().unwrap();
        (name, HeaderValue::from_str(value).unwrap())
    });
    pairs.collect()
}

/// Returns the headers of the action, one per line, after `respond` or `forward`.
fn action(settings: &CorsSettings, method: &str, request: &[(&str, &str)]) -> String {
    let cors = Cors::new(settings.clone()).unwrap();
    let (what, headers) = match cors.action(&method.parse().unwrap(), &headers(request)) {
        None => return "none".to_owned(),
        Some(CorsAction::Respond(headers)) => ("respond", headers),
        Some(CorsAction::Forward(headers)) => ("forward", headers),
    };
    let mut lines: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    lines.insert(0, what.to_owned());
    lines.join("\n")
}

#[test]
fn origins_match_by_scheme_host_and_port() {
    for (allowed, origin, matches) in [
        ("https://a.example", "https://a.example", true),
        ("https://A.example", "HTTPS://a.EXAMPLE", true),
        ("https://a.example", "https://a.example:443", true),
        ("https://a.example:443", "https://a.example", true),
        ("http://a.example", "http://a.example:80", true),
        ("https://a.example", "http://a.example", false),
        ("https://a.example", "https://a.example:8443", false),
        ("https://a.example:8443", "https://a.example:8443", true),
        ("https://a.example", "https://b.a.example", false),
        ("https://*.example", "https://a.example", true),
        ("https://*.example", "https://b.a.example", true),
        ("https://*.example", "https://.example", false),
        ("https://*.example", "https://example", false),
        ("https://*.example", "https://a.example.test", false),
        ("https://*.example:8443", "https://a.example:8443", true),
        ("https://*-shop.example", "https://my-shop.example", true),
        ("https://*", "https://a.example", true),
        ("https://*", "http://a.example", false),
        ("https://*:8443", "https://a.example:8443", true),
        ("http://[::1]:80", "http://[::1]", true),
        ("https://a.example", "null", false),
        ("https://a.example", "https://a.example/", false),
        ("https://a.example", "https://user@a.example", false),
        ("https://*.example", "https://*.example", false),
        ("https://a.example", "", false),
    ] {
        let seen = action(&allowing(&[allowed]), "GET", &[("origin", origin)]);
        let allows = format!("access-control-allow-origin: {origin}");
        assert_eq!(
            seen.contains(&allows),
            matches,
            "{allowed} {origin}: {seen}"
        );
        assert!(seen.contains("vary: origin"), "{seen}");
    }
    let not_ascii = HeaderValue::from_bytes(b"https://a.example\xff").unwrap();
    let mut request = HeaderMap::new();
    request.insert(ORIGIN, not_ascii);
    let cors = Cors::new(allowing(&["https://a.example"])).unwrap();
    let Some(CorsAction::Forward(response)) = cors.action(&Method::GET, &request) else {
        panic!("it is forwarded");
    };
    assert_eq!(response.len(), 1, "{response:?}");
}

#[test]
fn request_of_the_same_origin_is_left_alone() {
    let requested = [("access-control-request-method", "PUT")];
    assert_eq!(action(&allowing(&["*"]), "OPTIONS", &requested), "none");
    assert_eq!(action(&allowing(&["*"]), "GET", &[]), "none");
}

#[test]
fn preflight_request_gets_a_response_with_what_is_allowed() {
    let settings = CorsSettings {
        allow_methods: texts(&["GET", "DELETE"]),
        allow_headers: texts(&["x-a", "X-B"]),
        expose_headers: texts(&["x-c"]),
        max_age: 60,
        ..allowing(&["https://a.example", "https://*.b.example"])
    };
    let request = |origin| {
        let requested = ("access-control-request-method", "DELETE");
        action(&settings, "OPTIONS", &[("origin", origin), requested])
    };
    assert_eq!(
        request("https://x.b.example"),
        "respond\n\
         access-control-allow-headers: x-a, X-B\n\
         access-control-allow-methods: GET, DELETE\n\
         access-control-allow-origin: https://x.b.example\n\
         access-control-max-age: 60\n\
         vary: origin"
    );
    // The client rejects it without these headers.
    assert_eq!(request("https://c.example"), "respond\nvary: origin");
    // Not a preflight request.
    let only_origin = [("origin", "https://a.example")];
    for method in ["OPTIONS", "DELETE"] {
        assert_eq!(
            action(&settings, method, &only_origin),
            "forward\n\
             access-control-allow-origin: https://a.example\n\
             access-control-expose-headers: x-c\n\
             vary: origin"
        );
    }
}

#[test]
fn wildcards_are_echoed_to_requests_with_credentials() {
    let any = || texts(&["*"]);
    let settings = |allow_credentials| CorsSettings {
        allow_credentials,
        allow_methods: any(),
        allow_headers: any(),
        expose_headers: any(),
        ..allowing(&["*"])
    };
    let origin = ("origin", "https://a.example");
    let method = ("access-control-request-method", "PUT");
    let names = ("access-control-request-headers", "x-a,x-b");
    assert_eq!(
        action(&settings(false), "OPTIONS", &[origin, method, names]),
        "respond\n\
         access-control-allow-headers: *\n\
         access-control-allow-methods: *\n\
         access-control-allow-origin: *\n\
         access-control-max-age: 5"
    );
    assert_eq!(
        action(&settings(true), "OPTIONS", &[origin, method, names]),
        "respond\n\
         access-control-allow-credentials: true\n\
         access-control-allow-headers: x-a,x-b\n\
         access-control-allow-methods: PUT\n\
         access-control-allow-origin: https://a.example\n\
         access-control-max-age: 5\n\
         vary: origin"
    );
    let without_names = action(&settings(true), "OPTIONS", &[origin, method]);
    assert!(!without_names.contains("allow-headers"), "{without_names}");
    assert_eq!(
        action(&settings(false), "GET", &[origin]),
        "forward\naccess-control-allow-origin: *\naccess-control-expose-headers: *"
    );
    assert_eq!(
        action(&settings(true), "GET", &[origin]),
        "forward\n\
         access-control-allow-credentials: true\n\
         access-control-allow-origin: https://a.example\n\
         vary: origin"
    );
}

#[test]
fn headers_of_the_application_are_replaced() {
    let mut response = headers(&[
        ("access-control-allow-origin", "https://other.example"),
        ("vary", "accept"),
    ]);
    let set = headers(&[("access-control-allow-origin", "*"), ("vary", "origin")]);
    set_headers(&set, &mut response);
    let expected = [
        ("access-control-allow-origin", "*"),
        ("vary", "accept"),
        ("vary", "origin"),
    ];
    assert_eq!(response, headers(&expected));
}

#[test]
fn invalid_settings_are_named() {
    let check = |settings: CorsSettings, expected: &str| {
        let error = Cors::new(settings).unwrap_err();
        assert_eq!(format!("{}: {error}", error.field), expected);
    };
    for origin in [
        "a.example",
        "ftp://a.example",
        "https://",
        "https://a.example/path",
        "https://a.*.example",
        "https://a.example:0",
        "https://a.example:65536",
        "https://a.example:",
        "https://user@a.example",
        "https://**.example",
        "",
    ] {
        let problem = "is not an origin such as https://shop.example:8443 or https://*.example";
        check(
            allowing(&[origin]),
            &format!("allowOrigins: {origin:?} {problem}"),
        );
    }
    check(
        allowing(&["https://a.example", "*"]),
        "allowOrigins: \"*\" must be the only entry",
    );
    let with = |change: fn(&mut CorsSettings, Vec<String>), names: &[&str]| {
        let mut settings = CorsSettings::default();
        change(&mut settings, texts(names));
        settings
    };
    check(
        with(|it, names| it.allow_methods = names, &["GET", "A B"]),
        "allowMethods: \"A B\" is not a method",
    );
    check(
        with(|it, names| it.allow_headers = names, &["a:b"]),
        "allowHeaders: \"a:b\" is not the name of a header",
    );
    check(
        with(|it, names| it.expose_headers = names, &["x", "*"]),
        "exposeHeaders: \"*\" must be the only entry",
    );
}

#[test]
fn settings_are_returned_as_they_were_given() {
    let settings = allowing(&["https://a.example"]);
    assert_eq!(Cors::new(settings.clone()).unwrap().settings(), &settings);
}
