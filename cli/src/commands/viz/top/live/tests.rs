//! Rows of scripted requests.

use std::sync::Arc;

use http::{Method, StatusCode};

use super::*;

fn context(pod: &str) -> Arc<TapContext> {
    Arc::new(TapContext {
        direction: TapDirection::Inbound,
        source: "[::ffff:10.0.0.1]:5000".parse().unwrap(),
        source_labels: Labels::default(),
        destination: "10.0.0.2:80".parse().unwrap(),
        destination_labels: [("pod", pod)].into_iter().collect(),
        route_labels: [("route", "GET /items")].into_iter().collect(),
    })
}

/// Returns the three events of a request to `web-0`.
fn request(stream: u64, path: &str, status: u16, latency: u64, end: TapStreamEnd) -> [TapEvent; 3] {
    let latency = Duration::from_millis(latency);
    let kinds = [
        TapEventKind::Request {
            method: Method::GET,
            scheme: "http".to_owned(),
            authority: "web".to_owned(),
            path: path.to_owned(),
            headers: None,
        },
        TapEventKind::Response {
            since_request: latency / 2,
            status: StatusCode::from_u16(status).unwrap(),
            headers: None,
        },
        TapEventKind::End {
            since_request: latency,
            since_response: latency / 2,
            response_bytes: 1,
            end,
            trailers: None,
        },
    ];
    let context = context("web-0");
    kinds.map(|kind| TapEvent {
        context: context.clone(),
        id: TapStreamId { base: 1, stream },
        kind,
    })
}

fn live(grouping: Grouping, events: &[[TapEvent; 3]]) -> LiveRequests {
    let mut live = LiveRequests::new(grouping);
    for event in events.iter().flatten() {
        live.record(event);
    }
    live
}

#[test]
fn requests_are_summed_by_path_without_query() {
    let events = [
        request(1, "/a?x=1", 200, 4, TapStreamEnd::Complete),
        request(2, "/a?x=2", 404, 2, TapStreamEnd::Complete),
        request(3, "/a", 503, 9, TapStreamEnd::Complete),
        request(4, "/a", 200, 3, TapStreamEnd::GrpcStatus(13)),
        request(5, "/a", 200, 3, TapStreamEnd::Reset(8)),
    ];
    let live = live(Grouping::default(), &events);
    let rows: Vec<(&RowKey, &Row)> = live.rows().collect();
    let [(key, row)] = rows[..] else {
        panic!("{rows:?}");
    };
    let expect = RowKey {
        proxy: "in",
        source: "10.0.0.1".to_owned(),
        destination: "web-0".to_owned(),
        method: "GET".to_owned(),
        path: "/a".to_owned(),
    };
    assert_eq!(*key, expect);
    assert_eq!((row.count, row.successes), (5, 2));
    assert_eq!(row.success_rate(), 0.4);
    let millis = [row.best, row.worst, row.last].map(|latency| latency.as_millis());
    assert_eq!(millis, [2, 9, 3]);
    assert_eq!(live.completed(), 5);
}

#[test]
fn rows_are_grouped_by_flags() {
    let grouping = Grouping {
        by_route: true,
        hides_sources: true,
    };
    let events = [
        request(1, "/items/1", 200, 4, TapStreamEnd::Complete),
        request(2, "/items/2", 200, 4, TapStreamEnd::Complete),
    ];
    let live = live(grouping, &events);
    let keys: Vec<&RowKey> = live.rows().map(|(key, _)| key).collect();
    let [key] = keys[..] else {
        panic!("{keys:?}");
    };
    assert_eq!((&*key.source, &*key.path), ("", "GET /items"));
}

#[test]
fn requests_from_before_the_tap_do_not_count() {
    let mut live = LiveRequests::new(Grouping::default());
    let [_, response, end] = request(1, "/a", 200, 1, TapStreamEnd::Complete);
    live.record(&response);
    live.record(&end);
    assert_eq!((live.completed(), live.rows().count()), (0, 0));
}

#[test]
fn rows_and_pending_requests_are_bounded() {
    let mut live = LiveRequests::new(Grouping::default());
    for at in 0..=MAX_ROWS as u64 {
        for event in request(at, &format!("/{at}"), 200, 1, TapStreamEnd::Complete) {
            live.record(&event);
        }
    }
    assert_eq!(live.rows().count(), MAX_ROWS);
    assert!(live.rows().all(|(key, _)| key.path != "/0"));

    let first = request(0, "/pending", 200, 1, TapStreamEnd::Complete);
    live.record(&first[0]);
    for at in 1..=MAX_PENDING as u64 {
        live.record(&request(at, "/pending", 200, 1, TapStreamEnd::Complete)[0]);
    }
    assert!(live.pending.len() <= MAX_PENDING);
    assert_eq!(live.started.len(), MAX_PENDING);
    let before = live.completed();
    live.record(&first[2]);
    assert_eq!(live.completed(), before, "the oldest request was forgotten");
}

#[test]
fn texts_of_peers_are_short_and_printable() {
    let path = format!("/\x1b{}", "ä".repeat(MAX_TEXT));
    let live = live(
        Grouping::default(),
        &[request(1, &path, 200, 1, TapStreamEnd::Complete)],
    );
    let (key, _) = live.rows().next().unwrap();
    assert!(key.path.starts_with("/\\u{1b}ä"), "{}", key.path);
    assert_eq!(key.path.chars().filter(|c| *c == 'ä').count(), MAX_TEXT - 2);
}
