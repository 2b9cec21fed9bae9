//! The table and the JSON of scripted samples.

use super::super::traffic::tests::sample;
use super::*;
use crate::clients::prometheus_api::Sample;

const ROUTE: [(&str, &str); 5] = [
    ("deployment", "frontend"),
    ("parent_name", "web"),
    ("parent_port", "80"),
    ("route_name", "get"),
    ("route_kind", "HTTPRoute"),
];

fn with(labels: &[(&str, &str)], value: f64) -> Sample {
    sample(&[&ROUTE, labels].concat(), value)
}

fn scripted() -> Rows {
    let v2 = [("backend_name", "web-v2"), ("backend_port", "80")];
    let v1 = [("backend_name", "web-v1"), ("backend_port", "80")];
    let idle = [("backend_name", "idle"), ("backend_port", "80")];
    let http = Samples {
        protocol: "http",
        requests: vec![
            with(&[("http_status", "200"), ("error", "")], 90.0),
            with(&[("http_status", "503"), ("error", "")], 10.0),
            with(&[("http_status", ""), ("error", "REQUEST_TIMEOUT")], 20.0),
        ],
        retries: vec![with(&[], 30.0)],
        latencies: [vec![with(&[], 0.0014)], Vec::new(), vec![with(&[], 1.5)]],
        backend_responses: vec![
            with(&[&v1[..], &[("http_status", "200")]].concat(), 60.0),
            with(&[&v2[..], &[("http_status", "404")]].concat(), 60.0),
            with(&idle, 0.0),
        ],
        backend_latencies: [vec![with(&v2, 0.002)], vec![with(&idle, 1.0)], Vec::new()],
    };
    let default = [
        ("deployment", "frontend"),
        ("parent_name", "api"),
        ("parent_port", "90"),
        ("route_name", "default"),
        ("route_kind", "default"),
    ];
    let grpc = Samples {
        protocol: "grpc",
        requests: vec![
            sample(&[&default[..], &[("grpc_status", "OK")]].concat(), 45.0),
            sample(
                &[&default[..], &[("grpc_status", "INTERNAL")]].concat(),
                15.0,
            ),
        ],
        retries: Vec::new(),
        latencies: Default::default(),
        backend_responses: Vec::new(),
        backend_latencies: Default::default(),
    };
    rows(&[http, grpc], |sample| {
        ("shop".to_owned(), sample.label("deployment").to_owned())
    })
}

#[test]
fn routes_are_followed_by_their_backends() {
    let window = TimeWindow::parse("1m").unwrap();
    assert_eq!(
        render(&scripted(), &window, false),
        "\
NAME      SERVICE  ROUTE      TYPE       BACKEND    SUCCESS  RPS  LATENCY_P50  LATENCY_P95  LATENCY_P99  TIMEOUTS  RETRIES
frontend  api:90   [default]  -                      75.00%  1.0            -            -            -     0.00%        -
frontend  web:80   get        HTTPRoute              75.00%  2.0          1ms            -       1500ms    16.67%   20.00%
                   ├─►                   web-v1:80  100.00%  1.0            -            -            -     0.00%
                   └─►                   web-v2:80  100.00%  1.0          2ms            -            -     0.00%
"
    );
    let all = render(&scripted(), &window, true);
    assert!(
        all.lines()
            .nth(1)
            .unwrap()
            .starts_with("shop       frontend"),
        "{all}"
    );
}

#[test]
fn json_has_keys_of_linkerd() {
    let window = TimeWindow::parse("1m").unwrap();
    let rows = scripted();
    let json = serde_json::to_value(entries(&rows, &window)).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 4);
    assert_eq!(
        json[1],
        serde_json::json!({
            "name": "frontend",
            "service": "web",
            "port": "80",
            "route": "get",
            "routeType": "HTTPRoute",
            "successRate": 0.75,
            "rps": 2.0,
            "latencyMsP50": 1.4,
            "latencyMsP95": null,
            "latencyMsP99": 1500.0,
            "timeoutRate": 20.0 / 120.0,
            "retryRate": 0.2,
        })
    );
    assert_eq!(json[3]["backend"], "web-v2");
    assert_eq!(json[3]["backendPort"], "80");
    assert!(json[3].get("retryRate").is_none());
}
