//! Exports spans to the collector, in batches over the OpenTelemetry protocol.
//!
//! Runs on the control thread. The collector is a service of the mesh: the connection is a
//! control-plane client's, with the collector's identity. A batch that the collector does not take
//! is dropped and counted, as in Linkerd's proxy. After a failure the exporter waits, so that an
//! outage costs no connection attempt for each batch, while the queue bounds the waiting spans.

use std::time::Duration;

use mesh_api::trace::{EncodedSpan, ExportTracePartialSuccess, TraceServiceClient, export_request};
use mesh_core::trace::Resource;
use mesh_runtime::metrics::{Counter, Labels, Registry};
use mesh_runtime::task::Supervisor;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::queue::{self, SpanBatches};
use super::{Tracer, resource};
use crate::config::{Control, TraceConfig};
use crate::control::backoff::Retries;
use crate::control::{self, Client};

/// Sends the spans of one process.
#[derive(Debug)]
pub(crate) struct Exporter {
    client: Client,
    resource: Resource,
    batches: SpanBatches,
    retries: Retries,
    metrics: Metrics,
    stop: CancellationToken,
    /// Whether the last batch was not taken. Only changes are logged.
    is_failing: bool,
}

/// A running exporter, to end it.
#[derive(Debug)]
pub(crate) struct ExporterTask {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// The families of Linkerd's proxy, and how many spans were lost.
#[derive(Debug)]
struct Metrics {
    /// Calls that were begun.
    streams: Counter,
    /// Calls that the collector has responded to.
    requests: Counter,
    spans: Counter,
    failed: Counter,
    rejected: Counter,
}

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("collector did not take the spans: {}", control::reason(.0))]
    Refused(Box<Status>),
    #[error("collector did not respond within {EXPORT_TIMEOUT:?}")]
    TimedOut,
}

/// The default of OpenTelemetry's exporters.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the process waits at its end for the queued spans to be exported.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

impl Exporter {
    /// Creates an exporter, and the tracer whose spans it exports.
    pub(crate) fn new(
        config: &TraceConfig,
        control: &Control,
        client: Client,
        registry: &Registry,
    ) -> (Tracer, Self) {
        let dropped = registry.counter_family(
            "mesh_trace_spans_dropped_total",
            "Spans that were not exported, by reason: the queue was full, the collector did not take their batch, or it rejected them",
        );
        let dropped = |reason| dropped.with(&Labels::new().with("reason", reason));
        let (queue, batches) = queue::new(dropped("queue_full"), config.delay);
        let exporter = Self {
            client: client.with_outages_logged_by_caller(),
            resource: resource::read(config),
            batches,
            retries: Retries::new(control.backoff),
            metrics: Metrics::new(registry, dropped("failed"), dropped("rejected")),
            stop: CancellationToken::new(),
            is_failing: false,
        };
        let tracer = Tracer {
            queue: queue.into(),
        };
        (tracer, exporter)
    }

    /// Starts the exporter on the current runtime.
    pub(crate) fn start(self, supervisor: &Supervisor) -> ExporterTask {
        ExporterTask {
            stop: self.stop.clone(),
            task: supervisor.spawn("trace-exporter", self.run()),
        }
    }

    /// Runs until it is stopped, and then until the queued spans are exported.
    async fn run(mut self) {
        let stop = self.stop.clone();
        tokio::select! {
            biased;
            () = self.client.ready() => {}
            () = stop.cancelled() => {}
        }
        while let Some(batch) = self.batches.next(&stop).await {
            let spans = batch.len() as u64;
            match self.export(batch).await {
                Ok(partial) => self.record_success(spans, partial),
                Err(error) => {
                    self.record_failure(spans, &error);
                    if stop.is_cancelled() {
                        // The others would fail too.
                        self.metrics.failed.inc_by(self.batches.len() as u64);
                        return;
                    }
                    let wait = self.retries.next_wait();
                    let _stopped = timeout(wait, stop.cancelled()).await;
                }
            }
        }
    }

    async fn export(
        &self,
        batch: Vec<EncodedSpan>,
    ) -> Result<Option<ExportTracePartialSuccess>, ExportError> {
        self.metrics.streams.inc();
        let request = export_request(&self.resource, batch);
        let mut client = TraceServiceClient::new(self.client.clone());
        match timeout(EXPORT_TIMEOUT, client.export(request)).await {
            Ok(Ok(response)) => Ok(response.into_inner().partial_success),
            Ok(Err(status)) => Err(ExportError::Refused(status.into())),
            Err(_elapsed) => Err(ExportError::TimedOut),
        }
    }

    fn record_success(&mut self, spans: u64, partial: Option<ExportTracePartialSuccess>) {
        self.retries.reset();
        self.metrics.requests.inc();
        self.metrics.spans.inc_by(spans);
        if std::mem::take(&mut self.is_failing) {
            tracing::info!("Spans are exported again");
        }
        let Some(partial) = partial else {
            return;
        };
        // The collector chooses the number.
        let rejected = u64::try_from(partial.rejected_spans)
            .unwrap_or(0)
            .min(spans);
        self.metrics.rejected.inc_by(rejected);
        if !partial.error_message.is_empty() {
            let message = partial.error_message;
            tracing::debug!(rejected, message, "Collector took some spans only");
        }
    }

    fn record_failure(&mut self, spans: u64, error: &ExportError) {
        self.metrics.failed.inc_by(spans);
        if std::mem::replace(&mut self.is_failing, true) {
            tracing::debug!(%error, spans, "Spans dropped");
        } else {
            tracing::warn!(%error, "Spans cannot be exported and are dropped");
        }
    }
}

impl ExporterTask {
    /// Exports the queued spans, until the deadline and at most for [`FLUSH_TIMEOUT`].
    pub(crate) async fn flush(mut self, deadline: Instant) {
        self.stop.cancel();
        let deadline = deadline.min(Instant::now() + FLUSH_TIMEOUT);
        if timeout_at(deadline, &mut self.task).await.is_err() {
            self.task.abort();
            tracing::warn!("Spans are lost: the collector did not take them before the exit");
        }
    }
}

impl Metrics {
    fn new(registry: &Registry, failed: Counter, rejected: Counter) -> Self {
        let counter = |name, help| registry.counter_family(name, help).with(&Labels::new());
        Self {
            streams: counter(
                "opentelemetry_span_export_streams",
                "Total count of opened span export streams",
            ),
            requests: counter(
                "opentelemetry_span_export_requests",
                "Total count of span export request messages",
            ),
            spans: counter(
                "opentelemetry_span_exports",
                "Total count of spans exported",
            ),
            failed,
            rejected,
        }
    }
}
