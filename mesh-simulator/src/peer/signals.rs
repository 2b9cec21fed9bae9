//! [`Signals`]: what the connections of one run tell each other outside the network.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use crate::observation::BegunStep;

/// The signals of a run, and the order of its messages and steps. Clones are the same.
#[derive(Clone)]
pub(crate) struct Signals(Rc<State>);

struct State {
    start: Instant,
    set: RefCell<BTreeSet<String>>,
    waiting: RefCell<Vec<Waker>>,
    next_message: Cell<u64>,
    /// Counts everything that any connection does, so that a run without progress can be ended.
    progress: Cell<u64>,
    begun: RefCell<Vec<BegunStep>>,
}

/// The most steps that are recorded.
const MAX_BEGUN: usize = 10_000;

impl Signals {
    /// Signals of a run that begins now.
    pub(crate) fn new() -> Self {
        Self(Rc::new(State {
            start: Instant::now(),
            set: RefCell::default(),
            waiting: RefCell::default(),
            next_message: Cell::default(),
            progress: Cell::default(),
            begun: RefCell::default(),
        }))
    }

    /// The time since the beginning of the run.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.start.elapsed()
    }

    pub(crate) fn record(&self, step: BegunStep) {
        let mut begun = self.0.begun.borrow_mut();
        if begun.len() < MAX_BEGUN {
            begun.push(step);
        }
    }

    /// The steps that have been recorded.
    pub(crate) fn take_begun(&self) -> Vec<BegunStep> {
        self.0.begun.take()
    }

    pub(crate) fn set(&self, name: &str) {
        self.0.set.borrow_mut().insert(name.to_owned());
        self.0.waiting.take().into_iter().for_each(Waker::wake);
    }

    pub(crate) async fn wait(&self, name: &str) {
        poll_fn(|cx| {
            if self.0.set.borrow().contains(name) {
                return Poll::Ready(());
            }
            self.0.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The number of the next message that a peer receives.
    pub(crate) fn next_message(&self) -> u64 {
        let number = self.0.next_message.get();
        self.0.next_message.set(number + 1);
        number
    }

    pub(crate) fn note_progress(&self) {
        self.0.progress.set(self.0.progress.get() + 1);
    }

    pub(crate) fn progress(&self) -> u64 {
        self.0.progress.get()
    }
}
