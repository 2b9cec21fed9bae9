//! Ends connections from another thread: those whose peers are no longer trusted, after the bundle
//! of their trust domain was withdrawn or their identity was denied.
//!
//! A connection cannot be looked up by its peer, since a future owns it. Its socket asks its
//! [`Admission`] instead, whenever it is read or written, and its task is woken while it waits.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
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

/// Why connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reason {
    /// The bundle of the peer's trust domain was withdrawn.
    TrustDomain = 1,
    /// The peer's identity is denied.
    Denied = 2,
}

/// Whether one connection may go on.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// 0, or the number of a [`Reason`].
    revoked: AtomicU8,
    /// The task of the connection, while it waits.
    waiter: AtomicWaker,
}

impl Default for Revocation {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State::Admitting(Vec::new()))))
    }
}

impl Revocation {
    /// Admits a connection. Returns false after [`Revocation::revoke`].
    pub(crate) fn admit(&self, admission: &Arc<Admission>) -> bool {
        let mut state = self.0.lock();
        let State::Admitting(admitted) = &mut *state else {
            return false;
        };
        if admitted.len() == admitted.capacity() {
            admitted.retain(|admission| admission.strong_count() > 0);
            // So that a full list is not searched for each connection.
            admitted.reserve_exact(admitted.len() + 1);
        }
        admitted.push(Arc::downgrade(admission));
        true
    }

    /// Ends all connections, now and later. Returns how many were open.
    pub(crate) fn revoke(&self, reason: Reason) -> u64 {
        let before = std::mem::replace(&mut *self.0.lock(), State::Revoked);
        let State::Admitting(admitted) = before else {
            return 0;
        };
        let mut ended = 0;
        for admission in admitted.iter().filter_map(Weak::upgrade) {
            admission.revoked.store(reason as u8, Ordering::Release);
            admission.waiter.wake();
            ended += 1;
        }
        ended
    }

    /// Whether a connection is open that it has admitted.
    pub(crate) fn is_used(&self) -> bool {
        match &*self.0.lock() {
            State::Admitting(admitted) => admitted.iter().any(|it| it.strong_count() > 0),
            State::Revoked => false,
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
        let revoked = self.revoked.load(Ordering::Acquire);
        if revoked == 0 {
            return Ok(());
        }
        let problem = if revoked == Reason::Denied as u8 {
            "the peer's identity is denied"
        } else {
            "the peer's trust domain is no longer trusted"
        };
        Err(io::Error::new(io::ErrorKind::ConnectionReset, problem))
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.check().is_err()
    }

    /// Wakes the task when the connection is revoked. Fails if it has been.
    pub(super) fn wait(&self, cx: &Context<'_>) -> io::Result<()> {
        self.waiter.register(cx.waker());
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(revocation: &Revocation) -> Option<Arc<Admission>> {
        let admission = Arc::default();
        revocation.admit(&admission).then_some(admission)
    }

    #[test]
    fn revocation_ends_admitted_connections_and_admits_no_more() {
        let (revocation, other) = (Revocation::default(), Revocation::default());
        let admission = admit(&revocation).unwrap();
        let unrelated = admit(&other).unwrap();
        admission.check().unwrap();
        assert_eq!(revocation.clone().revoke(Reason::TrustDomain), 1);
        let error = admission.check().unwrap_err().to_string();
        assert_eq!(error, "the peer's trust domain is no longer trusted");
        assert!(admit(&revocation).is_none());
        assert_eq!(revocation.revoke(Reason::TrustDomain), 0);
        unrelated.check().unwrap();
        assert!(other.is_used() && !revocation.is_used());
        assert!(revocation != other && other == other.clone());
        drop(unrelated);
        assert!(!other.is_used());
    }

    #[test]
    fn connection_ends_with_each_revocation_that_has_admitted_it() {
        let (domain, identity) = (Revocation::default(), Revocation::default());
        let admission = admit(&domain).unwrap();
        assert!(identity.admit(&admission));
        assert_eq!(identity.revoke(Reason::Denied), 1);
        let error = admission.check().unwrap_err().to_string();
        assert_eq!(error, "the peer's identity is denied");
    }

    #[test]
    fn closed_connections_are_forgotten() {
        let revocation = Revocation::default();
        let open: Vec<_> = (0..10).map(|_| admit(&revocation).unwrap()).collect();
        for _ in 0..10_000 {
            drop(admit(&revocation).unwrap());
        }
        let state = revocation.0.lock();
        let State::Admitting(admitted) = &*state else {
            panic!("revoked");
        };
        assert!(admitted.capacity() < 100, "{}", admitted.capacity());
        drop(state);
        assert_eq!(revocation.revoke(Reason::Denied), 10);
        assert!(open.iter().all(|admission| admission.check().is_err()));
    }
}
