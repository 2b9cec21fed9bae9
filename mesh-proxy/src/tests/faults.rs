//! Faults of rules and backends.

use http::StatusCode;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    GrpcRoute, GrpcRoutes, HttpRoute, OutboundProtocol, OutboundRule,
};
use mesh_core::resilience::Timeouts;
use mesh_core::route::Rule;
use mesh_core::route::filter::{Filter, HeaderModifier, Ratio};

use super::answers::{Answers, detect, first, forward, http_route};
use super::app::{App, Client, Speaks, ask, http2};
use super::world::{Proxy, WEB, World, run};

const NONE: Ratio = Ratio {
    numerator: 0,
    denominator: 1_000_000,
};

fn abort(status: u16, ratio: Ratio) -> Filter {
    Filter::InjectHttpFailure {
        status: StatusCode::from_u16(status).unwrap(),
        message: "fault broken".into(),
        ratio,
    }
}

fn route(app: &App, filters: Vec<Filter>) -> HttpRoute {
    http_route("all", &[], filters, first(forward(app.addr)))
}

async fn routed(app: &App, protocol: OutboundProtocol) -> (World, Answers, Proxy) {
    let (world, answers) = Answers::start().await;
    answers.policy(app.addr, protocol);
    let proxy = world.proxy_with(WEB, &[("DESTINATION_PROFILE_NETWORKS", Some(""))]);
    (world, answers, proxy)
}

#[test]
fn aborts_of_no_and_of_all_requests_need_no_luck() {
    Speaks::each(async |speaks| {
        let app = App::start().await;
        let all = vec![abort(503, NONE), abort(429, Ratio::ALL)];
        let (_world, _answers, proxy) = routed(&app, detect(vec![route(&app, all)], None)).await;
        let mut client = Client::new(proxy.outbound(app.addr).await, speaks).await;
        for _ in 0..100 {
            assert_eq!(client.get().await, (429, String::new()), "{speaks:?}");
        }
    });
}

/// The extension carries the filters of a gRPC route with one that the API lacks.
#[test]
fn call_is_aborted_with_a_grpc_status_by_both_parts_of_the_policy() {
    let headers = Filter::ResponseHeaders(HeaderModifier::default());
    for others in [vec![], vec![headers]] {
        run(async || {
            let app = App::start().await;
            let mut filters = others.clone();
            filters.push(Filter::InjectGrpcFailure {
                code: 14,
                message: "fault broken".into(),
                ratio: Ratio::ALL,
            });
            let rule = Rule {
                matches: Vec::new(),
                action: OutboundRule {
                    filters,
                    backends: first(forward(app.addr)),
                    timeouts: Timeouts::default(),
                    retry: None,
                    allow_request_headers: false,
                },
            };
            let protocol = OutboundProtocol::Grpc(GrpcRoutes {
                routes: vec![GrpcRoute {
                    meta: Meta::new_default("all"),
                    hosts: Vec::new(),
                    rules: vec![rule],
                }],
                failure_accrual: None,
            });
            let (_world, _answers, proxy) = routed(&app, protocol).await;
            let mut client = http2(proxy.outbound(app.addr).await).await;
            let call = http::Request::post("http://web/a.Service/Method")
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let response = ask(&mut client, call).await.unwrap().unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["grpc-status"], "14");
            let message = response.headers()["grpc-message"].to_str().unwrap();
            assert!(message.ends_with(": fault broken"), "{message}");
        });
    }
}
