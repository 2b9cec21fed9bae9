//! Distributed tracing: reports a span of each sampled request for each side of it, and makes the
//! span the parent of the next party's.
//!
//! The context of the request decides; the proxy begins no trace (docs/reference/tracing.md). A
//! data thread opens a span before it handles a request ([`open`]) and queues it when the header
//! section of the response has arrived, or the request has failed. The control thread exports the
//! spans in batches ([`exporter`]). Spans are dropped and counted, never waited for, when the
//! collector takes them too slowly. Without a collector a request costs one load of a flag; a
//! request without a sampled context allocates nothing.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, Request, StatusCode};
use mesh_api::trace::EncodedSpan;
use mesh_core::trace::{Span, SpanContext, SpanId, SpanKind};
use mesh_runtime::metrics::Exemplars;
use tokio::time::Instant;

use self::propagation::TraceContext;
use self::queue::SpanQueue;
use crate::config::TraceConfig;
use crate::random;
use crate::telemetry::labels::Direction;

mod attributes;
pub(crate) mod exporter;
mod propagation;
mod queue;
mod resource;

/// Opens spans of requests, and queues them for the exporter. Shared by all data threads.
#[derive(Debug)]
pub(crate) struct Tracer {
    queue: Arc<SpanQueue>,
}

/// The span of a request that is being handled. It is queued when it is dropped.
#[derive(Debug)]
pub(crate) struct OpenSpan {
    /// Taken on drop.
    span: Option<Span>,
    /// The context of the request as it was received.
    received: TraceContext,
    started: Instant,
    queue: Arc<SpanQueue>,
}

/// Returns whether latencies keep exemplars: only with a collector, because requests have no spans
/// otherwise.
pub(crate) fn exemplars(config: Option<&TraceConfig>) -> Exemplars {
    match config {
        Some(_) => Exemplars::Kept,
        None => Exemplars::Off,
    }
}

/// Opens the span of a request that has a sampled context, and makes it the request's parent.
/// `tracer` is `None` if there is no collector.
#[inline]
pub(crate) fn open<B>(
    tracer: Option<&Tracer>,
    kind: SpanKind,
    direction: Direction,
    request: &mut Request<B>,
) -> Option<Box<OpenSpan>> {
    tracer?.open(kind, direction, request)
}

/// Returns what the metrics of a request refer to if it has a span.
#[inline]
pub(crate) fn context(span: Option<&OpenSpan>) -> Option<SpanContext> {
    let span = span?.span.as_ref()?;
    Some(SpanContext {
        trace_id: span.trace_id,
        span_id: span.span_id,
    })
}

/// Ends a span with the status of the response.
#[inline]
pub(crate) fn end(span: Option<Box<OpenSpan>>, status: StatusCode) {
    if let Some(mut span) = span {
        span.set_status(status);
    }
}

impl Tracer {
    // Not inlined, because most proxies have no collector.
    #[inline(never)]
    fn open<B>(
        &self,
        kind: SpanKind,
        direction: Direction,
        request: &mut Request<B>,
    ) -> Option<Box<OpenSpan>> {
        let received = TraceContext::extract_sampled(request.headers())?;
        let span_id = new_span_id();
        let started = SystemTime::now();
        let span = Span {
            trace_id: received.trace_id,
            span_id,
            parent: received.span_id,
            flags: received.flags,
            trace_state: received.trace_state(request.headers()),
            name: attributes::span_name(request.uri()),
            kind,
            started,
            ended: started,
            attributes: attributes::of_request(request, direction),
        };
        received.inject(span_id, request.headers_mut());
        Some(Box::new(OpenSpan {
            span: Some(span),
            received,
            started: Instant::now(),
            queue: self.queue.clone(),
        }))
    }
}

impl OpenSpan {
    fn set_status(&mut self, status: StatusCode) {
        if let Some(span) = &mut self.span {
            span.attributes.push(attributes::STATUS, status.as_str());
        }
    }

    /// Restores the parent that the request was received with, to send it again.
    pub(crate) fn restore_parent(&self, headers: &mut HeaderMap) {
        self.received.inject(self.received.span_id, headers);
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(mut span) = self.span.take() {
            span.ended = span.started + self.started.elapsed();
            self.queue.push(EncodedSpan::new(&span));
        }
    }
}

fn new_span_id() -> SpanId {
    loop {
        // Zero is not a span.
        if let Some(id) = SpanId::new(random::random()) {
            return id;
        }
    }
}

#[cfg(test)]
mod tests;
