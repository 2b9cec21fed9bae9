//! Tests of the metrics of one exchange.

use super::*;

/// The `response_total` series of an exchange that is dropped before or after the response
/// headers.
fn dropped(head: Option<(StatusCode, &[(&'static str, &'static str)])>) -> String {
    let registry = Registry::new();
    let endpoint = endpoint(&registry, ResponseDurations::Off);
    let observers = ExchangeMetrics {
        endpoint: Some(Rc::new(endpoint)),
        ..ExchangeMetrics::default()
    };
    let request = [("content-type", "application/grpc")];
    let mut exchange = Exchange::start(observers.clone(), &headers(&request), false);
    if let Some((status, fields)) = head {
        exchange.response_headers(status, &headers(fields));
    }
    drop(exchange);
    let text = String::from_utf8(registry.encode()).unwrap();
    drop(observers);
    let counted = text
        .lines()
        .filter(|line| line.starts_with("response_total{"));
    counted.collect::<Vec<_>>().join("\n")
}

fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let fields = fields.iter().map(|(name, value)| {
        (
            http::HeaderName::from_static(name),
            http::HeaderValue::from_static(value),
        )
    });
    fields.collect()
}

fn endpoint(registry: &Registry, durations: ResponseDurations) -> EndpointMetrics {
    EndpointFamilies::new(registry, Exemplars::Off, durations).endpoint(Labels::new())
}

/// The lines of a histogram with its sum and number of observations, by status.
fn observed(registry: &Registry, name: &str) -> Vec<String> {
    let text = String::from_utf8(registry.encode()).unwrap();
    let lines = text.lines().filter(|line| {
        let after = line.strip_prefix(name).unwrap_or_default();
        after.starts_with("_sum") || after.starts_with("_count")
    });
    lines.map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn latency_ends_with_the_first_frame_and_duration_with_the_response() {
    for durations in [ResponseDurations::Observed, ResponseDurations::Off] {
        let registry = Registry::new();
        let endpoint = Rc::new(endpoint(&registry, durations));
        let start = || {
            let observers = ExchangeMetrics {
                endpoint: Some(endpoint.clone()),
                ..ExchangeMetrics::default()
            };
            Exchange::start(observers, &HeaderMap::new(), false)
        };
        let wait = async |millis| tokio::time::advance(Duration::from_millis(millis)).await;
        let mut stream = start();
        wait(10).await;
        stream.response_headers(StatusCode::OK, &HeaderMap::new());
        wait(20).await;
        assert_eq!(observed(&registry, "response_latency_ms"), [""; 0]);
        stream.response_frame(1);
        let of_stream = [
            r#"response_latency_ms_sum{status_code="200"} 30"#,
            r#"response_latency_ms_count{status_code="200"} 1"#,
        ];
        assert_eq!(observed(&registry, "response_latency_ms"), of_stream);
        wait(5_000).await;
        stream.response_frame(1);
        stream.response_end(None);
        drop(stream);
        assert_eq!(observed(&registry, "response_latency_ms"), of_stream);
        let duration = [
            r#"response_duration_ms_sum{status_code="200"} 5030"#,
            r#"response_duration_ms_count{status_code="200"} 1"#,
        ];
        let expected = match durations {
            ResponseDurations::Observed => &duration[..],
            ResponseDurations::Off => &[],
        };
        assert_eq!(observed(&registry, "response_duration_ms"), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn response_without_body_has_a_latency_and_failed_request_none() {
    type Finish = fn(&mut Exchange);
    let headers = |exchange: &mut Exchange| {
        exchange.response_headers(StatusCode::NO_CONTENT, &HeaderMap::new());
    };
    let finishes: [(Finish, bool); 5] = [
        (|exchange| exchange.response_end(None), true),
        (|exchange| exchange.failed(StreamError::Reset), true),
        (|exchange| exchange.dropped(), true),
        (|exchange| exchange.failed(StreamError::Reset), false),
        (|exchange| exchange.dropped(), false),
    ];
    for (finish, has_response) in finishes {
        let registry = Registry::new();
        let observers = ExchangeMetrics {
            endpoint: Some(Rc::new(endpoint(&registry, ResponseDurations::Observed))),
            ..ExchangeMetrics::default()
        };
        let mut exchange = Exchange::start(observers, &HeaderMap::new(), false);
        if has_response {
            headers(&mut exchange);
        }
        tokio::time::advance(Duration::from_millis(7)).await;
        finish(&mut exchange);
        let expected = [
            r#"response_latency_ms_sum{status_code="204"} 7"#,
            r#"response_latency_ms_count{status_code="204"} 1"#,
        ];
        let expected = if has_response { &expected[..] } else { &[] };
        assert_eq!(observed(&registry, "response_latency_ms"), expected);
    }
}

#[test]
fn stream_cancelled_by_client_counts_as_success() {
    let counted = dropped(Some((StatusCode::OK, &[])));
    assert!(counted.contains(r#"classification="success""#), "{counted}");
    assert!(counted.contains(r#"status_code="200""#), "{counted}");
    assert!(counted.contains(r#"grpc_status="2""#), "{counted}");
    assert!(counted.ends_with(" 1"), "{counted}");
}

#[test]
fn failed_status_counts_as_failure_when_client_cancels() {
    let counted = dropped(Some((StatusCode::OK, &[("grpc-status", "14")])));
    assert!(counted.contains(r#"classification="failure""#), "{counted}");
}

#[test]
fn cancelled_request_without_response_is_not_counted() {
    assert_eq!(dropped(None), "");
}
