//! Round trips of random policies, the errors of invalid messages, and messages that are never
//! sent.

use std::num::NonZeroU32;
use std::time::Duration;

use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, GrpcRoute, GrpcRoutes, HttpRoute, RouteBackend,
    TcpVerdict, TlsRoute,
};
use mesh_core::resilience::{
    Backoff, FailureAccrual, FailurePenalty, PeakEwma, Queue, Retry, Timeouts,
};
use mesh_core::route::Rule;
use mesh_core::route::filter::Filter;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::tests::arbitrary::{self, record};

pub(super) fn backends() -> impl Strategy<Value = Backend> {
    let penalty = record!(FailurePenalty {
        penalty: arbitrary::duration(),
        max_retry_after: arbitrary::duration(),
    });
    let load = record!(PeakEwma {
        default_rtt: arbitrary::duration(),
        decay: arbitrary::duration(),
        penalty: option::of(penalty),
    });
    let queue = record!(Queue {
        capacity: any::<u32>().prop_map(NonZeroU32::new),
        failfast_timeout: option::of(arbitrary::duration().prop_filter("zero", |it| !it.is_zero())),
    });
    let target = prop_oneof![
        arbitrary::endpoint().prop_map(|endpoint| BackendTarget::Forward(Box::new(endpoint))),
        record!(BackendTarget::Balance {
            authority: arbitrary::text(),
            load,
            queue,
        }),
        Just(BackendTarget::None),
    ];
    record!(Backend {
        meta: arbitrary::meta(),
        target,
    })
}

fn distributions(
    filter: BoxedStrategy<Filter>,
    verdict: BoxedStrategy<TcpVerdict>,
) -> impl Strategy<Value = Distribution> {
    let backend = record!(RouteBackend {
        backend: backends(),
        filters: vec(filter, 0..2),
        verdict,
    })
    .prop_map(Arc::new)
    .boxed();
    prop_oneof![
        Just(Distribution::Empty),
        vec(backend.clone(), 0..3).prop_map(Distribution::FirstAvailable),
        vec((backend, 1u32..), 1..3).prop_map(Distribution::RandomAvailable),
    ]
}

fn routes<M: std::fmt::Debug + Clone + 'static, T: std::fmt::Debug + Clone + 'static>(
    matches: BoxedStrategy<M>,
    filter: BoxedStrategy<Filter>,
    retry: BoxedStrategy<T>,
) -> impl Strategy<Value = Vec<Route<M, OutboundRule<T>>>> {
    let action = record!(OutboundRule {
        filters: vec(filter.clone(), 0..2),
        backends: distributions(filter, Just(TcpVerdict::Forward).boxed()),
        timeouts: arbitrary::timeouts(),
        retry: option::of(retry),
        allow_request_headers: any::<bool>(),
    });
    let rule = record!(Rule {
        matches: vec(matches, 0..2),
        action,
    });
    let route = record!(Route {
        meta: arbitrary::meta(),
        hosts: vec(arbitrary::host(), 0..2),
        rules: vec(rule, 0..3),
    });
    vec(route, 0..3)
}

fn retries<C: std::fmt::Debug>(
    conditions: impl Strategy<Value = C>,
) -> impl Strategy<Value = Retry<C>> {
    record!(Retry {
        max_retries: any::<u16>(),
        max_request_bytes: 0usize..100_000,
        conditions,
        timeout: option::of(arbitrary::duration()),
        backoff: option::of(arbitrary::backoff()),
    })
}

fn http_routes() -> impl Strategy<Value = Vec<HttpRoute>> {
    let filter = prop_oneof![
        arbitrary::request_headers(),
        arbitrary::response_headers(),
        arbitrary::redirect(),
        arbitrary::http_failure(),
    ];
    routes(
        arbitrary::http_match().boxed(),
        filter.boxed(),
        retries(vec(arbitrary::statuses(), 0..3)).boxed(),
    )
}

fn grpc_routes() -> impl Strategy<Value = Vec<GrpcRoute>> {
    let filter = prop_oneof![arbitrary::request_headers(), arbitrary::grpc_failure()];
    let codes = prop::sample::subsequence(vec![1u16, 4, 8, 13, 14], 0..=5);
    routes(
        arbitrary::grpc_match().boxed(),
        filter.boxed(),
        retries(codes).boxed(),
    )
}

fn verdicts() -> BoxedStrategy<TcpVerdict> {
    prop_oneof![
        Just(TcpVerdict::Forward),
        Just(TcpVerdict::Forbidden),
        arbitrary::text().prop_map(TcpVerdict::Invalid),
    ]
    .boxed()
}

fn tcp_backends() -> impl Strategy<Value = Distribution> {
    distributions(arbitrary::request_headers().boxed(), verdicts()).prop_map(without_filters)
}

/// Connections that are not HTTP have no HTTP filters.
fn without_filters(distribution: Distribution) -> Distribution {
    let strip = |backend: Arc<RouteBackend>| {
        Arc::new(RouteBackend {
            filters: Vec::new(),
            ..(*backend).clone()
        })
    };
    match distribution {
        Distribution::Empty => Distribution::Empty,
        Distribution::FirstAvailable(backends) => {
            Distribution::FirstAvailable(backends.into_iter().map(strip).collect())
        }
        Distribution::RandomAvailable(backends) => Distribution::RandomAvailable(
            backends
                .into_iter()
                .map(|(backend, weight)| (strip(backend), weight))
                .collect(),
        ),
    }
}

fn tcp_route() -> impl Strategy<Value = TcpRoute> {
    record!(TcpRoute {
        meta: arbitrary::meta(),
        backends: tcp_backends(),
        verdict: verdicts(),
    })
}

fn tls_route() -> impl Strategy<Value = TlsRoute> {
    record!(TlsRoute {
        meta: arbitrary::meta(),
        snis: vec(arbitrary::host(), 0..2),
        backends: tcp_backends(),
        verdict: verdicts(),
    })
}

fn accruals() -> impl Strategy<Value = FailureAccrual> {
    prop_oneof![
        record!(FailureAccrual::ConsecutiveFailures {
            max_failures: any::<u32>(),
            backoff: arbitrary::backoff(),
        }),
        record!(FailureAccrual::Unified {
            success_rate_threshold: 0.0..=1.0f64,
            window: (10u64..100_000).prop_map(Duration::from_millis),
            min_requests: 0u32..=1_000_000,
            max_consecutive_failures: any::<u32>(),
            backoff: arbitrary::backoff(),
            honor_retry_after: any::<bool>(),
        }),
    ]
}

fn protocols() -> impl Strategy<Value = OutboundProtocol> {
    let http = record!(HttpRoutes {
        routes: http_routes(),
        failure_accrual: option::of(accruals()),
    })
    .boxed();
    let grpc = record!(GrpcRoutes {
        routes: grpc_routes(),
        failure_accrual: option::of(accruals()),
    });
    prop_oneof![
        record!(OutboundProtocol::Detect {
            timeout: arbitrary::duration(),
            opaque: tcp_route().prop_map(Some),
            http1: http.clone(),
            http2: http.clone(),
        }),
        http.clone().prop_map(OutboundProtocol::Http1),
        http.prop_map(OutboundProtocol::Http2),
        grpc.prop_map(OutboundProtocol::Grpc),
        tcp_route().prop_map(|route| OutboundProtocol::Opaque(Some(route))),
        vec(tls_route(), 0..3).prop_map(OutboundProtocol::Tls),
    ]
}

proptest! {
    #[test]
    fn policies_survive_the_wire(parent in arbitrary::meta(), protocol in protocols()) {
        let policy = OutboundPolicy { parent, protocol };
        prop_assert_eq!(outbound_policy(to_proto(&policy)), Ok(policy));
    }

    #[test]
    fn questions_survive_the_wire(addr in arbitrary::socket_addr(), authority in "[a-z.]{1,9}:[0-9]{1,4}") {
        for asked in [Target::Addr(addr), Target::Authority(authority.into())] {
            let spec = traffic_spec("{}", &asked);
            prop_assert_eq!(target(spec.target), Ok(asked));
        }
    }

    /// A proxy accepts the message of any numbers in an object.
    #[test]
    fn nothing_unusable_is_sent(
        min in any::<u64>(), max in any::<u64>(), jitter in any::<f64>(),
        threshold in any::<f64>(), window in any::<u64>(), min_requests in any::<u32>(),
    ) {
        let backoff = Backoff { min: Duration::from_nanos(min), max: Duration::from_nanos(max), jitter };
        let unified = FailureAccrual::Unified {
            success_rate_threshold: threshold,
            window: Duration::from_nanos(window),
            min_requests,
            max_consecutive_failures: 0,
            backoff,
            honor_retry_after: false,
        };
        let sent = accrual::accrual(accrual::to_proto(unified));
        prop_assert!(sent.is_ok(), "{:?}", sent);
    }
}

fn opaque(routes: Vec<wire::OpaqueRoute>) -> wire::OutboundPolicy {
    wire::OutboundPolicy {
        metadata: Some(meta::to_proto(&Meta::new_default("test"))),
        protocol: Some(wire::ProxyProtocol {
            kind: Some(Kind::Opaque(proxy_protocol::Opaque { routes })),
        }),
    }
}

#[test]
fn missing_opaque_route_is_sent_as_rejecting_route() {
    let policy = OutboundPolicy {
        parent: Meta::new_default("test"),
        protocol: OutboundProtocol::Opaque(None),
    };
    let seen = outbound_policy(to_proto(&policy)).unwrap();
    let OutboundProtocol::Opaque(Some(route)) = seen.protocol else {
        panic!("{seen:?}");
    };
    assert_eq!(route.verdict, TcpVerdict::Forbidden);
    assert_eq!(route.backends, Distribution::Empty);
}

#[test]
fn invalid_field_is_named() {
    let check = |policy: wire::OutboundPolicy, expect: &str| {
        assert_eq!(outbound_policy(policy).unwrap_err().to_string(), expect);
    };
    check(wire::OutboundPolicy::default(), "metadata: is missing");
    let route = tcp::opaque_route_to_proto(&tcp::nowhere());
    check(
        opaque(vec![route.clone(), route.clone()]),
        "protocol.opaque.routes: 2 is not a valid list of at most one route",
    );
    check(
        opaque(vec![wire::OpaqueRoute {
            rules: Vec::new(),
            ..route.clone()
        }]),
        "protocol.opaque.routes[0].rules: 0 is not a valid list of exactly one rule",
    );
    check(
        opaque(vec![wire::OpaqueRoute {
            rules: vec![wire::opaque_route::Rule::default()],
            ..route
        }]),
        "protocol.opaque.routes[0].rules[0].backends: is missing",
    );
}

#[test]
fn contradictory_backoffs_are_rejected() {
    let error = |min: u64, max: u64, jitter_ratio: f32| {
        value::backoff(wire::ExponentialBackoff {
            min_backoff: Some(value::duration_to_proto(Duration::from_millis(min))),
            max_backoff: Some(value::duration_to_proto(Duration::from_millis(max))),
            jitter_ratio,
            respect_retry_after_hint: false,
        })
        .map_err(|error| error.field)
    };
    assert!(error(0, 1, 0.0).is_ok());
    assert_eq!(error(2, 1, 0.0), Err("max_backoff".to_owned()));
    assert_eq!(error(0, 0, 0.0), Err("max_backoff".to_owned()));
    for jitter in [-0.1, 100.1, f32::NAN, f32::INFINITY] {
        assert_eq!(error(0, 1, jitter), Err("jitter_ratio".to_owned()));
    }
}

/// A queue of nothing would fail every request that finds no endpoint at once.
#[test]
fn absent_and_zero_settings_of_queue_are_left_to_the_proxy() {
    let read = |queue| {
        let backend = wire::Backend {
            queue,
            ..backend::to_proto(&Backend {
                meta: Meta::new_default("test"),
                target: BackendTarget::Balance {
                    authority: "web:80".into(),
                    load: PeakEwma::default(),
                    queue: Queue::LINKERD,
                },
            })
        };
        match backend::backend(backend).unwrap().target {
            BackendTarget::Balance { queue, .. } => queue,
            other => panic!("{other:?}"),
        }
    };
    let zero = wire::Queue {
        capacity: 0,
        failfast_timeout: Some(value::duration_to_proto(Duration::ZERO)),
    };
    for unset in [None, Some(wire::Queue::default()), Some(zero)] {
        assert_eq!(read(unset), Queue::default());
    }
}

/// Linkerd's proxies read these fields, which a policy does not have.
#[test]
fn fields_without_record_have_the_values_of_linkerd() {
    let seconds = |s| Some(value::duration_to_proto(Duration::from_secs(s)));
    let backend = |target| {
        backend::to_proto(&Backend {
            meta: Meta::new_default("test"),
            target,
        })
    };
    let endpoint = Endpoint::plain("203.0.113.1:443".parse().unwrap());
    for target in [
        BackendTarget::None,
        BackendTarget::Forward(Box::new(endpoint)),
    ] {
        let queue = backend(target).queue.unwrap();
        assert_eq!((queue.capacity, queue.failfast_timeout), (100, seconds(3)));
    }
    let penalty = FailurePenalty {
        penalty: Duration::from_secs(1),
        max_retry_after: Duration::from_secs(2),
    };
    let balance = BackendTarget::Balance {
        authority: "web:80".into(),
        load: PeakEwma {
            penalty: Some(penalty),
            ..PeakEwma::default()
        },
        queue: Queue::LINKERD,
    };
    let Some(wire::backend::Kind::Balancer(balancer)) = backend(balance).kind else {
        panic!("no balancer");
    };
    let Some(wire::backend::balance_p2c::Load::PenaltyPeakEwma(load)) = balancer.load else {
        panic!("{balancer:?}");
    };
    assert_eq!(load.penalty_decay, seconds(10));
    let backoff = Backoff {
        min: Duration::from_secs(1),
        max: Duration::from_secs(2),
        jitter: 0.5,
    };
    let accrual = accrual::to_proto(FailureAccrual::ConsecutiveFailures {
        max_failures: 7,
        backoff,
    });
    assert_eq!(accrual.ejection, None);
    let Some(wire::failure_accrual::Kind::ConsecutiveFailures(policy)) = accrual.kind else {
        panic!("{accrual:?}");
    };
    assert!(!policy.backoff.unwrap().respect_retry_after_hint);
    let of_retry = value::backoff_to_proto(backoff);
    assert!(!of_retry.respect_retry_after_hint);
    let (timeouts, deprecated) = rule::timeouts_to_proto(Timeouts {
        request: Some(Duration::from_secs(2)),
        ..Timeouts::default()
    });
    assert_eq!(timeouts.unwrap().request, seconds(2));
    assert_eq!(deprecated, seconds(2));
}

/// Older controllers set the request's time limit in a deprecated field.
#[test]
fn deprecated_timeout_is_used_if_new_one_is_absent() {
    let seconds = |s| Some(value::duration_to_proto(Duration::from_secs(s)));
    let limits = |request, deprecated| {
        let wire = crate::proto::http_route::Timeouts {
            request,
            ..Default::default()
        };
        rule::timeouts(Some(wire), deprecated).unwrap().request
    };
    assert_eq!(limits(None, seconds(2)), Some(Duration::from_secs(2)));
    assert_eq!(limits(seconds(1), seconds(2)), Some(Duration::from_secs(1)));
    assert_eq!(limits(None, None), None);
}

/// A backend of weight 0 receives no traffic, and weights that are all 0 mean no backend.
#[test]
fn backends_of_weight_zero_are_omitted() {
    let backend = |weight| wire::tls_route::WeightedRouteBackend {
        weight,
        backend: Some(wire::tls_route::RouteBackend {
            backend: Some(backend::to_proto(&Backend {
                meta: Meta::new_default("test"),
                target: BackendTarget::None,
            })),
            filters: Vec::new(),
        }),
    };
    let route = |backends| wire::TlsRoute {
        metadata: Some(meta::to_proto(&Meta::new_default("test"))),
        snis: Vec::new(),
        rules: vec![wire::tls_route::Rule {
            backends: Some(wire::tls_route::Distribution {
                kind: Some(wire::tls_route::distribution::Kind::RandomAvailable(
                    wire::tls_route::distribution::RandomAvailable { backends },
                )),
            }),
            filters: Vec::new(),
        }],
    };
    let weights = |backends| match tcp::tls_route(route(backends)).unwrap().backends {
        Distribution::RandomAvailable(backends) => backends
            .iter()
            .map(|(_, weight)| *weight)
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(weights(vec![backend(0), backend(3)]), [3]);
    assert_eq!(weights(vec![backend(0)]), [0u32; 0]);
    let nowhere = TlsRoute {
        backends: Distribution::RandomAvailable(Vec::new()),
        ..tcp::tls_route(route(vec![backend(1)])).unwrap()
    };
    let sent = tcp::tls_route(tcp::tls_route_to_proto(&nowhere)).unwrap();
    assert_eq!(sent.backends, Distribution::Empty);
}
