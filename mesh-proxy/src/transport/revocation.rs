//! Ends connections from another thread: those whose peers are no longer trusted, after the bundle
//! of their trust domain was withdrawn.
//!
//! A connection cannot be looked up by its peer, since a future owns it. Its socket asks its
//! [`Admission`] instead, whenever it is read or written, and is woken while it waits for bytes.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Context;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

/// Ends all connections that it has admitted. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Revocation(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    // Dead ones are removed whenever the list would grow.
    Admitting(Vec<Weak<Admission>>),
    Revoked,
}

/// Whether one connection may go on.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    is_revoked: AtomicBool,
    /// Who waits for bytes.
    reader: AtomicWaker,
}

impl Default for Revocation {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State::Admitting(Vec::new()))))
    }
}

impl Revocation {
    /// Admits a connection; `None` after [`Revocation::revoke`].
    pub(crate) fn admit(&self) -> Option<Arc<Admission>> {
        let mut state = self.0.lock();
        let State::Admitting(admitted) = &mut *state else {
            return None;
        };
        if admitted.len() == admitted.capacity() {
            admitted.retain(|admission| admission.strong_count() > 0);
            // So that a full list is not searched for each connection.
            admitted.reserve(admitted.len() + 1);
        }
        let admission = Arc::new(Admission::default());
        admitted.push(Arc::downgrade(&admission));
        Some(admission)
    }

    /// Ends all connections, now and later.
    pub(crate) fn revoke(&self) {
        let before = std::mem::replace(&mut *self.0.lock(), State::Revoked);
        let State::Admitting(admitted) = before else {
            return;
        };
        for admission in admitted.iter().filter_map(Weak::upgrade) {
            admission.is_revoked.store(true, Ordering::Release);
            admission.reader.wake();
        }
    }
}

impl PartialEq for Revocation {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Revocation {}

impl Admission {
    /// Fails when the connection has been revoked.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.is_revoked.load(Ordering::Acquire) {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "the peer's trust domain is no longer trusted",
            ));
        }
        Ok(())
    }

    /// Wakes the task when the connection is revoked. Fails if it has been.
    pub(super) fn wait(&self, cx: &Context<'_>) -> io::Result<()> {
        self.reader.register(cx.waker());
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revocation_ends_admitted_connections_and_admits_no_more() {
        let (revocation, other) = (Revocation::default(), Revocation::default());
        let admission = revocation.admit().unwrap();
        let unrelated = other.admit().unwrap();
        admission.check().unwrap();
        revocation.clone().revoke();
        admission.check().unwrap_err();
        assert!(revocation.admit().is_none());
        unrelated.check().unwrap();
        assert!(other.admit().is_some());
        assert!(revocation != other && other == other.clone());
    }

    #[test]
    fn closed_connections_are_forgotten() {
        let revocation = Revocation::default();
        let open: Vec<_> = (0..10).map(|_| revocation.admit().unwrap()).collect();
        for _ in 0..10_000 {
            drop(revocation.admit().unwrap());
        }
        let state = revocation.0.lock();
        let State::Admitting(admitted) = &*state else {
            panic!("revoked");
        };
        assert!(admitted.capacity() < 100, "{}", admitted.capacity());
        drop(state);
        revocation.revoke();
        assert!(open.iter().all(|admission| admission.check().is_err()));
    }
}
