//! The open connections of a server with few clients: the admin interfaces, the webhooks, the tap
//! service and API, the dashboard.
//!
//! At the limit a new connection closes another one, so that clients with connections that they do
//! not use do not keep others out.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Tasks that serve connections, oldest first.
#[derive(Debug)]
pub struct OpenConnections {
    limit: usize,
    tasks: VecDeque<(AbortHandle, Activity)>,
}

/// How many requests a connection has, and since when it has some or none. A connection without
/// counted requests has had none since it was accepted.
#[derive(Clone, Debug)]
pub struct Activity(
    // Locked by the requests of the connection, and by new connections at the limit.
    Arc<Mutex<ActivityState>>,
);

/// A request of a connection, until its response has been sent.
#[derive(Debug)]
pub struct ActiveRequest(Activity);

#[derive(Clone, Copy, Debug)]
struct ActivityState {
    requests: usize,
    since: Instant,
}

impl OpenConnections {
    /// `limit` is the most open connections.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            tasks: VecDeque::new(),
        }
    }

    /// Serves one more connection. At the limit it closes the connection that has been without a
    /// request for the longest time, or the one that has had requests for the longest time if all
    /// have some. Returns whether one was closed.
    pub fn spawn(&mut self, serving: impl Future<Output = ()> + Send + 'static) -> bool {
        self.spawn_active(Activity::default(), serving)
    }

    /// As [`OpenConnections::spawn`], with the count of requests of the connection.
    pub fn spawn_active(
        &mut self,
        activity: Activity,
        serving: impl Future<Output = ()> + Send + 'static,
    ) -> bool {
        let was_closed = self.make_room();
        let task = tokio::spawn(serving).abort_handle();
        self.tasks.push_back((task, activity));
        was_closed
    }

    /// As [`OpenConnections::spawn`], on the current thread. Needs a `LocalSet`.
    pub fn spawn_local(&mut self, serving: impl Future<Output = ()> + 'static) -> bool {
        let was_closed = self.make_room();
        let task = tokio::task::spawn_local(serving).abort_handle();
        self.tasks.push_back((task, Activity::default()));
        was_closed
    }

    /// Closes a connection if the limit is reached.
    fn make_room(&mut self) -> bool {
        if self.tasks.len() >= self.limit {
            self.tasks.retain(|(task, _)| !task.is_finished());
        }
        if self.tasks.len() < self.limit {
            return false;
        }
        let numbered = self.tasks.iter().enumerate();
        let least = numbered.min_by_key(|(_, (_, activity))| activity.loss());
        let Some(index) = least.map(|(index, _)| index) else {
            return false;
        };
        if let Some((task, _)) = self.tasks.remove(index) {
            task.abort();
        }
        true
    }
}

impl Activity {
    /// Counts a request until the returned value is dropped.
    #[must_use = "the request ends with it"]
    pub fn request(&self) -> ActiveRequest {
        let mut state = self.0.lock();
        if state.requests == 0 {
            state.since = Instant::now();
        }
        state.requests += 1;
        ActiveRequest(self.clone())
    }

    /// Orders connections by the loss if they are closed: the ones without requests come first, and
    /// of the others those that have had requests for long.
    fn loss(&self) -> (bool, Instant) {
        let state = self.0.lock();
        (state.requests > 0, state.since)
    }
}

impl Default for Activity {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(ActivityState {
            requests: 0,
            since: Instant::now(),
        })))
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.requests -= 1;
        if state.requests == 0 {
            state.since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_without_requests_for_the_longest_time_is_closed_first() {
        let mut open = OpenConnections::new(3);
        let activities: [Activity; 3] = Default::default();
        let mut open_one = async |activity: &Activity| {
            tokio::time::advance(Duration::from_secs(1)).await;
            open.spawn_active(activity.clone(), pending())
        };
        for activity in &activities {
            assert!(!open_one(activity).await);
        }
        let [first, second, third] = &activities;
        let is_closed = |activity: &Activity| Arc::strong_count(&activity.0) == 1;
        // The first is used, so that the second has been idle for longer.
        drop(first.request());
        let new = Activity::default();
        assert!(open_one(&new).await);
        assert!(is_closed(second) && !is_closed(first) && !is_closed(third));
        // Only `new` has none.
        let of_third = third.request();
        tokio::time::advance(Duration::from_secs(1)).await;
        let of_first = first.request();
        assert!(open_one(&Activity::default()).await);
        assert!(is_closed(&new));
        let last = Activity::default();
        assert!(open_one(&last).await);
        // All have some, the third for the longest time.
        let of_last = last.request();
        assert!(open_one(&Activity::default()).await);
        drop((of_first, of_third, of_last));
        assert_eq!(
            [first, third, &last].map(is_closed),
            [false, true, false],
            "the longest request"
        );
    }
}
