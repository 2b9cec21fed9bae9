//! Times out requests whose client does not send the declared body. Used by the servers of both
//! protocols.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::time::sleep;

/// The body of a request, while it may still be read.
pub(super) trait PendingRequestBody: Clone + 'static {
    /// The remaining bytes of a body with a content-length; 0 for any other body.
    fn outstanding(&self) -> u64;

    /// Whether a reader waits for them because the client has not sent them.
    fn is_awaited(&self) -> bool;
}

/// The timeout of one request. It has no timer unless the request's task waits while a part of the
/// body is outstanding, and data that arrives does not touch the timer.
pub(super) struct BodyTimeout {
    limit: Option<Duration>,
    expiry: Option<LocalBoxFuture<'static, ()>>,
}

impl BodyTimeout {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self {
            limit,
            expiry: None,
        }
    }

    /// Ready when a reader has waited for the limit without receiving data, at the latest after
    /// twice that.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        body: &impl PendingRequestBody,
    ) -> Poll<Duration> {
        let Some(limit) = self.limit else {
            return Poll::Pending;
        };
        let expiry = match &mut self.expiry {
            Some(expiry) => expiry,
            None if body.outstanding() == 0 => return Poll::Pending,
            none => none.insert(Box::pin(expired(body.clone(), limit))),
        };
        ready!(expiry.as_mut().poll(cx));
        self.expiry = None;
        Poll::Ready(limit)
    }
}

/// Completes when a reader waits for the same bytes at two consecutive checks.
async fn expired(body: impl PendingRequestBody, limit: Duration) {
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

    impl PendingRequestBody for Body {
        fn outstanding(&self) -> u64 {
            self.0.0.get()
        }

        fn is_awaited(&self) -> bool {
            self.0.1.get()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_expires_when_reader_waits_for_same_bytes() {
        let body = Body::default();
        body.set(10, true);
        let start = Instant::now();
        let mut timeout = BodyTimeout::new(Some(LIMIT));
        let expiry = poll_fn(|cx| timeout.poll(cx, &body));
        let client = async {
            sleep(LIMIT - Duration::from_secs(1)).await;
            // A byte has arrived.
            body.set(9, true);
            sleep(LIMIT).await;
            // The server does not read, so the client is not at fault.
            body.set(9, false);
            sleep(LIMIT).await;
            body.set(9, true);
        };
        tokio::join!(expiry, client);
        assert_eq!(start.elapsed(), 4 * LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn complete_body_or_no_limit_needs_no_timer() {
        let body = Body::default();
        for (outstanding, limit) in [(0, Some(LIMIT)), (10, None)] {
            body.set(outstanding, true);
            let mut timeout = BodyTimeout::new(limit);
            let polled = poll_fn(|cx| Poll::Ready(timeout.poll(cx, &body))).await;
            assert!(polled.is_pending() && timeout.expiry.is_none());
        }
    }
}
