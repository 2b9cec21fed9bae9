//! Streams of the messages for a watched value, for all services.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use mesh_cluster::calls::OpenStream;
use mesh_runtime::drain;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::index::Version;

/// The messages of a streaming call.
pub(super) type Updates<M> = Pin<Box<dyn Stream<Item = M> + Send>>;

/// A watched value that knows when it changed.
pub(super) trait Dated {
    /// When the change was reported that led to this value, if that is known.
    fn changed_at(&self) -> Option<Instant>;
}

impl<V> Dated for Version<V> {
    fn changed_at(&self) -> Option<Instant> {
        self.changed_at()
    }
}

/// The reaction to a new value.
pub(super) enum Step<M> {
    Send(Vec<M>),
    /// The value no longer exists: the stream ends regularly, and clients may send a new request.
    End,
}

/// Sends the current value and later ones, until the value no longer exists or the process drains.
///
/// The watch channel only has the current value, so a slow reader gets fewer messages, no outdated
/// ones, and does not block others.
pub(super) fn updates<V, M>(
    values: watch::Receiver<Arc<V>>,
    drain: drain::Watch,
    stream: OpenStream,
    step: impl FnMut(&Arc<V>) -> Step<M> + Send + 'static,
) -> Updates<M>
where
    V: Dated + Send + Sync + 'static,
    M: Send + 'static,
{
    let state = UpdateState {
        values,
        drain,
        stream,
        step,
        queue: VecDeque::new(),
        changed_at: None,
        first: true,
    };
    Box::pin(stream::unfold(state, |mut state| async {
        let message = state.next().await?;
        Some((message, state))
    }))
}

struct UpdateState<V, M, F> {
    values: watch::Receiver<Arc<V>>,
    drain: drain::Watch,
    stream: OpenStream,
    step: F,
    /// The remaining messages of the last value.
    queue: VecDeque<M>,
    /// When that value changed, until its messages are sent.
    changed_at: Option<Instant>,
    first: bool,
}

impl<V: Dated, M, F: FnMut(&Arc<V>) -> Step<M>> UpdateState<V, M, F> {
    async fn next(&mut self) -> Option<M> {
        loop {
            if let Some(message) = self.queue.pop_front() {
                self.stream.sent();
                if self.queue.is_empty()
                    && let Some(changed_at) = self.changed_at.take()
                {
                    self.stream.sent_change(changed_at.elapsed());
                }
                return Some(message);
            }
            let is_change = !std::mem::take(&mut self.first);
            if is_change {
                tokio::select! {
                    biased;
                    () = self.drain.draining() => return None,
                    // The client opens it again, and is told then that it has its share.
                    () = self.stream.taken() => return None,
                    changed = self.values.changed() => changed.ok()?,
                }
            }
            let value = self.values.borrow_and_update().clone();
            // The first value of a new stream may have changed long ago.
            self.changed_at = value.changed_at().filter(|_| is_change);
            match (self.step)(&value) {
                Step::Send(messages) => self.queue.extend(messages),
                Step::End => return None,
            }
        }
    }
}
