//! Spans and their queue without connections: reports, and each bound.

use std::time::Duration;

use http::HeaderValue;
use mesh_api::opentelemetry::common::v1::any_value;
use mesh_api::opentelemetry::trace::v1 as wire;
use mesh_core::trace::{Attributes, TraceFlags, TraceId};
use mesh_runtime::metrics::{Counter, Labels, Registry};
use tokio::time::advance;
use tokio_util::sync::CancellationToken;

use super::queue::{MAX_BATCH, MAX_BATCH_BYTES, MAX_QUEUED, MAX_QUEUED_BYTES, SpanBatches};
use super::*;
use crate::tests::trace::hex;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
const DELAY: Duration = Duration::from_secs(5);

/// A tracer, its spans, and how many it has dropped.
fn tracer() -> (Tracer, SpanBatches, Counter) {
    let family = Registry::new().counter_family("dropped", "Dropped");
    let dropped = family.with(&Labels::new());
    let (queue, batches) = queue::new(dropped.clone(), DELAY);
    let queue = Arc::new(queue);
    (Tracer { queue }, batches, dropped)
}

fn request(parent: &'static str, path: &str) -> Request<()> {
    let request = Request::get(path).header("traceparent", parent);
    request.header("tracestate", "vendor=1").body(()).unwrap()
}

fn opened(tracer: &Tracer, request: &mut Request<()>) -> Option<Box<OpenSpan>> {
    open(Some(tracer), SpanKind::Client, Direction::Outbound, request)
}

/// All queued spans, without waiting.
async fn queued(batches: &mut SpanBatches) -> Vec<Vec<EncodedSpan>> {
    let stop = CancellationToken::new();
    stop.cancel();
    let mut all = Vec::new();
    while let Some(batch) = batches.next(&stop).await {
        all.push(batch);
    }
    all
}

/// All queued spans as a collector reads them.
async fn reported(batches: &mut SpanBatches) -> Vec<wire::Span> {
    let spans = queued(batches).await.concat();
    spans.iter().map(|span| span.decode().unwrap()).collect()
}

/// The texts of the attributes with a name.
fn attributes<'s>(span: &'s wire::Span, name: &str) -> Vec<&'s str> {
    let with_name = span.attributes.iter().filter(|it| it.key == name);
    let texts = with_name.map(|it| match it.value.as_ref().unwrap().value.as_ref() {
        Some(any_value::Value::StringValue(text)) => text.as_str(),
        other => panic!("{other:?}"),
    });
    texts.collect()
}

fn span(bytes: usize) -> EncodedSpan {
    EncodedSpan::new(&Span {
        trace_id: TraceId::new([1; 16]).unwrap(),
        span_id: SpanId::new([2; 8]).unwrap(),
        parent: SpanId::new([3; 8]).unwrap(),
        flags: TraceFlags::SAMPLED,
        trace_state: Box::default(),
        name: "n".repeat(bytes).into(),
        kind: SpanKind::Server,
        started: SystemTime::UNIX_EPOCH,
        ended: SystemTime::UNIX_EPOCH,
        attributes: Attributes::default(),
    })
}

#[tokio::test(start_paused = true)]
async fn sampled_request_has_a_span_and_becomes_its_child() {
    let (tracer, mut batches, dropped) = tracer();
    let mut request = request(PARENT, "/a?b");
    let open = opened(&tracer, &mut request).unwrap();
    advance(Duration::from_millis(30)).await;
    end(Some(open), StatusCode::OK);
    let spans = reported(&mut batches).await;
    let [span] = &spans[..] else {
        panic!("{spans:?}");
    };
    assert_eq!(hex(&span.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(hex(&span.parent_span_id), "00f067aa0ba902b7");
    assert_ne!(span.span_id, span.parent_span_id);
    assert_eq!(span.flags & 0xff, 1);
    assert_eq!(span.trace_state, "vendor=1");
    assert_eq!(span.name, "/a");
    assert_eq!(span.kind(), wire::span::SpanKind::Client);
    let took = span.end_time_unix_nano - span.start_time_unix_nano;
    assert_eq!(took, 30_000_000);
    assert_eq!(attributes(span, "http.response.status_code"), ["200"]);
    let expect = format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id));
    assert_eq!(request.headers()["traceparent"], expect.as_str());
    assert_eq!(request.headers()["tracestate"], "vendor=1");
    assert_eq!(dropped.value(), 0);
}

#[tokio::test]
async fn other_requests_have_no_span_and_keep_their_headers() {
    let (tracer, mut batches, _) = tracer();
    for parent in [UNSAMPLED, "", "invalid", "00-0-0-01"] {
        let mut request = request(parent, "/");
        let before = request.headers().clone();
        assert!(opened(&tracer, &mut request).is_none(), "{parent}");
        assert_eq!(*request.headers(), before, "{parent}");
    }
    let mut without = Request::get("/").body(()).unwrap();
    assert!(opened(&tracer, &mut without).is_none());
    assert!(without.headers().is_empty());
    let mut sampled = request(PARENT, "/");
    assert!(open(None, SpanKind::Server, Direction::Inbound, &mut sampled).is_none());
    assert_eq!(sampled.headers()["traceparent"], PARENT);
    assert_eq!(queued(&mut batches).await, Vec::<Vec<EncodedSpan>>::new());
}

#[tokio::test]
async fn failed_request_has_a_span_without_status() {
    let (tracer, mut batches, _) = tracer();
    drop(opened(&tracer, &mut request(PARENT, "/")));
    let spans = reported(&mut batches).await;
    assert!(attributes(&spans[0], "http.response.status_code").is_empty());
}

#[tokio::test]
async fn attempts_have_the_same_parent() {
    for (name, value) in [
        ("traceparent", PARENT),
        ("b3", "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1"),
        ("grpc-trace-bin", "AABL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQK3AgE"),
    ] {
        let (tracer, mut batches, _) = tracer();
        let mut request = Request::get("/").header(name, value).body(()).unwrap();
        let failed = opened(&tracer, &mut request).unwrap();
        assert_ne!(request.headers()[name], value);
        failed.restore_parent(request.headers_mut());
        drop(failed);
        drop(opened(&tracer, &mut request));
        let spans = reported(&mut batches).await;
        let parents: Vec<_> = spans.iter().map(|span| hex(&span.parent_span_id)).collect();
        assert_eq!(parents, ["00f067aa0ba902b7", "00f067aa0ba902b7"], "{name}");
        assert_ne!(spans[0].span_id, spans[1].span_id);
    }
}

#[tokio::test]
async fn headers_that_are_not_text_are_reported_without_invalid_bytes() {
    let (tracer, mut batches, _) = tracer();
    let mut request = request(PARENT, "/");
    let opaque = HeaderValue::from_bytes(b"a\xff").unwrap();
    let _none = request.headers_mut().insert("user-agent", opaque.clone());
    let _some = request.headers_mut().insert("tracestate", opaque);
    drop(opened(&tracer, &mut request));
    let spans = reported(&mut batches).await;
    assert_eq!(attributes(&spans[0], "user_agent.original"), ["a\u{fffd}"]);
    assert_eq!(spans[0].trace_state, "");
}

#[tokio::test]
async fn spans_beyond_the_queue_are_dropped_and_counted() {
    let (tracer, mut batches, dropped) = tracer();
    for _ in 0..MAX_QUEUED + 7 {
        tracer.queue.push(span(0));
    }
    assert_eq!(dropped.value(), 7);
    assert_eq!(batches.len(), MAX_QUEUED);
    let batches = queued(&mut batches).await;
    assert_eq!(batches.concat().len(), MAX_QUEUED);
    assert!(batches.iter().all(|batch| batch.len() <= MAX_BATCH));
    tracer.queue.push(span(0));
    assert_eq!(dropped.value(), 7, "there is room again");
}

#[tokio::test]
async fn bytes_of_queued_spans_and_of_batches_are_bounded() {
    let (tracer, mut batches, dropped) = tracer();
    let bytes = 60 << 10;
    let fit = (MAX_QUEUED_BYTES / span(bytes).len()) as u64;
    for _ in 0..fit + 3 {
        tracer.queue.push(span(bytes));
    }
    assert_eq!(dropped.value(), 3);
    let batches = queued(&mut batches).await;
    for batch in &batches {
        let size: usize = batch.iter().map(EncodedSpan::len).sum();
        assert!(size <= MAX_BATCH_BYTES, "{size}");
    }
    assert_eq!(batches.concat().len() as u64, fit);
    tracer.queue.push(span(bytes));
    assert_eq!(dropped.value(), 3, "there is room again");
}

#[tokio::test(start_paused = true)]
async fn batch_waits_for_the_delay_or_until_it_is_complete() {
    let (tracer, mut batches, _) = tracer();
    let running = CancellationToken::new();
    let began = Instant::now();
    tracer.queue.push(span(0));
    let batch = batches.next(&running).await.unwrap();
    assert_eq!((batch.len(), began.elapsed()), (1, DELAY));

    let began = Instant::now();
    for _ in 0..MAX_BATCH + 1 {
        tracer.queue.push(span(0));
    }
    let batch = batches.next(&running).await.unwrap();
    assert_eq!((batch.len(), began.elapsed()), (MAX_BATCH, Duration::ZERO));

    let stopped = CancellationToken::new();
    stopped.cancel();
    assert_eq!(batches.next(&stopped).await.unwrap().len(), 1);
    assert_eq!(batches.next(&stopped).await, None);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn spans_without_an_exporter_are_counted() {
    let (tracer, batches, dropped) = tracer();
    drop(batches);
    tracer.queue.push(span(0));
    assert_eq!(dropped.value(), 1);
}
