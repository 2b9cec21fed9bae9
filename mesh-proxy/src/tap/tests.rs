//! Subscriptions and recorders without connections: their reports, and each bound.

use std::net::SocketAddr;

use http::HeaderValue;
use mesh_core::labels::Labels as Pairs;
use mesh_core::tap::{TapDirection, TextFilter};

use super::*;

const ALL: TapFilter = TapFilter::All(Vec::new());

fn tap() -> (Registry, Arc<Tap>) {
    let registry = Registry::new();
    let tap = Arc::new(Tap::new(&registry));
    (registry, tap)
}

fn subscribe(tap: &Arc<Tap>, limit: u32, filter: TapFilter, with_headers: bool) -> TapEvents {
    let request = TapRequest {
        limit,
        filter,
        with_headers,
    };
    tap.subscribe(request).unwrap()
}

fn context() -> TapContext {
    let addr: SocketAddr = "10.0.0.1:80".parse().unwrap();
    TapContext {
        direction: TapDirection::Inbound,
        source: addr,
        source_labels: Pairs::default(),
        destination: addr,
        destination_labels: Pairs::default(),
        route_labels: Pairs::default(),
    }
}

fn request(path: &str) -> http::Request<()> {
    http::Request::builder()
        .version(Version::HTTP_2)
        .uri(format!("http://web{path}"))
        .header("x-a", "b")
        .body(())
        .unwrap()
}

fn record(tap: &Tap, path: &str) -> Option<Box<TapRecorder>> {
    tap.record(&request(path), context())
}

fn counted(registry: &Registry, result: &str) -> u64 {
    let text = String::from_utf8(registry.encode()).unwrap();
    let series = format!("mesh_tap_events_total{{result=\"{result}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap_or("0").parse().unwrap()
}

/// Returns the kinds of the events that are queued.
fn queued(events: &mut TapEvents) -> Vec<TapEventKind> {
    let queued = std::iter::from_fn(|| events.events.try_recv().ok());
    queued
        .map(|mut queued| queued.event.take().unwrap().kind)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn matching_request_is_reported_from_start_to_end() {
    let (_registry, tap) = tap();
    assert!(!tap.is_active());
    let books = TapFilter::Path(TextFilter::Prefix("/books".to_owned()));
    let mut events = subscribe(&tap, 1, books, false);
    assert!(tap.is_active());
    assert!(record(&tap, "/authors").is_none());

    let mut recorder = record(&tap, "/books?a").unwrap();
    tokio::time::advance(Duration::from_millis(10)).await;
    recorder.response_headers(StatusCode::CREATED, &HeaderMap::new());
    recorder.response_data(3);
    recorder.response_data(4);
    tokio::time::advance(Duration::from_millis(5)).await;
    recorder.end(TapStreamEnd::GrpcStatus(7), None);
    drop(recorder);

    let mut kinds = Vec::new();
    // The limit is reached, so that the subscription ends with the last event.
    while let Some(event) = events.next().await {
        assert_eq!(event.context.direction, TapDirection::Inbound);
        kinds.push(event.kind);
    }
    let expected = [
        TapEventKind::Request {
            method: http::Method::GET,
            scheme: "http".to_owned(),
            authority: "web".to_owned(),
            path: "/books?a".to_owned(),
            headers: None,
        },
        TapEventKind::Response {
            since_request: Duration::from_millis(10),
            status: StatusCode::CREATED,
            headers: None,
        },
        TapEventKind::End {
            since_request: Duration::from_millis(15),
            since_response: Duration::from_millis(5),
            response_bytes: 7,
            end: TapStreamEnd::GrpcStatus(7),
            trailers: None,
        },
    ];
    assert_eq!(kinds, expected);
    assert!(!tap.is_active());
}

#[test]
fn limit_bounds_the_reported_requests() {
    let (_registry, tap) = tap();
    let _events = subscribe(&tap, 2, ALL, false);
    let recorders = [(); 3].map(|()| record(&tap, "/").is_some());
    assert_eq!(recorders, [true, true, false]);
}

#[test]
fn dropped_request_ends_as_cancelled() {
    let (_registry, tap) = tap();
    let mut events = subscribe(&tap, 1, ALL, false);
    drop(record(&tap, "/"));
    let kinds = queued(&mut events);
    let [_, TapEventKind::End { end, .. }] = &kinds[..] else {
        panic!("{kinds:?}");
    };
    assert_eq!(*end, TapStreamEnd::Reset(ErrorCode::CANCEL.0));
}

#[test]
fn headers_are_reported_where_asked_for_and_bounded() {
    let (_registry, tap) = tap();
    let mut with = subscribe(&tap, 9, ALL, true);
    let mut without = subscribe(&tap, 9, ALL, false);
    let mut recorder = record(&tap, "/").unwrap();
    let mut large = HeaderMap::new();
    for _ in 0..3 {
        let value = HeaderValue::from_str(&"v".repeat(MAX_HEADER_BYTES / 2 - 5)).unwrap();
        large.append("large", value);
    }
    recorder.response_headers(StatusCode::OK, &large);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    recorder.end(TapStreamEnd::GrpcStatus(0), Some(&trailers));

    let fields = |kind: TapEventKind| match kind {
        TapEventKind::Request { headers, .. } | TapEventKind::Response { headers, .. } => headers,
        TapEventKind::End { trailers, .. } => trailers,
    };
    let names = |headers: Option<TapHeaders>| -> Vec<String> {
        headers
            .into_iter()
            .flatten()
            .map(|(name, _)| name)
            .collect()
    };
    let reported: Vec<_> = queued(&mut with)
        .into_iter()
        .map(|kind| names(fields(kind)))
        .collect();
    let expected = [
        vec![":method", ":scheme", ":authority", ":path", "x-a"],
        vec![":status", "large", "large"],
        vec!["grpc-status"],
    ];
    assert_eq!(reported, expected);
    assert!(
        queued(&mut without)
            .into_iter()
            .all(|kind| fields(kind).is_none())
    );
}

#[test]
fn slow_observer_loses_events_and_delays_no_request() {
    let (registry, tap) = tap();
    let mut slow = subscribe(&tap, u32::MAX, ALL, false);
    // Two events each.
    for _ in 0..MAX_QUEUED_EVENTS {
        drop(record(&tap, "/"));
    }
    assert_eq!(queued(&mut slow).len(), MAX_QUEUED_EVENTS);
    assert_eq!(counted(&registry, "queued"), MAX_QUEUED_EVENTS as u64);
    assert_eq!(counted(&registry, "dropped"), MAX_QUEUED_EVENTS as u64);
    assert_eq!(tap.queue.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn queued_bytes_of_all_observers_are_bounded() {
    let (registry, tap) = tap();
    let slow = subscribe(&tap, u32::MAX, ALL, false);
    let path = format!("/{}", "p".repeat(60_000));
    for _ in 0..100 {
        drop(record(&tap, &path));
    }
    assert!(tap.queue.bytes.load(Ordering::Relaxed) <= MAX_QUEUED_BYTES);
    assert!(counted(&registry, "dropped") > 20);
    drop(slow);
    assert_eq!(tap.queue.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn subscriptions_are_bounded() {
    let (_registry, tap) = tap();
    let all: Vec<_> = (0..MAX_SUBSCRIPTIONS)
        .map(|_| subscribe(&tap, 1, ALL, false))
        .collect();
    let one = TapRequest {
        limit: 1,
        filter: ALL,
        with_headers: false,
    };
    assert!(tap.subscribe(one.clone()).is_err());
    drop(all);
    assert!(tap.subscribe(one).is_ok());
}

#[tokio::test(start_paused = true)]
async fn events_of_a_burst_wait_for_each_other_once() {
    let (_registry, tap) = tap();
    let mut events = subscribe(&tap, 10, ALL, false);
    for _burst in 0..2 {
        let began = Instant::now();
        let burst = async { ["/a", "/b", "/c"].map(|path| record(&tap, path)) };
        // The observer waits before the burst begins.
        let (first, recorders) = tokio::join!(events.next(), burst);
        let waited = began.elapsed();
        // Timers have a resolution of a millisecond.
        assert!(waited >= COLLECTING, "{waited:?}");
        assert!(
            waited <= COLLECTING + Duration::from_millis(1),
            "{waited:?}"
        );
        let ids: Vec<_> = recorders.iter().flatten().map(|it| it.id).collect();
        let mut seen = vec![first.expect("each request is reported").id];
        for _other in 0..2 {
            seen.push(events.next().await.expect("each request is reported").id);
        }
        assert_eq!(seen, ids);
        assert_eq!(began.elapsed(), waited);
        drop(recorders);
        // Only the ends of the requests are left.
        queued(&mut events);
    }
}
