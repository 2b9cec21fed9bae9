//! The gRPC services. Each parses the request, watches a value in the index, and sends it in the
//! messages of the API.
//!
//! All listen without TLS: in a cluster, the proxy of the pod terminates it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use mesh_runtime::drain;
use tokio::sync::watch;
use tonic::Status;

mod authority;
mod calls;
mod destination;
mod identity;
mod inbound;
mod metrics_api;
mod outbound;
mod workload;

pub(crate) use self::metrics_api::{
    Measure, Measurement, Metric, Stats, latency_queries, parse_selector,
};
pub use self::{
    calls::Calls,
    destination::DestinationService,
    identity::IdentityService,
    inbound::InboundService,
    metrics_api::{MetricsApiService, MetricsApiSettings},
    outbound::OutboundService,
};

/// The response of streaming calls.
type Updates<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

/// The reaction to a new value.
enum Step<M> {
    Send(Vec<M>),
    /// The value no longer exists: the stream ends regularly, and clients may send a new request.
    End,
}

/// Sends the current value and later ones, until the value no longer exists or the process drains.
///
/// The watch channel only has the current value, so a slow reader gets fewer messages, no outdated
/// ones, and does not block others.
fn updates<V, M>(
    values: watch::Receiver<Arc<V>>,
    drain: drain::Watch,
    stream: calls::OpenStream,
    step: impl FnMut(&Arc<V>) -> Step<M> + Send + 'static,
) -> Updates<M>
where
    V: Send + Sync + 'static,
    M: Send + 'static,
{
    let state = UpdateState {
        values,
        drain,
        stream,
        step,
        queue: VecDeque::new(),
        first: true,
    };
    Box::pin(stream::unfold(state, |mut state| async {
        let message = state.next().await?;
        Some((Ok(message), state))
    }))
}

struct UpdateState<V, M, F> {
    values: watch::Receiver<Arc<V>>,
    drain: drain::Watch,
    stream: calls::OpenStream,
    step: F,
    /// The remaining messages of the last value.
    queue: VecDeque<M>,
    first: bool,
}

impl<V, M, F: FnMut(&Arc<V>) -> Step<M>> UpdateState<V, M, F> {
    async fn next(&mut self) -> Option<M> {
        loop {
            if let Some(message) = self.queue.pop_front() {
                self.stream.sent();
                return Some(message);
            }
            if !std::mem::take(&mut self.first) {
                tokio::select! {
                    changed = self.values.changed() => changed.ok()?,
                    () = self.drain.draining() => return None,
                }
            }
            let value = self.values.borrow_and_update().clone();
            match (self.step)(&value) {
                Step::Send(messages) => self.queue.extend(messages),
                Step::End => return None,
            }
        }
    }
}
