//! The gRPC services: thin. Each parses the question, watches the value in the index, and sends
//! what a proxy of the API expects.
//!
//! All listen in plain text: in a cluster the sidecar of the pod does the TLS.

use std::{collections::VecDeque, pin::Pin, sync::Arc};

use futures_util::{Stream, stream};
use mesh_runtime::drain;
use tokio::sync::watch;
use tonic::Status;

mod authority;
mod calls;
mod destination;
mod identity;
mod inbound;
mod outbound;
mod workload;

pub use self::{
    calls::Calls, destination::DestinationService, identity::IdentityService,
    inbound::InboundService, outbound::OutboundService,
};

/// What every streaming call answers with.
type Updates<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

/// What follows from a new value.
enum Step<M> {
    Send(Vec<M>),
    /// The value is gone for good: the stream ends well, and who still wants to know asks again.
    End,
}

/// Sends the current value and each later one, until the value is gone or the process drains.
///
/// The watch holds the newest value only. A reader that is slow gets fewer messages, never old
/// ones, and holds nobody up.
fn updates<V, M>(
    values: watch::Receiver<Arc<V>>,
    drain: drain::Watch,
    stream: calls::Stream,
    step: impl FnMut(&V) -> Step<M> + Send + 'static,
) -> Updates<M>
where
    V: Send + Sync + 'static,
    M: Send + 'static,
{
    let state = State {
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

struct State<V, M, F> {
    values: watch::Receiver<Arc<V>>,
    drain: drain::Watch,
    stream: calls::Stream,
    step: F,
    /// The rest of what one value led to.
    queue: VecDeque<M>,
    first: bool,
}

impl<V, M, F: FnMut(&V) -> Step<M>> State<V, M, F> {
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
