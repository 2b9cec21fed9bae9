//! Conversions of profiles, their problems and their limits.

use http::Method;
use mesh_core::profile::{RequestMatch, ResponseMatch};

use super::condition::{MAX_CONDITIONS, MAX_DEPTH, MAX_EXPRESSION};
use super::*;

const NAME: &str = "web.shop.svc.cluster.local";

fn read(spec: &str) -> Result<Converted, Vec<Invalid>> {
    convert(NAME, &serde_norway::from_str(spec).unwrap())
}

fn rules(spec: &str) -> ProfileRules {
    read(spec).unwrap().rules
}

fn condition(text: &str) -> RequestMatch {
    let rules = rules(&format!("{{routes: [{{name: a, condition: {text}}}]}}"));
    rules.routes[0].condition.clone()
}

fn response(text: &str) -> ResponseMatch {
    let rules = rules(&format!(
        "{{routes: [{{name: a, condition: {{method: GET}}, responseClasses: [{{condition: {text}}}]}}]}}"
    ));
    rules.routes[0].response_classes[0].condition.clone()
}

/// Returns the only problem of a spec.
fn problem(spec: &str) -> String {
    let problems = read(spec).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].to_string()
}

fn route_problem(condition: &str) -> String {
    problem(&format!(
        "{{routes: [{{name: a, condition: {condition}}}]}}"
    ))
}

#[test]
fn fields_of_a_condition_are_all_required() {
    let path =
        |source: &str| RequestMatch::Path(mesh_core::route::AnchoredRegex::new(source).unwrap());
    let get = RequestMatch::Method(Method::GET);
    assert_eq!(condition("{method: GET}"), get);
    assert_eq!(
        condition("{pathRegex: /a, method: get}"),
        RequestMatch::All(vec![get.clone(), path("/a")])
    );
    assert_eq!(
        condition("{not: {method: GET}, all: [], any: [{pathRegex: /b}]}"),
        RequestMatch::All(vec![
            RequestMatch::All(vec![]),
            RequestMatch::Any(vec![path("/b")]),
            RequestMatch::Not(Box::new(get)),
        ])
    );
    let other = RequestMatch::Method(Method::from_bytes(b"Purge").unwrap());
    assert_eq!(condition("{method: Purge}"), other);

    let range = |min, max| ResponseMatch::Status { min, max };
    assert_eq!(response("{status: {min: 500, max: 599}}"), range(500, 599));
    assert_eq!(response("{status: {min: 500}}"), range(500, 500));
    assert_eq!(response("{status: {min: 0, max: 404}}"), range(404, 404));
    assert_eq!(
        response("{not: {status: {min: 200}}, any: [{status: {max: 500}}]}"),
        ResponseMatch::All(vec![
            ResponseMatch::Any(vec![range(500, 500)]),
            ResponseMatch::Not(Box::new(range(200, 200))),
        ])
    );
}

#[test]
fn invalid_conditions_are_named() {
    for (condition, expect) in [
        ("{}", "spec.routes[0].condition: is empty; write one of"),
        (
            "{method: '', pathRegex: ''}",
            "spec.routes[0].condition: is empty; write one of",
        ),
        (
            "{all: [{method: GET}, {any: [{}]}]}",
            "spec.routes[0].condition.all[1].any[0]: is empty; write one of",
        ),
        (
            "{method: 'GE T'}",
            "spec.routes[0].condition.method: \"GE T\" is not a method; write for example GET",
        ),
        (
            "{not: {pathRegex: '/a['}}",
            "spec.routes[0].condition.not.pathRegex: \"/a[\" is not a regular expression: unclosed character class; \
             a backslash before a special character makes it an ordinary one",
        ),
        (
            "{pathRegex: '\\w{1000}'}",
            "spec.routes[0].condition.pathRegex: \"\\\\w{1000}\" is too large when compiled; write it without",
        ),
    ] {
        let problem = route_problem(condition);
        assert!(problem.starts_with(expect), "{condition}: {problem}");
    }
    for (status, expect) in [
        (
            "{min: 99}",
            ".status.min: 99 is not a status from 100 to 599",
        ),
        (
            "{min: 200, max: 600}",
            ".status.max: 600 is not a status from 100 to 599",
        ),
        (
            "{min: 500, max: 400}",
            ".status: min 500 is greater than max 400; swap them",
        ),
        ("{}", ".status: is empty; write min, max or both"),
    ] {
        let problem = problem(&format!(
            "{{routes: [{{name: a, condition: {{method: GET}}, \
             responseClasses: [{{condition: {{not: {{status: {status}}}}}}}]}}]}}"
        ));
        let expect = format!("spec.routes[0].responseClasses[0].condition.not{expect}");
        assert!(problem.starts_with(&expect), "{status}: {problem}");
    }
}

#[test]
fn all_problems_of_a_profile_are_found() {
    let problems = read(
        "{routes: [{name: '', condition: {}}, {name: b, condition: {method: GET}}, {name: c, condition: {pathRegex: '('}}],
          retryBudget: {retryRatio: -1, ttl: ten},
          dstOverrides: [{authority: 'a b', weight: -}, {authority: b, weight: 1}]}",
    )
    .unwrap_err();
    let fields: Vec<&str> = problems.iter().map(|it| it.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.routes[0].name",
            "spec.routes[0].condition",
            "spec.routes[2].condition.pathRegex",
            "spec.retryBudget.retryRatio",
            "spec.retryBudget.ttl",
            "spec.dstOverrides[0].authority",
            "spec.dstOverrides[0].weight",
        ]
    );
    let many = "{name: '', condition: {}}, ".repeat(MAX_PROBLEMS);
    let problems = read(&format!("{{routes: [{many}]}}")).unwrap_err();
    assert_eq!(problems.len(), MAX_PROBLEMS);
}

#[test]
fn timeouts_and_budgets_are_durations_of_go() {
    let timeout = |text: &str| {
        let spec =
            format!("{{routes: [{{name: a, condition: {{method: GET}}, timeout: '{text}'}}]}}");
        let converted = read(&spec).unwrap();
        (converted.rules.routes[0].timeout, converted.ignored)
    };
    let millis = |millis| Some(Duration::from_millis(millis));
    for (text, expect) in [
        ("300ms", millis(300)),
        ("1m30s", millis(90_000)),
        ("1.5s", millis(1_500)),
        ("0s", None),
        ("0", None),
        ("", None),
    ] {
        assert_eq!(timeout(text), (expect, vec![]), "{text}");
    }
    for bad in ["5", "-5s", "5 s", "1d", "9999999h"] {
        let (timeout, ignored) = timeout(bad);
        assert_eq!(timeout, None);
        assert_eq!(
            ignored[0].to_string(),
            format!(
                "spec.routes[0].timeout: {bad:?} is not a duration; write for example 500ms, 10s or 1m30s"
            )
        );
    }

    let budget = |text: &str| read(&format!("{{retryBudget: {text}}}"));
    let valid = budget("{retryRatio: 0.5, minRetriesPerSecond: 3, ttl: 30s}").unwrap();
    assert_eq!(
        valid.rules.retry_budget,
        Some(RetryBudget {
            ttl: Duration::from_secs(30),
            min_per_second: 3,
            ratio: 0.5,
        })
    );
    assert_eq!(valid.ignored, []);
    let unusable = budget("{retryRatio: 2000, ttl: 2m}").unwrap();
    assert_eq!(
        crate::invalid::summary(&unusable.ignored),
        "spec.retryBudget.retryRatio: proxies do not retry with 2000; the highest ratio is 1000; \
         spec.retryBudget.ttl: proxies do not retry with \"2m\"; write a duration from 1s to 60s"
    );
    assert!(budget("{ttl: ''}").is_err());
    assert!(budget("{retryRatio: .nan, ttl: 1s}").is_err());
}

#[test]
fn overrides_have_ports_and_weights() {
    let part = |authority: &str, weight: &str| {
        rules(&format!(
            "{{dstOverrides: [{{authority: '{authority}', weight: {weight}}}]}}"
        ))
        .overrides[0]
            .at(80)
    };
    let authority = |text: &str| part(text, "1").authority.to_string();
    assert_eq!(authority("web.shop"), "web.shop:80");
    assert_eq!(authority("web.shop:8080"), "web.shop:8080");
    assert_eq!(authority("[fd00::1]"), "[fd00::1]:80");
    assert_eq!(authority("[fd00::1]:1"), "[fd00::1]:1");
    for (text, weight) in [
        ("1", 10_000),
        ("0", 0),
        ("500m", 5_000),
        ("'0.25'", 2_500),
        ("'0.0001'", 10),
        ("'1.5k'", 15_000_000),
        ("429496", 4_294_960_000),
    ] {
        assert_eq!(part("a", text).weight, weight, "{text}");
    }
    for (authority, weight, expect) in [
        (
            "",
            "1",
            "authority: \"\" is not a host name with an optional port",
        ),
        ("a/b", "1", "authority: \"a/b\" is not a host name"),
        ("u@a", "1", "authority: \"u@a\" is not a host name"),
        ("a:0", "1", "authority: \"a:0\" is not a host name"),
        ("a:b", "1", "authority: \"a:b\" is not a host name"),
        (":80", "1", "authority: \":80\" is not a host name"),
        (
            "a",
            "429497",
            "weight: \"429497\" is not a weight up to 429496",
        ),
        ("a", "'-1'", "weight: \"-1\" is not a weight"),
        ("a", "1Ki", "weight: \"1Ki\" is not a weight"),
        ("a", "'.5'", "weight: \".5\" is not a weight"),
        ("a", "1mm", "weight: \"1mm\" is not a weight"),
        ("a", "''", "weight: \"\" is not a weight"),
        (
            "a",
            "'9999999999999'",
            "weight: \"9999999999999\" is not a weight",
        ),
    ] {
        let problem = problem(&format!(
            "{{dstOverrides: [{{authority: '{authority}', weight: {weight}}}]}}"
        ));
        let expect = format!("spec.dstOverrides[0].{expect}");
        assert!(problem.starts_with(&expect), "{problem}");
    }
}

#[test]
fn opaque_ports_only_apply_outside_the_cluster() {
    let spec = serde_norway::from_str("{opaquePorts: ['25', '100-200']}").unwrap();
    let external = convert("db.example.com", &spec).unwrap();
    assert_eq!(external.rules.opaque_ports, "25,100-200".parse().unwrap());
    assert_eq!(external.ignored, []);
    let service = convert(NAME, &spec).unwrap();
    assert_eq!(service.ignored[0].field, "spec.opaquePorts");
    assert!(service.ignored[0].problem.contains("annotation"));
    let bad = serde_norway::from_str("{opaquePorts: ['25', http]}").unwrap();
    let problems = convert("db.example.com", &bad).unwrap_err();
    assert_eq!(problems[0].field, "spec.opaquePorts[1]");
    assert!(problems[0].problem.contains("http"), "{problems:?}");
    assert!(is_name_of_service("a.b.svc.c"));
    assert!(!is_name_of_service("a.b.svc"));
    assert!(!is_name_of_service("a.b.c.svc.d"));
}

/// Returns a list of `length` items.
fn list(item: &str, length: usize) -> String {
    format!("[{}]", vec![item; length].join(", "))
}

#[test]
fn lists_and_texts_are_limited() {
    let route = "{name: a, condition: {method: GET}}";
    let class = "{condition: {status: {min: 500}}}";
    let part = "{authority: a, weight: 1}";
    let classes = |length| {
        let classes = list(class, length);
        format!("{{routes: [{{name: a, condition: {{method: GET}}, responseClasses: {classes}}}]}}")
    };
    let name = |length| {
        let name = "n".repeat(length);
        format!("{{routes: [{{name: {name}, condition: {{method: GET}}}}]}}")
    };
    let expression = |length: usize| {
        let source = "/".repeat(length);
        format!("{{routes: [{{name: a, condition: {{pathRegex: {source}}}}}]}}")
    };
    let authority = |length: usize| {
        let host = "a".repeat(length);
        format!("{{dstOverrides: [{{authority: {host}, weight: 1}}]}}")
    };
    let conditions = |length| {
        let all = list("{method: GET}", length);
        format!("{{routes: [{{name: a, condition: {{all: {all}}}}}]}}")
    };
    let depth = |depth: usize| {
        let (open, close) = ("{not: ".repeat(depth - 1), "}".repeat(depth - 1));
        format!("{{routes: [{{name: a, condition: {open}{{method: GET}}{close}}}]}}")
    };
    let routes = |length| format!("{{routes: {}}}", list(route, length));
    let parts = |length| format!("{{dstOverrides: {}}}", list(part, length));
    let ports = |length| format!("{{opaquePorts: {}}}", list("'1'", length));
    let large = |length| {
        let route = "{name: a, condition: {pathRegex: '\\w{5}'}}";
        format!("{{routes: {}}}", list(route, length))
    };
    let cases: [(&dyn Fn(usize) -> String, usize); 10] = [
        (&routes, MAX_ROUTES),
        (&classes, MAX_RESPONSE_CLASSES),
        (&parts, MAX_OVERRIDES),
        (&ports, MAX_RANGES),
        (&name, MAX_NAME),
        (&expression, MAX_EXPRESSION),
        (&authority, MAX_AUTHORITY),
        // The list is a condition too.
        (&conditions, MAX_CONDITIONS - 1),
        (&depth, MAX_DEPTH),
        (&large, 64),
    ];
    for (at, (spec, limit)) in cases.into_iter().enumerate() {
        read(&spec(limit)).unwrap_or_else(|problems| panic!("{at}: {problems:?}"));
        let problem = problem(&spec(limit + 1));
        assert!(
            problem.contains("at most")
                || problem.contains("limit")
                || problem.contains("MiB")
                || problem.contains("is not a host name"),
            "{at}: {problem}"
        );
        assert!(problem.len() < 400, "{problem}");
    }
}
