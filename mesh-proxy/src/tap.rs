//! Tap: reports requests to observers, which subscribe over gRPC ([`crate::tap_server`]).
//!
//! [`Tap`] is shared by all threads. A request without a subscriber costs one load of a flag. A
//! request that a subscription matches has a [`TapRecorder`], which its metrics
//! ([`Exchange`](crate::telemetry::http::Exchange)) inform of the response. Events are dropped and
//! counted, never waited for, when an observer reads too slowly or the events of all observers
//! exceed [`MAX_QUEUED_BYTES`].

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, StatusCode, Version};
use mesh_core::tap::{
    TapContext, TapEvent, TapEventKind, TapFilter, TapHeaders, TapRequest, TapStreamEnd,
    TapStreamId, TapSubject,
};
use mesh_http2::ErrorCode;
use mesh_runtime::metrics::{Counter, Labels, Registry};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::random;

/// The subscriptions of the process.
#[derive(Debug)]
pub(crate) struct Tap {
    /// Whether there are subscriptions. Written by the control thread, read by each request.
    is_active: AtomicBool,
    /// Locked by the control thread when a subscription begins or ends, and by data threads only
    /// while there is one.
    subscriptions: Mutex<Arc<[Arc<Subscription>]>>,
    stream_base: u32,
    next_stream: AtomicU64,
    queue: Arc<EventQueue>,
}

/// What all subscriptions share: the bound of the events that observers have not read, and
/// counters.
#[derive(Debug)]
struct EventQueue {
    bytes: AtomicUsize,
    sent: Counter,
    dropped: Counter,
}

/// One observer.
#[derive(Debug)]
struct Subscription {
    filter: TapFilter,
    with_headers: bool,
    /// The number of requests that may still be matched.
    remaining: AtomicU32,
    events: mpsc::Sender<QueuedEvent>,
    queue: Arc<EventQueue>,
}

/// The receiving end of a subscription. The subscription ends when it is dropped.
#[derive(Debug)]
pub(crate) struct TapEvents {
    tap: Arc<Tap>,
    subscription: Option<Arc<Subscription>>,
    events: mpsc::Receiver<QueuedEvent>,
}

/// Records one request for the subscriptions that it matches.
#[derive(Debug)]
pub(crate) struct TapRecorder {
    subscriptions: Vec<Arc<Subscription>>,
    context: Arc<TapContext>,
    id: TapStreamId,
    started: Instant,
    responded: Option<Instant>,
    response_bytes: Cell<u64>,
    has_ended: bool,
}

/// An event that counts against [`MAX_QUEUED_BYTES`] until it is dropped.
#[derive(Debug)]
struct QueuedEvent {
    event: Option<TapEvent>,
    bytes: usize,
    queue: Arc<EventQueue>,
}

/// Too many observers at a time.
#[derive(Debug, thiserror::Error)]
#[error("this proxy already has {MAX_SUBSCRIPTIONS} tap subscriptions")]
pub(crate) struct TooManySubscriptions;

/// Each subscription is compared with each request.
pub(crate) const MAX_SUBSCRIPTIONS: usize = 32;

/// How long an event waits for others after a pause, so that they share a wake-up of the control
/// thread, a TLS record and a write. In 5 ms, a hundred events gather, and their encoding takes a
/// third of a millisecond. The data threads of a shared CPU wait meanwhile. A full queue of events
/// in this time is 400,000 a second.
const COLLECTING: Duration = Duration::from_millis(1);

/// The events of a subscription that wait for its observer, as in Linkerd's proxy.
const MAX_QUEUED_EVENTS: usize = 400;

/// The bytes of all events that wait for observers, so that taps cannot exhaust the memory of a
/// proxy.
const MAX_QUEUED_BYTES: usize = 4 << 20;

/// The bytes of names and values that an event reports of a header section. Further fields are left
/// out.
const MAX_HEADER_BYTES: usize = 16 << 10;

/// What an event takes besides its texts.
const EVENT_BYTES: usize = size_of::<QueuedEvent>();

impl Tap {
    pub(crate) fn new(registry: &Registry) -> Self {
        let events = registry.counter_family(
            "mesh_tap_events_total",
            "Events of tapped requests, by whether they were queued for their observer or dropped because it reads too slowly",
        );
        let counter = |result| events.with(&Labels::new().with("result", result));
        Self {
            is_active: AtomicBool::new(false),
            subscriptions: Mutex::new(Arc::new([])),
            stream_base: random::random(),
            next_stream: AtomicU64::new(0),
            queue: Arc::new(EventQueue {
                bytes: AtomicUsize::new(0),
                sent: counter("queued"),
                dropped: counter("dropped"),
            }),
        }
    }

    /// Starts a subscription.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        request: TapRequest,
    ) -> Result<TapEvents, TooManySubscriptions> {
        let (sender, events) = mpsc::channel(MAX_QUEUED_EVENTS);
        let subscription = Arc::new(Subscription {
            filter: request.filter,
            with_headers: request.with_headers,
            remaining: AtomicU32::new(request.limit),
            events: sender,
            queue: self.queue.clone(),
        });
        let mut subscriptions = self.subscriptions.lock();
        if subscriptions.len() >= MAX_SUBSCRIPTIONS {
            return Err(TooManySubscriptions);
        }
        let others = subscriptions.iter().cloned();
        *subscriptions = others.chain([subscription.clone()]).collect();
        self.is_active.store(true, Ordering::Relaxed);
        drop(subscriptions);
        Ok(TapEvents {
            tap: self.clone(),
            subscription: Some(subscription),
            events,
        })
    }

    fn unsubscribe(&self, subscription: &Arc<Subscription>) {
        let mut subscriptions = self.subscriptions.lock();
        let others = subscriptions
            .iter()
            .filter(|other| !Arc::ptr_eq(other, subscription));
        *subscriptions = others.cloned().collect();
        self.is_active
            .store(!subscriptions.is_empty(), Ordering::Relaxed);
    }

    /// Whether requests have to be offered to [`Tap::record`].
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Reports a request that is being sent to the subscriptions that it matches. `None` if there
    /// is none of them.
    pub(crate) fn record<B>(
        &self,
        request: &http::Request<B>,
        context: TapContext,
    ) -> Option<Box<TapRecorder>> {
        let all = self.subscriptions.lock().clone();
        let context = Arc::new(context);
        let uri = request.uri();
        let authority = match uri.authority() {
            Some(authority) => authority.as_str(),
            None => {
                let host = request.headers().get(http::header::HOST);
                host.and_then(|host| host.to_str().ok()).unwrap_or_default()
            }
        };
        let subject = TapSubject {
            context: &context,
            // HTTP/1 requests in origin form have no scheme.
            scheme: uri.scheme_str().unwrap_or("http"),
            method: request.method(),
            authority,
            path: uri.path_and_query().map_or("", |path| path.as_str()),
        };
        let matching = all
            .iter()
            .filter(|subscription| subscription.admit(&subject));
        let subscriptions: Vec<_> = matching.cloned().collect();
        if subscriptions.is_empty() {
            return None;
        }
        let kind = |headers| TapEventKind::Request {
            method: request.method().clone(),
            scheme: subject.scheme.to_owned(),
            authority: authority.to_owned(),
            path: subject.path.to_owned(),
            headers,
        };
        let headers = || {
            let mut fields = TapHeaders::new();
            if request.version() == Version::HTTP_2 {
                let pseudo = [
                    (":method", request.method().as_str()),
                    (":scheme", subject.scheme),
                    (":authority", authority),
                    (":path", subject.path),
                ];
                fields.extend(pseudo.map(|(name, value)| (name.to_owned(), value.into())));
            }
            collect_fields(fields, request.headers())
        };
        let recorder = TapRecorder {
            id: TapStreamId {
                base: self.stream_base,
                stream: self.next_stream.fetch_add(1, Ordering::Relaxed),
            },
            started: Instant::now(),
            responded: None,
            response_bytes: Cell::new(0),
            has_ended: false,
            context: context.clone(),
            subscriptions,
        };
        recorder.send(kind, headers);
        Some(Box::new(recorder))
    }
}

impl Subscription {
    /// Whether the subscription matches a request, and its limit is not reached.
    fn admit(&self, subject: &TapSubject<'_>) -> bool {
        self.remaining.load(Ordering::Relaxed) > 0
            && self.filter.matches(subject)
            && self
                .remaining
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
    }

    fn is_exhausted(&self) -> bool {
        self.remaining.load(Ordering::Relaxed) == 0
    }
}

impl TapRecorder {
    /// Reports the header section of the response.
    pub(crate) fn response_headers(&mut self, status: StatusCode, headers: &HeaderMap) {
        let now = Instant::now();
        self.responded = Some(now);
        let since_request = now - self.started;
        let kind = |headers| TapEventKind::Response {
            since_request,
            status,
            headers,
        };
        let fields = || {
            let status = (":status".to_owned(), status.as_str().into());
            collect_fields(vec![status], headers)
        };
        self.send(kind, fields);
    }

    /// Counts bytes of the response's body.
    pub(crate) fn response_data(&self, bytes: usize) {
        self.response_bytes
            .set(self.response_bytes.get() + bytes as u64);
    }

    /// Reports the end of the response.
    pub(crate) fn end(&mut self, end: TapStreamEnd, trailers: Option<&HeaderMap>) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let now = Instant::now();
        let since_request = now - self.started;
        let since_response = self.responded.map_or(Duration::ZERO, |at| now - at);
        let trailers = trailers.filter(|trailers| !trailers.is_empty());
        let response_bytes = self.response_bytes.get();
        let kind = |fields: Option<TapHeaders>| TapEventKind::End {
            since_request,
            since_response,
            response_bytes,
            end,
            trailers: fields.filter(|fields| !fields.is_empty()),
        };
        let fields = || trailers.map_or_else(Vec::new, |all| collect_fields(Vec::new(), all));
        self.send(kind, fields);
    }

    fn send(
        &self,
        kind: impl Fn(Option<TapHeaders>) -> TapEventKind,
        headers: impl Fn() -> TapHeaders,
    ) {
        for subscription in &self.subscriptions {
            let event = TapEvent {
                context: self.context.clone(),
                id: self.id,
                kind: kind(subscription.with_headers.then(&headers)),
            };
            let queue = &subscription.queue;
            let sent = queue.admit(event).and_then(|event| {
                // Full, or the observer has gone.
                subscription.events.try_send(event).ok()
            });
            match sent {
                Some(()) => queue.sent.inc(),
                None => queue.dropped.inc(),
            }
        }
    }
}

impl Drop for TapRecorder {
    fn drop(&mut self) {
        self.end(TapStreamEnd::Reset(ErrorCode::CANCEL.0), None);
    }
}

impl EventQueue {
    /// Counts the bytes of an event. `None` if they would exceed [`MAX_QUEUED_BYTES`].
    fn admit(self: &Arc<Self>, event: TapEvent) -> Option<QueuedEvent> {
        let bytes = EVENT_BYTES + text_bytes(&event.kind);
        let event = QueuedEvent {
            event: Some(event),
            bytes,
            queue: self.clone(),
        };
        let others = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        (others + bytes <= MAX_QUEUED_BYTES).then_some(event)
    }
}

impl Drop for QueuedEvent {
    fn drop(&mut self) {
        self.queue.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl TapEvents {
    /// Returns the next event; `None` when the last admitted request has ended.
    pub(crate) async fn next(&mut self) -> Option<TapEvent> {
        if self
            .subscription
            .as_ref()
            .is_some_and(|subscription| subscription.is_exhausted())
        {
            self.end();
        }
        let mut queued = if let Ok(queued) = self.events.try_recv() {
            queued
        } else {
            let first = self.events.recv().await?;
            sleep(COLLECTING).await;
            first
        };
        queued.event.take()
    }

    /// Lets no further request match. The channel closes with the last recorder.
    fn end(&mut self) {
        if let Some(subscription) = self.subscription.take() {
            self.tap.unsubscribe(&subscription);
        }
    }
}

impl Drop for TapEvents {
    fn drop(&mut self) {
        self.end();
    }
}

/// Appends fields up to [`MAX_HEADER_BYTES`].
fn collect_fields(mut fields: TapHeaders, headers: &HeaderMap) -> TapHeaders {
    let mut left = MAX_HEADER_BYTES;
    for (name, value) in headers {
        let Some(rest) = left.checked_sub(name.as_str().len() + value.len()) else {
            break;
        };
        left = rest;
        fields.push((name.as_str().to_owned(), value.as_bytes().to_vec()));
    }
    fields
}

fn text_bytes(kind: &TapEventKind) -> usize {
    let fields = |headers: &Option<TapHeaders>| -> usize {
        let pair = |(name, value): &(String, Vec<u8>)| name.len() + value.len();
        headers.iter().flatten().map(pair).sum()
    };
    match kind {
        TapEventKind::Request {
            authority,
            path,
            headers,
            ..
        } => authority.len() + path.len() + fields(headers),
        TapEventKind::Response { headers, .. } => fields(headers),
        TapEventKind::End { trailers, .. } => fields(trailers),
    }
}

#[cfg(test)]
mod tests;
