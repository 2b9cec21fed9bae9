//! [`Upload`]: the rest of a request's body that is sent after its response has begun, and the only
//! place that decides when it ends. Used by both protocols of [`super::client`].
//!
//! Until the response headers arrive, the task of the request sends its body, and dropping the
//! request ends it. The rest then becomes an upload:
//!
//! | state | until |
//! |---|---|
//! | attached | the response has been read, or its reader leaves |
//! | detached | the body has been sent, or makes no progress for [`UPLOAD_TIMEOUT`] |
//! | superseded | nothing more is sent: the stream is reset, or the connection closed |
//!
//! An upload occupies its stream or connection as long as it holds what sends it, so the count of
//! the streams of a connection is part of that. See docs/adr/0163.

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::{Instant, Sleep, sleep};

/// How long a body may make no progress after its response is complete; at most twice that. A
/// server that wants the rest reads it, and a client that has its response either sends the rest or
/// cancels it. The request occupies a stream of both.
pub(super) const UPLOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// What sends the body of one attempt. Dropping it resets the stream or closes the connection,
/// unless all of the body was sent.
pub(super) trait BodySender {
    /// Sends what can be sent. Ready when nothing more will be; returns whether all of it was sent.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<bool>;

    /// Ready when another attempt has taken the body.
    fn poll_superseded(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Changes with each part of the body that is read or sent.
    fn progress(&self) -> u64;
}

/// The upload of one attempt, held by its response. Dropping it supersedes the upload.
pub(super) struct Upload<S: BodySender>(Rc<Shared<S>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Attached,
    Detached,
    Superseded,
    Sent,
    /// The peer has left or refuses the rest.
    Failed,
}

/// Shared with the task that sends the body.
struct Shared<S> {
    state: Cell<State>,
    /// Taken out while it is polled. `None` once the upload has ended.
    sender: Cell<Option<S>>,
    task: Cell<Option<Waker>>,
}

impl<S: BodySender + 'static> Upload<S> {
    /// Sends the rest of a body in a task of its own.
    pub(super) fn start(sender: S) -> Self {
        let shared = Rc::new(Shared {
            state: Cell::new(State::Attached),
            sender: Cell::new(Some(sender)),
            task: Cell::default(),
        });
        let sending = shared.clone();
        spawn_local(async move {
            let mut deadline = None;
            poll_fn(|cx| sending.poll(cx, &mut deadline)).await;
        });
        Self(shared)
    }

    /// Whether all of the body has been sent.
    pub(super) fn is_sent(&self) -> bool {
        self.0.state.get() == State::Sent
    }

    /// The response has been read, and the server may still want the rest of the request. `keep`
    /// gives the sender what the response has held, unless the upload has ended.
    pub(super) fn detach(self, keep: impl FnOnce(&mut S)) {
        let shared = &*self.0;
        if shared.state.get() != State::Attached {
            return;
        }
        shared.state.set(State::Detached);
        if let Some(mut sender) = shared.sender.take() {
            keep(&mut sender);
            shared.sender.set(Some(sender));
        }
        shared.wake();
    }
}

impl<S: BodySender> Drop for Upload<S> {
    fn drop(&mut self) {
        let shared = &*self.0;
        if shared.state.get() == State::Attached {
            shared.end(State::Superseded);
            shared.wake();
        }
    }
}

/// When a detached upload is checked, and its progress then.
struct Deadline {
    timer: Pin<Box<Sleep>>,
    progress: u64,
}

impl<S: BodySender> Shared<S> {
    fn poll(&self, cx: &mut Context<'_>, deadline: &mut Option<Deadline>) -> Poll<()> {
        let Some(mut sender) = self.sender.take() else {
            return Poll::Ready(());
        };
        let ended = if sender.poll_superseded(cx).is_ready() {
            Some(State::Superseded)
        } else {
            match sender.poll_send(cx) {
                Poll::Ready(true) => Some(State::Sent),
                Poll::Ready(false) => Some(State::Failed),
                Poll::Pending => None,
            }
        };
        let is_stuck = ended.is_none()
            && self.state.get() == State::Detached
            && poll_stuck(deadline, sender.progress(), cx).is_ready();
        if is_stuck {
            tracing::debug!("Rest of a request body was not sent in time");
        }
        match ended {
            None if !is_stuck && self.state.get() != State::Superseded => {
                self.sender.set(Some(sender));
                self.task.set(Some(cx.waker().clone()));
                return Poll::Pending;
            }
            ended => self.state.set(ended.unwrap_or(State::Superseded)),
        }
        Poll::Ready(())
    }

    fn end(&self, state: State) {
        self.state.set(state);
        drop(self.sender.take());
    }

    fn wake(&self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }
}

/// Ready when an upload has made no progress between two checks. Progress touches no timer.
fn poll_stuck(deadline: &mut Option<Deadline>, progress: u64, cx: &mut Context<'_>) -> Poll<()> {
    let deadline = deadline.get_or_insert_with(|| Deadline {
        timer: Box::pin(sleep(UPLOAD_TIMEOUT)),
        progress,
    });
    while deadline.timer.as_mut().poll(cx).is_ready() {
        if deadline.progress == progress {
            return Poll::Ready(());
        }
        deadline.progress = progress;
        deadline
            .timer
            .as_mut()
            .reset(Instant::now() + UPLOAD_TIMEOUT);
    }
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use tokio::task::{LocalSet, yield_now};
    use tokio::time::advance;

    use super::*;

    /// A sender whose body never ends by itself, and counts as one stream.
    struct Endless {
        script: Rc<Script>,
        held: Option<Rc<()>>,
    }

    #[derive(Default)]
    struct Script {
        progress: Cell<u64>,
        is_superseded: Cell<bool>,
        ends: Cell<Option<bool>>,
        is_dropped: Cell<bool>,
    }

    impl BodySender for Endless {
        fn poll_send(&mut self, _: &mut Context<'_>) -> Poll<bool> {
            self.script.ends.get().map_or(Poll::Pending, Poll::Ready)
        }

        fn poll_superseded(&self, _: &mut Context<'_>) -> Poll<()> {
            if self.script.is_superseded.get() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }

        fn progress(&self) -> u64 {
            self.script.progress.get()
        }
    }

    impl Drop for Endless {
        fn drop(&mut self) {
            self.held = None;
            self.script.is_dropped.set(true);
        }
    }

    fn start() -> (Upload<Endless>, Rc<Script>) {
        let script = Rc::new(Script::default());
        let sender = Endless {
            script: script.clone(),
            held: None,
        };
        (Upload::start(sender), script)
    }

    async fn settle() {
        for _ in 0..10 {
            yield_now().await;
        }
    }

    async fn local(test: impl Future<Output = ()>) {
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn attached_upload_has_no_deadline_and_ends_with_its_response() {
        local(async {
            let (upload, script) = start();
            settle().await;
            advance(100 * UPLOAD_TIMEOUT).await;
            settle().await;
            assert!(!script.is_dropped.get());
            drop(upload);
            // At once, not when the task runs.
            assert!(script.is_dropped.get());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn detached_upload_ends_when_it_makes_no_progress() {
        local(async {
            let (upload, script) = start();
            settle().await;
            let count = Rc::new(());
            let held = count.clone();
            upload.detach(|sender| sender.held = Some(held));
            for progress in 1..=3 {
                settle().await;
                advance(UPLOAD_TIMEOUT).await;
                script.progress.set(progress);
            }
            settle().await;
            assert!(!script.is_dropped.get());
            assert_eq!(Rc::strong_count(&count), 2);
            for _ in 0..2 {
                advance(UPLOAD_TIMEOUT).await;
                settle().await;
            }
            assert!(script.is_dropped.get());
            assert_eq!(Rc::strong_count(&count), 1);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn upload_whose_body_another_attempt_has_taken_ends_in_each_state() {
        local(async {
            for is_detached in [false, true] {
                let (upload, script) = start();
                settle().await;
                script.is_superseded.set(true);
                upload.0.wake();
                let upload = if is_detached {
                    upload.detach(|_| ());
                    None
                } else {
                    Some(upload)
                };
                settle().await;
                assert!(script.is_dropped.get());
                assert!(upload.is_none_or(|upload| !upload.is_sent()));
            }
        })
        .await;
    }

    #[tokio::test]
    async fn only_a_body_that_was_sent_completely_counts_as_sent() {
        local(async {
            for is_sent in [false, true] {
                let (upload, script) = start();
                script.ends.set(Some(is_sent));
                settle().await;
                assert!(script.is_dropped.get());
                assert_eq!(upload.is_sent(), is_sent);
            }
        })
        .await;
    }
}
