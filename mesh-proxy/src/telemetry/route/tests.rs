//! The labels of statuses.

use http::StatusCode;

use super::super::status::StreamError;
use super::*;

/// Returns the labels of the series that an outcome is counted in, of one route of the family.
fn counted(
    families: &RouteFamilies,
    is_grpc: bool,
    outcome: Outcome,
    registry: &Registry,
) -> String {
    let route = if is_grpc {
        families.grpc(Labels::new())
    } else {
        families.http(Labels::new())
    };
    route.end(outcome, Duration::ZERO, None, None);
    let text = String::from_utf8(registry.encode()).unwrap();
    let series = text.lines().filter_map(|line| {
        let (name, labels) = line.strip_suffix("} 1")?.split_once('{')?;
        name.ends_with("_statuses_total").then(|| labels.to_owned())
    });
    series.collect::<Vec<_>>().join(" ")
}

#[test]
fn statuses_have_the_labels_of_linkerd() {
    let response = |grpc| Outcome::Response {
        status: StatusCode::OK,
        grpc,
    };
    let failed = |status| Outcome::Failed {
        status,
        error: StreamError::FailFast,
    };
    let inbound: fn(&Registry) -> RouteFamilies =
        |registry| RouteFamilies::inbound(registry, Exemplars::Off);
    let route: fn(&Registry) -> RouteFamilies =
        |registry| RouteFamilies::outbound_route(registry, Exemplars::Off);
    let backend: fn(&Registry) -> RouteFamilies =
        |registry| RouteFamilies::outbound_backend(registry, Exemplars::Off);
    let code = |code| Some(GrpcStatus::Code(code));
    // What inbound and outbound families print for HTTP, and what they print for gRPC.
    for (outcome, http, grpc) in [
        (response(None), "200", ["", "UNKNOWN"]),
        (response(Some(GrpcStatus::Missing)), "200", ["", "UNKNOWN"]),
        (response(code(0)), "200", ["0", "OK"]),
        (response(code(14)), "200", ["14", "UNAVAILABLE"]),
        (failed(None), "", ["", "UNKNOWN"]),
        (failed(Some(StatusCode::OK)), "200", ["", "UNKNOWN"]),
    ] {
        let error = match outcome {
            Outcome::Response { .. } => "",
            Outcome::Failed { .. } => "FAIL_FAST",
        };
        let status = |value: &str| format!("status=\"{value}\"");
        let outbound = |label: &str, value: &str| format!("{label}=\"{value}\",error=\"{error}\"");
        for (families, of_http, of_grpc) in [
            (inbound, status(http), status(grpc[0])),
            (
                route,
                outbound("http_status", http),
                outbound("grpc_status", grpc[1]),
            ),
            (
                backend,
                outbound("http_status", http),
                outbound("grpc_status", grpc[1]),
            ),
        ] {
            for (is_grpc, expected) in [(false, of_http), (true, of_grpc)] {
                let registry = Registry::new();
                let seen = counted(&families(&registry), is_grpc, outcome, &registry);
                assert_eq!(seen, expected, "{outcome:?}");
            }
        }
    }
}
