//! The spans that wait to be exported: a queue from all data threads to the control thread, bounded
//! in count and bytes. They wait in the encoding of the protocol, one short allocation each: what a
//! span consists of while its request is handled is then used again by the next one, and not spread
//! over memory that is in no cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mesh_api::trace::EncodedSpan;
use mesh_runtime::metrics::Counter;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The sending end.
#[derive(Debug)]
pub(super) struct SpanQueue {
    spans: mpsc::Sender<QueuedSpan>,
    shared: Arc<Shared>,
    dropped: Counter,
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct SpanBatches {
    spans: mpsc::Receiver<QueuedSpan>,
    shared: Arc<Shared>,
    /// A span that did not fit into the last batch.
    left: Option<EncodedSpan>,
    delay: Duration,
}

#[derive(Debug)]
struct Shared {
    /// The size of all queued spans.
    bytes: AtomicUsize,
    /// Told when the spans of a batch are queued.
    is_batch: Notify,
}

/// A span that counts against [`MAX_QUEUED_BYTES`] until it is dropped.
#[derive(Debug)]
struct QueuedSpan {
    span: Option<EncodedSpan>,
    bytes: usize,
    shared: Arc<Shared>,
}

/// The default of OpenTelemetry's SDKs. Linkerd's proxy queues 1,000.
pub(super) const MAX_QUEUED: usize = 2048;

/// The bytes of all queued spans, so that long paths cannot exhaust the memory of a proxy.
pub(super) const MAX_QUEUED_BYTES: usize = 4 << 20;

/// The default of OpenTelemetry's SDKs, as in Linkerd's proxy.
pub(super) const MAX_BATCH: usize = 512;

/// A quarter of the message size that gRPC servers accept by default.
pub(super) const MAX_BATCH_BYTES: usize = 1 << 20;

/// Creates a queue. `delay` is how long a span waits for others.
pub(super) fn new(dropped: Counter, delay: Duration) -> (SpanQueue, SpanBatches) {
    let (sender, receiver) = mpsc::channel(MAX_QUEUED);
    let shared = Arc::new(Shared {
        bytes: AtomicUsize::new(0),
        is_batch: Notify::new(),
    });
    let batches = SpanBatches {
        spans: receiver,
        shared: shared.clone(),
        left: None,
        delay,
    };
    let queue = SpanQueue {
        spans: sender,
        shared,
        dropped,
    };
    (queue, batches)
}

impl SpanQueue {
    /// Queues a span, or drops and counts it.
    pub(super) fn push(&self, span: EncodedSpan) {
        let sent = QueuedSpan::admit(span, &self.shared)
            // Full, or the exporter has ended.
            .and_then(|span| self.spans.try_send(span).ok());
        if sent.is_none() {
            self.dropped.inc();
        }
        let queued = self.spans.max_capacity() - self.spans.capacity();
        let is_batch = self.shared.bytes.load(Ordering::Relaxed) >= MAX_BATCH_BYTES;
        if queued >= MAX_BATCH || is_batch {
            self.shared.is_batch.notify_one();
        }
    }
}

impl QueuedSpan {
    /// Counts the bytes of a span. `None` if they would exceed [`MAX_QUEUED_BYTES`].
    fn admit(span: EncodedSpan, shared: &Arc<Shared>) -> Option<Self> {
        let bytes = span.len();
        let queued = Self {
            span: Some(span),
            bytes,
            shared: shared.clone(),
        };
        let others = shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        (others + bytes <= MAX_QUEUED_BYTES).then_some(queued)
    }

    fn take(mut self) -> Option<EncodedSpan> {
        self.span.take()
    }
}

impl Drop for QueuedSpan {
    fn drop(&mut self) {
        self.shared.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl SpanBatches {
    /// Waits for spans: until a batch is complete, or its first span has waited for the delay. Once
    /// `stop` is cancelled it returns the queued spans at once, and then `None`.
    pub(super) async fn next(&mut self, stop: &CancellationToken) -> Option<Vec<EncodedSpan>> {
        let first = match self.left.take() {
            Some(span) => span,
            None => self.first(stop).await?,
        };
        if !self.is_batch_queued() {
            tokio::select! {
                biased;
                () = sleep(self.delay) => {}
                () = self.shared.is_batch.notified() => {}
                () = stop.cancelled() => {}
            }
        }
        Some(self.collect(first))
    }

    /// Returns how many spans are queued.
    pub(super) fn len(&self) -> usize {
        self.spans.len() + usize::from(self.left.is_some())
    }

    async fn first(&mut self, stop: &CancellationToken) -> Option<EncodedSpan> {
        tokio::select! {
            biased;
            queued = self.spans.recv() => queued?.take(),
            () = stop.cancelled() => None,
        }
    }

    fn is_batch_queued(&self) -> bool {
        let bytes = self.shared.bytes.load(Ordering::Relaxed);
        self.spans.len() + 1 >= MAX_BATCH || bytes >= MAX_BATCH_BYTES
    }

    fn collect(&mut self, first: EncodedSpan) -> Vec<EncodedSpan> {
        let mut bytes = first.len();
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH
            && let Ok(queued) = self.spans.try_recv()
            && let Some(span) = queued.take()
        {
            bytes += span.len();
            if bytes > MAX_BATCH_BYTES {
                self.left = Some(span);
                break;
            }
            batch.push(span);
        }
        batch
    }
}
