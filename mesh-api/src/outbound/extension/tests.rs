//! Round trips of extensions, the limits and the errors, and what proxies without the extension
//! read.

use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, RouteBackend, Routes, TcpVerdict,
};
use mesh_core::resilience::{Retry, Timeouts};
use mesh_core::route::Rule;
use mesh_core::route::filter::HeaderModifier;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::outbound::tests::backends as any_backend;
use crate::outbound::{ExtendedPolicy, extended_policy, extended_to_proto, outbound_policy};
use crate::proto::outbound::OutboundPolicy as StandardPolicy;
use crate::tests::arbitrary;

/// A policy with one route, whose rules have these filters, for each list of them.
fn policy(routes: Vec<Vec<Vec<Filter>>>, grpc: bool) -> OutboundPolicy {
    fn routes_of<M, C>(routes: Vec<Vec<Vec<Filter>>>) -> Routes<M, Retry<C>> {
        let rule = |filters| Rule {
            matches: Vec::new(),
            action: OutboundRule {
                filters,
                backends: Distribution::Empty,
                timeouts: Timeouts::default(),
                retry: None,
                allow_request_headers: false,
            },
        };
        let route = |rules: Vec<Vec<Filter>>| Route {
            meta: Meta::new_default("route"),
            hosts: Vec::new(),
            rules: rules.into_iter().map(rule).collect(),
        };
        Routes {
            routes: routes.into_iter().map(route).collect(),
            failure_accrual: None,
        }
    }
    OutboundPolicy {
        parent: Meta::new_default("parent"),
        protocol: if grpc {
            OutboundProtocol::Grpc(routes_of(routes))
        } else {
            OutboundProtocol::Detect {
                timeout: Duration::from_secs(10),
                opaque: Some(crate::outbound::tcp::nowhere()),
                http1: routes_of(routes.clone()),
                http2: routes_of(routes),
            }
        },
    }
}

fn rewrite(host: &str) -> Filter {
    Filter::UrlRewrite(UrlRewrite {
        host: Some(host.into()),
        path: None,
    })
}

/// A policy with one rule, whose backends have these weights and filters.
fn backends(weighted: Vec<(u32, Vec<Filter>)>, grpc: bool) -> OutboundPolicy {
    let backend = |filters| RouteBackend {
        backend: Backend {
            meta: Meta::new_default("backend"),
            target: BackendTarget::None,
        },
        filters,
        verdict: TcpVerdict::Forward,
    };
    let weighted = weighted.into_iter();
    let weighted = weighted.map(|(weight, filters)| (Arc::new(backend(filters)), weight));
    let distribution = Distribution::RandomAvailable(weighted.collect());
    let mut policy = policy(vec![vec![vec![]]], grpc);
    match &mut policy.protocol {
        OutboundProtocol::Detect { http1, http2, .. } => {
            http1.routes[0].rules[0].action.backends = distribution.clone();
            http2.routes[0].rules[0].action.backends = distribution;
        }
        OutboundProtocol::Grpc(routes) => routes.routes[0].rules[0].action.backends = distribution,
        other => panic!("{other:?}"),
    }
    policy
}

/// Returns the filters of the backends of the first rule.
fn filters_of_backends(policy: &OutboundPolicy) -> Vec<Vec<Filter>> {
    let backends = match &policy.protocol {
        OutboundProtocol::Detect { http1, http2, .. } => {
            assert_eq!(http1.routes, http2.routes);
            &http1.routes[0].rules[0].action.backends
        }
        OutboundProtocol::Grpc(routes) => &routes.routes[0].rules[0].action.backends,
        other => panic!("{other:?}"),
    };
    let Distribution::RandomAvailable(backends) = backends else {
        panic!("{backends:?}");
    };
    let filters = backends.iter().map(|(backend, _)| backend.filters.clone());
    filters.collect()
}

fn remove_a() -> HeaderModifier {
    HeaderModifier {
        remove: vec![::http::HeaderName::from_static("a")],
        ..HeaderModifier::default()
    }
}

fn is_failure(filters: &[Filter]) -> bool {
    matches!(
        filters,
        [Filter::InjectHttpFailure { .. } | Filter::InjectGrpcFailure { .. }]
    )
}

fn backend_entry(backend: u32, filters: &[Filter]) -> wire::BackendFilters {
    wire::BackendFilters {
        route: 0,
        rule: 0,
        backend,
        filters: filters.iter().map(filter_to_proto).collect(),
    }
}

/// Returns the filters of a rule.
fn filters(policy: &OutboundPolicy, route: usize, rule: usize) -> &[Filter] {
    match &policy.protocol {
        OutboundProtocol::Detect { http1, .. } => &http1.routes[route].rules[rule].action.filters,
        OutboundProtocol::Grpc(routes) => &routes.routes[route].rules[rule].action.filters,
        other => panic!("{other:?}"),
    }
}

/// Whether the rule fails its requests, as without the extension.
fn fails(policy: &OutboundPolicy, route: usize, rule: usize) -> bool {
    is_failure(filters(policy, route, rule))
}

/// Receives the policy of [`policy`] with another extension. Returns the problem's text.
fn receive(policy: &OutboundPolicy, extension: Vec<u8>) -> (OutboundPolicy, String) {
    let message = ExtendedPolicy {
        extension,
        ..extended_to_proto(policy)
    };
    let received = extended_policy(message).unwrap();
    let problem = received.problem.map(|problem| problem.to_string());
    (received.policy, problem.unwrap_or_default())
}

fn extension(rules: Vec<wire::RuleFilters>) -> Vec<u8> {
    let backends = Vec::new();
    wire::PolicyExtension { rules, backends }.encode_to_vec()
}

fn entry(route: u32, rule: u32, filters: &[Filter]) -> wire::RuleFilters {
    wire::RuleFilters {
        route,
        rule,
        filters: filters.iter().map(filter_to_proto).collect(),
    }
}

fn any_filters() -> impl Strategy<Value = Vec<Filter>> {
    let filter = prop_oneof![
        arbitrary::request_headers(),
        arbitrary::response_headers(),
        arbitrary::redirect(),
        arbitrary::http_failure(),
        arbitrary::url_rewrite(),
        arbitrary::request_mirror(any_backend()),
        arbitrary::cors(),
        arbitrary::delay(),
    ];
    vec(filter, 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn policies_with_any_filters_survive_the_wire(routes in vec(vec(any_filters(), 0..3), 0..3)) {
        let policy = policy(routes, false);
        let bytes = extended_to_proto(&policy).encode_to_vec();
        let message = ExtendedPolicy::decode(&*bytes).unwrap();
        let received = extended_policy(message).unwrap();
        prop_assert_eq!(received.problem, None);
        prop_assert_eq!(received.policy, policy);
    }

    #[test]
    fn any_bytes_change_only_rules_that_they_list(bytes in vec(any::<u8>(), 0..64)) {
        let policy = policy(vec![vec![vec![rewrite("a")]]], false);
        let listed = wire::PolicyExtension::decode(&*bytes).is_ok_and(|it| !it.rules.is_empty());
        let (received, _problem) = receive(&policy, bytes);
        prop_assert!(listed || fails(&received, 0, 0));
    }
}

#[test]
fn proxy_without_the_extension_fails_requests_of_the_rule_only() {
    for grpc in [false, true] {
        let policy = policy(vec![vec![vec![], vec![rewrite("a")]]], grpc);
        let bytes = extended_to_proto(&policy).encode_to_vec();
        // Linkerd's proxy decodes with the message of the API.
        let standard = outbound_policy(StandardPolicy::decode(&*bytes).unwrap()).unwrap();
        assert!(!fails(&standard, 0, 0));
        assert!(fails(&standard, 0, 1));
        let text = format!("{:?}", filters(&standard, 0, 1));
        let problem = "filters[0].type: URLRewrite is not supported by this proxy";
        assert!(text.contains(problem), "{text}");
        let read = extended_policy(ExtendedPolicy::decode(&*bytes).unwrap()).unwrap();
        assert_eq!(read.policy, policy);
    }
}

/// HTTP routes have no message for it.
#[test]
fn failure_of_calls_survives_beside_a_filter_that_the_api_lacks() {
    let failure = Filter::InjectGrpcFailure {
        code: 14,
        message: "a".into(),
        ratio: Ratio {
            numerator: 1,
            denominator: 3,
        },
    };
    let policy = policy(vec![vec![vec![rewrite("a"), failure]]], true);
    let bytes = extended_to_proto(&policy).encode_to_vec();
    let read = extended_policy(ExtendedPolicy::decode(&*bytes).unwrap()).unwrap();
    assert_eq!(read.problem, None);
    assert_eq!(read.policy, policy);
}

/// Requests without the delay are better than failing ones.
#[test]
fn proxy_without_the_extension_forwards_requests_without_the_delay() {
    let delay = Filter::Delay {
        duration: Duration::from_secs(1),
        ratio: Ratio::ALL,
    };
    let headers = Filter::RequestHeaders(remove_a());
    for grpc in [false, true] {
        let delayed = vec![delay.clone(), headers.clone()];
        let failing = vec![delay.clone(), rewrite("a")];
        let policy = policy(vec![vec![vec![], delayed, failing]], grpc);
        let bytes = extended_to_proto(&policy).encode_to_vec();
        let standard = outbound_policy(StandardPolicy::decode(&*bytes).unwrap()).unwrap();
        assert_eq!(filters(&standard, 0, 1), std::slice::from_ref(&headers));
        let text = format!("{:?}", filters(&standard, 0, 2));
        let problem = "filters[1].type: URLRewrite is not supported by this proxy";
        assert!(text.contains(problem), "{text}");
        let read = extended_policy(ExtendedPolicy::decode(&*bytes).unwrap()).unwrap();
        assert_eq!(read.policy, policy);
    }
}

#[test]
fn message_without_extension_is_that_of_the_api() {
    let policy = policy(vec![vec![vec![]]], false);
    let extended = extended_to_proto(&policy);
    assert_eq!(extended.extension, [0; 0]);
    let bytes = extended.standard.encode_to_vec();
    assert_eq!(extended.encode_to_vec(), bytes);
    let received = extended_policy(ExtendedPolicy::decode(&*bytes).unwrap()).unwrap();
    assert_eq!(received.policy, policy);
}

#[test]
fn invalid_filters_leave_the_standard_part_of_their_rule() {
    let policy = policy(vec![vec![vec![rewrite("a")], vec![rewrite("b")]]], false);
    let unknown = wire::RuleFilters {
        filters: vec![wire::Filter { kind: None }],
        ..entry(0, 0, &[])
    };
    let invalid = wire::RuleFilters {
        filters: vec![wire::Filter {
            kind: Some(Kind::Standard(vec![0xff])),
        }],
        ..entry(0, 0, &[])
    };
    let many = vec![rewrite("a"); MAX_EXTENDED_FILTERS + 1];
    let mirror = |backend: Vec<u8>, denominator| wire::RuleFilters {
        filters: vec![wire::Filter {
            kind: Some(Kind::RequestMirror(wire::RequestMirror {
                backend,
                numerator: 1,
                denominator,
            })),
        }],
        ..entry(0, 0, &[])
    };
    let cors = wire::RuleFilters {
        filters: vec![wire::Filter {
            kind: Some(Kind::Cors(wire::Cors {
                allow_origins: vec!["a.example".into()],
                ..wire::Cors::default()
            })),
        }],
        ..entry(0, 0, &[])
    };
    let nowhere = backend::to_proto(&Backend {
        meta: Meta::new_default("nowhere"),
        target: BackendTarget::None,
    });
    let delay = |milliseconds, denominator| wire::RuleFilters {
        filters: vec![wire::Filter {
            kind: Some(Kind::Delay(wire::Delay {
                milliseconds,
                numerator: 1,
                denominator,
            })),
        }],
        ..entry(0, 0, &[])
    };
    for (bad, problem) in [
        (
            delay(300_001, 1),
            "extension.rules[0].filters[0].delay.milliseconds: 300001 is not",
        ),
        (
            delay(0, 1),
            "extension.rules[0].filters[0].delay.milliseconds: 0 is not",
        ),
        (
            delay(1, 0),
            "extension.rules[0].filters[0].delay.denominator: 0 is not",
        ),
        (unknown, "extension.rules[0].filters[0].kind: has a kind"),
        (
            mirror(nowhere.encode_to_vec(), 0),
            "extension.rules[0].filters[0].request_mirror.denominator: 0 is not",
        ),
        (
            mirror(vec![0xff], 1),
            "extension.rules[0].filters[0].request_mirror.backend: ",
        ),
        (
            mirror(Vec::new(), 1),
            "extension.rules[0].filters[0].request_mirror.backend.metadata: ",
        ),
        (cors, "extension.rules[0].filters[0].cors.allowOrigins: "),
        (invalid, "extension.rules[0].filters[0].standard: "),
        (entry(0, 0, &many), "extension.rules[0].filters: 17 is not"),
        (entry(0, 0, &[]), "extension.rules[0].filters: 0 is not"),
    ] {
        let (received, text) = receive(&policy, extension(vec![bad, entry(0, 1, &[rewrite("b")])]));
        assert!(text.starts_with(problem), "{text}");
        assert!(fails(&received, 0, 0), "{problem}");
        assert_eq!(filters(&received, 0, 1), [rewrite("b")], "{problem}");
    }
    for (route, rule) in [(0, 2), (1, 0), (u32::MAX, u32::MAX)] {
        let (received, text) = receive(
            &policy,
            extension(vec![entry(route, rule, &[rewrite("a")])]),
        );
        assert!(
            text.contains("is not a valid place in the policy"),
            "{text}"
        );
        assert!(fails(&received, 0, 0) && fails(&received, 0, 1));
    }
    let twice = vec![entry(0, 0, &[rewrite("a")]); 2];
    let twice = extension(twice);
    let (received, text) = receive(&policy, twice);
    assert!(text.contains("rules[1].rule: (0, 0) is not"), "{text}");
    assert_eq!(filters(&received, 0, 0), [rewrite("a")]);
}

#[test]
fn invalid_extension_leaves_the_standard_part() {
    let policy = policy(vec![vec![vec![rewrite("a")]]], false);
    let many: Vec<_> = (0..=MAX_EXTENDED_RULES)
        .map(|rule| entry(0, u32::try_from(rule).unwrap(), &[]))
        .collect();
    for (bad, problem) in [
        (vec![0xff; 9], "extension: "),
        (vec![0; MAX_EXTENSION_BYTES + 1], "extension: 262145 is not"),
        (extension(many), "extension.rules: 1025 is not"),
    ] {
        let (received, text) = receive(&policy, bad);
        assert!(text.starts_with(problem), "{text}");
        assert!(fails(&received, 0, 0), "{problem}");
    }
}

/// A field of another type has this number in a future version of the API.
#[test]
fn field_of_other_type_is_skipped() {
    let policy = policy(vec![vec![vec![rewrite("a")]]], false);
    let mut bytes = extended_to_proto(&policy).standard.encode_to_vec();
    prost::encoding::uint32::encode(1000, &7, &mut bytes);
    let received = extended_policy(ExtendedPolicy::decode(&*bytes).unwrap()).unwrap();
    assert!(fails(&received.policy, 0, 0));
    assert_eq!(received.problem, None);
}

#[test]
fn rules_beyond_the_limits_fail_their_requests() {
    let rules = vec![vec![rewrite("a")]; MAX_EXTENDED_RULES + 1];
    let many = policy(vec![rules], false);
    let (received, problem) = receive(&many, extended_to_proto(&many).extension);
    assert_eq!(problem, "");
    assert!(!fails(&received, 0, MAX_EXTENDED_RULES - 1));
    assert!(fails(&received, 0, MAX_EXTENDED_RULES));
    let long = policy(vec![vec![vec![rewrite(&"a".repeat(1_000))]; 1_000]], false);
    let sent = extended_to_proto(&long).extension;
    assert!(sent.len() <= MAX_EXTENSION_BYTES);
    let (received, problem) = receive(&long, sent);
    assert_eq!(problem, "");
    assert!(!fails(&received, 0, 0));
    assert!(fails(&received, 0, 999));
    let filters = vec![rewrite("a"); MAX_EXTENDED_FILTERS + 1];
    let long = policy(vec![vec![filters]], false);
    let (received, problem) = receive(&long, extended_to_proto(&long).extension);
    assert_eq!(problem, "");
    assert!(fails(&received, 0, 0));
}

#[test]
fn filters_of_backends_survive_the_wire() {
    let remove = remove_a();
    for grpc in [false, true] {
        // A backend of weight 0 is not sent to, and has no place.
        let weighted = vec![
            (1, vec![]),
            (0, vec![rewrite("zero")]),
            (
                2,
                vec![Filter::RequestHeaders(remove.clone()), rewrite("a")],
            ),
            (3, vec![Filter::RequestHeaders(remove.clone())]),
        ];
        let policy = backends(weighted, grpc);
        let bytes = extended_to_proto(&policy).encode_to_vec();
        let read = extended_policy(ExtendedPolicy::decode(&*bytes).unwrap()).unwrap();
        assert_eq!(read.problem, None);
        let sent = filters_of_backends(&policy);
        let kept = [sent[0].clone(), sent[2].clone(), sent[3].clone()];
        assert_eq!(filters_of_backends(&read.policy), kept);
        // Linkerd's proxy decodes with the message of the API.
        let standard = outbound_policy(StandardPolicy::decode(&*bytes).unwrap()).unwrap();
        let standard = filters_of_backends(&standard);
        assert!(is_failure(&standard[1]), "{standard:?}");
        assert_eq!([&standard[0], &standard[2]], [&kept[0], &kept[2]]);
    }
}

/// The API has the filter for HTTPRoutes.
#[test]
fn response_headers_of_grpc_routes_need_the_extension() {
    let filter = Filter::ResponseHeaders(remove_a());
    for (grpc, beyond) in [(false, false), (true, true)] {
        let of_rule = policy(vec![vec![vec![filter.clone()]]], grpc);
        let of_backend = backends(vec![(1, vec![filter.clone()])], grpc);
        for policy in [of_rule, of_backend] {
            let message = extended_to_proto(&policy);
            assert_eq!(message.extension.is_empty(), !beyond);
            let standard = outbound_policy(message.standard.clone()).unwrap();
            assert_eq!(standard != policy, beyond);
            assert_eq!(extended_policy(message).unwrap().policy, policy);
        }
    }
}

#[test]
fn invalid_filters_leave_the_standard_part_of_their_backend() {
    let policy = backends(
        vec![(1, vec![rewrite("a")]), (1, vec![rewrite("b")])],
        false,
    );
    let many = vec![rewrite("a"); MAX_EXTENDED_FILTERS + 1];
    let mirror = Filter::RequestMirror(RequestMirror {
        backend: Arc::new(Backend {
            meta: Meta::new_default("nowhere"),
            target: BackendTarget::None,
        }),
        ratio: Ratio::ALL,
    });
    for (bad, problem) in [
        (
            backend_entry(0, &many),
            "extension.backends[0].filters: 17 is not",
        ),
        (
            backend_entry(0, &[]),
            "extension.backends[0].filters: 0 is not",
        ),
        (
            backend_entry(0, &[rewrite("a"), mirror]),
            "extension.backends[0].filters[1]: \"RequestMirror\" is not",
        ),
    ] {
        let extension = wire::PolicyExtension {
            rules: Vec::new(),
            backends: vec![bad, backend_entry(1, &[rewrite("b")])],
        };
        let (received, text) = receive(&policy, extension.encode_to_vec());
        assert!(text.starts_with(problem), "{text}");
        let filters = filters_of_backends(&received);
        assert!(is_failure(&filters[0]), "{problem}");
        assert_eq!(filters[1], [rewrite("b")], "{problem}");
    }
    for (places, problem) in [
        (
            vec![2],
            "backends[0].backend: (0, 0, 2) is not a valid place in",
        ),
        (vec![u32::MAX], "is not a valid place in the policy"),
        (
            vec![2, 1],
            "backends[0].backend: (0, 0, 2) is not a valid place in",
        ),
        (
            vec![2, 2],
            "backends[0].backend: (0, 0, 2) is not a valid place in",
        ),
    ] {
        let entries = places.iter().map(|at| backend_entry(*at, &[rewrite("c")]));
        let extension = wire::PolicyExtension {
            rules: Vec::new(),
            backends: entries.collect(),
        };
        let (received, text) = receive(&policy, extension.encode_to_vec());
        assert!(text.contains(problem), "{text}");
        let filters = filters_of_backends(&received);
        assert!(
            filters.iter().all(|filters| is_failure(filters)),
            "{places:?}"
        );
    }
}

#[test]
fn backends_beyond_the_limits_fail_their_requests() {
    let count = MAX_EXTENDED_BACKENDS + 1;
    let many = backends(vec![(1, vec![rewrite("a")]); count], false);
    let (received, problem) = receive(&many, extended_to_proto(&many).extension);
    assert_eq!(problem, "");
    let filters = filters_of_backends(&received);
    assert_eq!(
        filters.iter().position(|it| is_failure(it)),
        Some(count - 1)
    );
    let long = backends(vec![(1, vec![rewrite(&"a".repeat(1_000))]); 1_000], false);
    let sent = extended_to_proto(&long).extension;
    assert!(sent.len() <= MAX_EXTENSION_BYTES);
    let (received, problem) = receive(&long, sent);
    assert_eq!(problem, "");
    let filters = filters_of_backends(&received);
    assert!(!is_failure(&filters[0]) && is_failure(&filters[999]));
    let extension = wire::PolicyExtension {
        rules: Vec::new(),
        backends: (0..=1024).map(|at| backend_entry(at, &[])).collect(),
    };
    let (received, problem) = receive(&many, extension.encode_to_vec());
    assert!(
        problem.starts_with("extension.backends: 1025 is not"),
        "{problem}"
    );
    assert!(
        filters_of_backends(&received)
            .iter()
            .all(|it| is_failure(it))
    );
}
