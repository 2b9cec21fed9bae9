//! Gives up on clients that do not send the body that they have announced. Used by the servers of
//! both protocols.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::time::sleep;

/// The body of a request, as long as somebody may read it.
pub(super) trait Announced: Clone + 'static {
    /// Bytes that are to come of a body whose length the head says; 0 of any other.
    fn outstanding(&self) -> u64;

    /// Whether somebody waits for them, and the client is what he waits for.
    fn is_awaited(&self) -> bool;
}

/// Of one request. Without a timer unless its task has to wait while some of its body is
/// outstanding; no piece that comes touches the timer.
pub(super) struct Patience {
    limit: Option<Duration>,
    ends: Option<LocalBoxFuture<'static, ()>>,
}

impl Patience {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self { limit, ends: None }
    }

    /// Ready when somebody has waited in vain for the limit, at the latest after twice that.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, body: &impl Announced) -> Poll<Duration> {
        let Some(limit) = self.limit else {
            return Poll::Pending;
        };
        let ends = match &mut self.ends {
            Some(ends) => ends,
            None if body.outstanding() == 0 => return Poll::Pending,
            none => none.insert(Box::pin(end(body.clone(), limit))),
        };
        ready!(ends.as_mut().poll(cx));
        self.ends = None;
        Poll::Ready(limit)
    }
}

/// Ready when the same bytes are awaited at two looks in a row.
async fn end(body: impl Announced, limit: Duration) {
    loop {
        let (was_awaited, outstanding) = (body.is_awaited(), body.outstanding());
        sleep(limit).await;
        if was_awaited && body.is_awaited() && body.outstanding() == outstanding {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;

    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[derive(Clone, Default)]
    struct Body(Rc<(Cell<u64>, Cell<bool>)>);

    impl Body {
        fn set(&self, outstanding: u64, is_awaited: bool) {
            self.0.0.set(outstanding);
            self.0.1.set(is_awaited);
        }
    }

    impl Announced for Body {
        fn outstanding(&self) -> u64 {
            self.0.0.get()
        }

        fn is_awaited(&self) -> bool {
            self.0.1.get()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ends_when_the_same_bytes_are_awaited_for_the_limit() {
        let body = Body::default();
        body.set(10, true);
        let start = Instant::now();
        let mut patience = Patience::new(Some(LIMIT));
        let ends = poll_fn(|cx| patience.poll(cx, &body));
        let story = async {
            sleep(LIMIT - Duration::from_secs(1)).await;
            // A byte has come.
            body.set(9, true);
            sleep(LIMIT).await;
            // It is the server that does not take them.
            body.set(9, false);
            sleep(LIMIT).await;
            body.set(9, true);
        };
        tokio::join!(ends, story);
        assert_eq!(start.elapsed(), 4 * LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_outstanding_needs_no_timer() {
        let body = Body::default();
        for (outstanding, limit) in [(0, Some(LIMIT)), (10, None)] {
            body.set(outstanding, true);
            let mut patience = Patience::new(limit);
            let polled = poll_fn(|cx| Poll::Ready(patience.poll(cx, &body))).await;
            assert!(polled.is_pending() && patience.ends.is_none());
        }
    }
}
