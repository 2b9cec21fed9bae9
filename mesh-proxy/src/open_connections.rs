//! The open connections of a server of the control thread, of which there are few.

use std::collections::VecDeque;

use tokio::task::AbortHandle;

/// Tasks that serve connections, oldest first.
#[derive(Debug)]
pub(crate) struct OpenConnections {
    limit: usize,
    tasks: VecDeque<AbortHandle>,
}

impl OpenConnections {
    /// `limit` is the most open connections.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            tasks: VecDeque::new(),
        }
    }

    /// Serves one more connection, and closes the oldest if the limit is reached, so that clients
    /// with long connections do not block those with short ones. Returns whether one was closed.
    /// Needs a `LocalSet`.
    pub(crate) fn spawn_local(&mut self, serving: impl Future<Output = ()> + 'static) -> bool {
        if self.tasks.len() >= self.limit {
            self.tasks.retain(|task| !task.is_finished());
        }
        let oldest = if self.tasks.len() >= self.limit {
            self.tasks.pop_front()
        } else {
            None
        };
        if let Some(oldest) = &oldest {
            oldest.abort();
        }
        self.tasks
            .push_back(tokio::task::spawn_local(serving).abort_handle());
        oldest.is_some()
    }
}
