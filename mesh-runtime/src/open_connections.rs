//! The open connections of a server with few clients: the admin interfaces and the tap service.

use std::collections::VecDeque;

use tokio::task::AbortHandle;

/// Tasks that serve connections, oldest first.
#[derive(Debug)]
pub struct OpenConnections {
    limit: usize,
    tasks: VecDeque<AbortHandle>,
}

impl OpenConnections {
    /// `limit` is the most open connections.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            tasks: VecDeque::new(),
        }
    }

    /// Serves one more connection, and closes the oldest if the limit is reached, so that clients
    /// with long connections do not block those with short ones. Returns whether one was closed.
    pub fn spawn(&mut self, serving: impl Future<Output = ()> + Send + 'static) -> bool {
        let was_closed = self.make_room();
        self.tasks.push_back(tokio::spawn(serving).abort_handle());
        was_closed
    }

    /// As [`OpenConnections::spawn`], on the current thread. Needs a `LocalSet`.
    pub fn spawn_local(&mut self, serving: impl Future<Output = ()> + 'static) -> bool {
        let was_closed = self.make_room();
        self.tasks
            .push_back(tokio::task::spawn_local(serving).abort_handle());
        was_closed
    }

    /// Closes the oldest connection if the limit is reached.
    fn make_room(&mut self) -> bool {
        if self.tasks.len() >= self.limit {
            self.tasks.retain(|task| !task.is_finished());
        }
        if self.tasks.len() < self.limit {
            return false;
        }
        let oldest = self.tasks.pop_front();
        if let Some(oldest) = &oldest {
            oldest.abort();
        }
        oldest.is_some()
    }
}
