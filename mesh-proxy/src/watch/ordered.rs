//! The channels of [`tokio::sync::watch`], which wake the longest waiting receiver first. They have
//! the methods that the proxy uses, with their behaviour.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::Notify;

/// Changes the value. Clones are senders of the same channel.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// Sees the current value.
pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The version that the receiver has seen.
    seen: u64,
}

/// A reference to the value, which cannot change while it exists.
pub(crate) struct Ref<'a, T> {
    state: RwLockReadGuard<'a, State<T>>,
    #[cfg(test)]
    has_changed: bool,
}

/// All senders are dropped.
#[derive(Debug)]
pub(crate) struct Closed;

struct Shared<T> {
    // A receiver may be dropped on any thread.
    state: RwLock<State<T>>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    /// Wakes in the order of waiting.
    changed: Notify,
}

struct State<T> {
    value: T,
    /// How often the value was changed, plus one.
    version: u64,
    is_closed: bool,
}

/// Creates a channel with its first value, which the receiver has seen.
pub(crate) fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new(Shared {
            state: RwLock::new(State {
                value,
                version: 1,
                is_closed: false,
            }),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(0),
            changed: Notify::new(),
        }))
    }

    /// Returns a receiver that has seen the current value.
    pub(crate) fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.fetch_add(1, Ordering::Relaxed);
        Receiver {
            seen: self.0.state.read().version,
            shared: self.0.clone(),
        }
    }

    pub(crate) fn borrow(&self) -> Ref<'_, T> {
        Ref {
            state: self.0.state.read(),
            #[cfg(test)]
            has_changed: false,
        }
    }

    pub(crate) fn receiver_count(&self) -> usize {
        self.0.receivers.load(Ordering::Relaxed)
    }

    pub(crate) fn send_replace(&self, value: T) -> T {
        let mut before = None;
        self.send_if_modified(|current| {
            before = Some(std::mem::replace(current, value));
            true
        });
        match before {
            Some(before) => before,
            None => unreachable!("the closure is called once"),
        }
    }

    /// Calls `modify`, and informs the receivers if it returns true.
    pub(crate) fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let mut state = self.0.state.write();
        if !modify(&mut state.value) {
            return false;
        }
        state.version += 1;
        drop(state);
        self.0.changed.notify_waiters();
        true
    }
}

#[cfg(test)]
impl<T> Sender<T> {
    /// Fails without a receiver.
    pub(crate) fn send(&self, value: T) -> Result<(), Closed> {
        if self.receiver_count() == 0 {
            return Err(Closed);
        }
        self.send_replace(value);
        Ok(())
    }
}

impl<T> Receiver<T> {
    pub(crate) fn borrow(&self) -> Ref<'_, T> {
        let state = self.shared.state.read();
        Ref {
            #[cfg(test)]
            has_changed: state.version != self.seen,
            state,
        }
    }

    pub(crate) fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let state = self.shared.state.read();
        let _before = std::mem::replace(&mut self.seen, state.version);
        Ref {
            #[cfg(test)]
            has_changed: state.version != _before,
            state,
        }
    }

    /// Whether there is a value that the receiver has not seen.
    pub(crate) fn has_changed(&self) -> Result<bool, Closed> {
        let state = self.shared.state.read();
        if state.is_closed {
            return Err(Closed);
        }
        Ok(state.version != self.seen)
    }

    /// Makes the current value one that the receiver has not seen.
    pub(crate) fn mark_changed(&mut self) {
        self.seen = self.seen.wrapping_sub(1);
    }

    pub(crate) fn same_channel(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Waits for a value that the receiver has not seen.
    pub(crate) async fn changed(&mut self) -> Result<(), Closed> {
        tokio::task::coop::cooperative(changed(&self.shared, &mut self.seen)).await
    }

    /// Waits until `is_met` holds for a value, the current one included.
    pub(crate) async fn wait_for(
        &mut self,
        mut is_met: impl FnMut(&T) -> bool,
    ) -> Result<Ref<'_, T>, Closed> {
        let mut is_closed = false;
        loop {
            {
                let state = self.shared.state.read();
                let before = std::mem::replace(&mut self.seen, state.version);
                let has_changed = state.version != before;
                if (!is_closed || has_changed) && is_met(&state.value) {
                    return Ok(Ref {
                        state,
                        #[cfg(test)]
                        has_changed,
                    });
                }
            }
            if is_closed {
                return Err(Closed);
            }
            let changed = changed(&self.shared, &mut self.seen);
            is_closed = tokio::task::coop::cooperative(changed).await.is_err();
        }
    }
}

async fn changed<T>(shared: &Shared<T>, seen: &mut u64) -> Result<(), Closed> {
    loop {
        // Created before the comparison, so that no change is missed.
        let notified = shared.changed.notified();
        {
            let state = shared.state.read();
            if std::mem::replace(seen, state.version) != state.version {
                return Ok(());
            }
            if state.is_closed {
                return Err(Closed);
            }
        }
        notified.await;
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.state.write().is_closed = true;
            self.0.changed.notify_waiters();
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: self.shared.clone(),
            seen: self.seen,
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state.value
    }
}

#[cfg(test)]
impl<T> Ref<'_, T> {
    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.value.fmt(f)
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use tokio::sync::watch;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    #[tokio::test]
    async fn receivers_are_woken_in_the_order_of_waiting() {
        let woken = Rc::new(RefCell::new(Vec::new()));
        let waiting = Rc::new(Cell::new(0));
        let sender = Sender::new(0);
        LocalSet::new()
            .run_until(async {
                for number in 0..100 {
                    let (mut receiver, woken) = (sender.subscribe(), woken.clone());
                    let waiting = waiting.clone();
                    spawn_local(async move {
                        // Waits within the same poll.
                        waiting.set(waiting.get() + 1);
                        receiver.changed().await.unwrap();
                        woken.borrow_mut().push(number);
                    });
                }
                while waiting.get() < 100 {
                    yield_now().await;
                }
                sender.send_replace(1);
                while woken.borrow().len() < 100 {
                    yield_now().await;
                }
            })
            .await;
        assert_eq!(*woken.borrow(), (0..100).collect::<Vec<_>>());
    }

    #[derive(Clone, Copy, Debug)]
    enum Call {
        Send(u8),
        Keep(u8),
        Subscribe,
        Clone,
        DropReceiver,
        DropSender,
        Update,
        MarkChanged,
        Changed,
        WaitFor(u8),
    }

    /// Polls once: the result, if there is one.
    fn now<F: Future>(future: F) -> Option<F::Output> {
        use futures_util::FutureExt as _;
        future.now_or_never()
    }

    proptest! {
        #[test]
        fn channels_behave_as_tokios(calls in vec(prop_oneof![
            4 => any::<u8>().prop_map(Call::Send),
            1 => any::<u8>().prop_map(Call::Keep),
            2 => Just(Call::Subscribe),
            1 => Just(Call::Clone),
            1 => Just(Call::DropReceiver),
            1 => Just(Call::DropSender),
            4 => Just(Call::Update),
            1 => Just(Call::MarkChanged),
            4 => Just(Call::Changed),
            2 => (0..4_u8).prop_map(Call::WaitFor),
        ], 1..40)) {
            let (sender, receiver) = channel(0);
            let (mut senders, mut receivers) = (vec![sender], vec![receiver]);
            let (sender, receiver) = watch::channel(0);
            let (mut tokio_senders, mut tokio_receivers) = (vec![sender], vec![receiver]);
            for call in calls {
                let (ours, tokios) = (senders.last(), tokio_senders.last());
                let (own, tokio) = (receivers.last_mut(), tokio_receivers.last_mut());
                match call {
                    Call::Send(value) => if let (Some(ours), Some(tokios)) = (ours, tokios) {
                        prop_assert_eq!(ours.send(value).is_ok(), tokios.send(value).is_ok());
                    },
                    Call::Keep(value) => if let (Some(ours), Some(tokios)) = (ours, tokios) {
                        let set = |current: &mut u8| { *current = value; false };
                        ours.send_if_modified(set);
                        tokios.send_if_modified(set);
                    },
                    Call::Subscribe => if let (Some(ours), Some(tokios)) = (ours, tokios) {
                        receivers.push(ours.subscribe());
                        tokio_receivers.push(tokios.subscribe());
                    },
                    Call::Clone => {
                        senders.extend(ours.cloned());
                        tokio_senders.extend(tokios.cloned());
                    }
                    Call::DropReceiver => {
                        receivers.pop();
                        tokio_receivers.pop();
                    }
                    Call::DropSender => {
                        senders.pop();
                        tokio_senders.pop();
                    }
                    Call::Update => if let (Some(own), Some(tokio)) = (own, tokio) {
                        let (own, tokio) = (own.borrow_and_update(), tokio.borrow_and_update());
                        prop_assert_eq!(*own, *tokio);
                        prop_assert_eq!(own.has_changed(), tokio.has_changed());
                    },
                    Call::MarkChanged => if let (Some(own), Some(tokio)) = (own, tokio) {
                        own.mark_changed();
                        tokio.mark_changed();
                    },
                    Call::Changed => if let (Some(own), Some(tokio)) = (own, tokio) {
                        let (own, tokio) = (now(own.changed()), now(tokio.changed()));
                        prop_assert_eq!(own.map(|it| it.is_ok()), tokio.map(|it| it.is_ok()));
                    },
                    Call::WaitFor(value) => if let (Some(own), Some(tokio)) = (own, tokio) {
                        let own = now(own.wait_for(|it| *it % 4 == value));
                        let tokio = now(tokio.wait_for(|it| *it % 4 == value));
                        let value = own.map(|it| it.ok().map(|it| *it));
                        prop_assert_eq!(value, tokio.map(|it| it.ok().map(|it| *it)));
                    },
                }
                if let (Some(ours), Some(tokios)) = (senders.last(), tokio_senders.last()) {
                    prop_assert_eq!(ours.receiver_count(), tokios.receiver_count());
                    prop_assert_eq!(*ours.borrow(), *tokios.borrow());
                }
                for (own, tokio) in receivers.iter().zip(&tokio_receivers) {
                    let changed = own.has_changed().ok();
                    prop_assert_eq!(changed, tokio.has_changed().ok());
                    prop_assert_eq!(own.borrow().has_changed(), tokio.borrow().has_changed());
                }
            }
        }
    }
}
