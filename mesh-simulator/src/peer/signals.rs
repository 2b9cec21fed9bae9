//! [`Signals`]: what the connections of one run tell each other outside the network.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The signals of a run, and the order of its messages. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Signals(Rc<State>);

#[derive(Default)]
struct State {
    set: RefCell<BTreeSet<String>>,
    waiting: RefCell<Vec<Waker>>,
    next_message: Cell<u64>,
    /// Counts everything that any connection does, so that a run without progress can be ended.
    progress: Cell<u64>,
}

impl Signals {
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

    /// The number of the next message that a server receives.
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
