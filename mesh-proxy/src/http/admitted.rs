//! Requests that were let through, for as long as they last, so that they can be ended when the
//! policy no longer allows them.
//!
//! Belongs to one data thread. `inbound` lets requests through and reviews them when the policy of
//! their port changes; the servers of both protocols end those that were revoked, because they
//! alone can do so while a client does not read.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use http::{HeaderMap, Method};
use mesh_core::route::http::RequestHead;

/// Who keeps a list of the requests that it has let through. Lives as long as they last.
pub trait Admits {
    fn admitted(&self) -> &Admitted;
    /// One more request lasts.
    fn begun(&self) {}
    /// One request is over.
    fn ended(&self) {}
}

/// The requests that were let through. The places of those that are over are used again, so that
/// a request allocates nothing.
#[derive(Debug, Default)]
pub struct Admitted(RefCell<Slots>);

/// One request, from being let through to its end.
pub struct Admission {
    by: Rc<dyn Admits>,
    slot: usize,
}

/// What has to be known of a request to judge it again.
#[derive(Debug, Default)]
pub struct Facts {
    pub client: Option<IpAddr>,
    method: Method,
    authority: String,
    path: String,
    query: Option<String>,
    /// Kept only if the rules look at them.
    headers: Option<Box<HeaderMap>>,
}

#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Slot>,
    /// The places that are free.
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct Slot {
    facts: Facts,
    state: State,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Allowed,
    Revoked,
}

/// Texts above this size are not kept for the next request.
const KEPT_TEXT: usize = 256;

/// When all places are free, no more than this many are kept.
const KEPT_SLOTS: usize = 16;

impl Admitted {
    fn admit(&self, client: IpAddr, head: &RequestHead<'_>, keeps_headers: bool) -> usize {
        let mut slots = self.0.borrow_mut();
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.slots.push(Slot::default());
            slots.slots.len() - 1
        });
        let of = &mut slots.slots[slot];
        of.state = State::Allowed;
        of.facts.set(client, head, keeps_headers);
        slot
    }

    /// Revokes the requests that are no longer allowed. Returns how many those are.
    pub fn review(&self, mut is_allowed: impl FnMut(&Facts) -> bool) -> usize {
        let mut revoked = 0;
        for slot in &mut self.0.borrow_mut().slots {
            if slot.state == State::Allowed && !is_allowed(&slot.facts) {
                slot.state = State::Revoked;
                revoked += 1;
                if let Some(waker) = slot.waker.take() {
                    waker.wake();
                }
            }
        }
        revoked
    }

    fn release(&self, slot: usize) {
        let mut slots = self.0.borrow_mut();
        let of = &mut slots.slots[slot];
        of.state = State::Free;
        of.waker = None;
        of.facts.clear();
        slots.free.push(slot);
        if slots.free.len() == slots.slots.len() && slots.slots.len() > KEPT_SLOTS {
            *slots = Slots::default();
        }
    }
}

impl Admission {
    /// Lists a request until the admission is dropped.
    pub fn new(
        by: Rc<dyn Admits>,
        client: IpAddr,
        head: &RequestHead<'_>,
        keeps_headers: bool,
    ) -> Self {
        let slot = by.admitted().admit(client, head, keeps_headers);
        by.begun();
        Self { by, slot }
    }

    /// Ready when the request is no longer allowed.
    pub fn poll_revoked(&self, cx: &Context<'_>) -> Poll<()> {
        let mut slots = self.by.admitted().0.borrow_mut();
        let slot = &mut slots.slots[self.slot];
        if slot.state == State::Revoked {
            return Poll::Ready(());
        }
        match &mut slot.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Returns when the request is no longer allowed.
    pub async fn revoked(&self) {
        poll_fn(|cx| self.poll_revoked(cx)).await;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.by.admitted().release(self.slot);
        self.by.ended();
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

impl Facts {
    fn set(&mut self, client: IpAddr, head: &RequestHead<'_>, keeps_headers: bool) {
        self.client = Some(client);
        self.method.clone_from(head.method);
        self.authority.push_str(head.authority.unwrap_or_default());
        self.path.push_str(head.path);
        self.query = head.query.map(str::to_owned);
        self.headers = keeps_headers.then(|| Box::new(head.headers.clone()));
    }

    fn clear(&mut self) {
        for text in [&mut self.authority, &mut self.path] {
            text.clear();
            text.shrink_to(KEPT_TEXT);
        }
        self.query = None;
        self.headers = None;
    }

    /// Whether the headers are known.
    pub fn has_headers(&self) -> bool {
        self.headers.is_some()
    }

    /// The request as it was judged. Without its headers, where they were not kept; `none` stands
    /// for them.
    pub fn head<'a>(&'a self, none: &'a HeaderMap) -> RequestHead<'a> {
        RequestHead {
            method: &self.method,
            scheme: None,
            authority: (!self.authority.is_empty()).then_some(self.authority.as_str()),
            path: &self.path,
            query: self.query.as_deref(),
            headers: self.headers.as_deref().unwrap_or(none),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Owner(Admitted);

    impl Admits for Owner {
        fn admitted(&self) -> &Admitted {
            &self.0
        }
    }

    fn admit(owner: &Rc<Owner>, path: &str) -> Admission {
        let request = http::Request::get(format!("http://web{path}")).body(());
        let request = request.unwrap();
        let client = IpAddr::from([10, 0, 0, 1]);
        Admission::new(owner.clone(), client, &RequestHead::from(&request), false)
    }

    fn is_revoked(admission: &Admission) -> bool {
        let cx = Context::from_waker(Waker::noop());
        admission.poll_revoked(&cx).is_ready()
    }

    #[test]
    fn those_that_are_no_longer_allowed_are_revoked() {
        let owner = Rc::new(Owner::default());
        let kept = admit(&owner, "/kept?a=b");
        let revoked = admit(&owner, "/revoked");
        assert!(!is_revoked(&kept) && !is_revoked(&revoked));
        let none = HeaderMap::new();
        let is_allowed = |facts: &Facts| {
            let head = facts.head(&none);
            assert_eq!((head.host(), head.method), (Some("web"), &Method::GET));
            head.path == "/kept" && head.query == Some("a=b")
        };
        assert_eq!(owner.0.review(is_allowed), 1);
        assert_eq!(owner.0.review(is_allowed), 0, "it is counted once");
        assert!(!is_revoked(&kept) && is_revoked(&revoked));
        drop(revoked);
        let next = admit(&owner, "/kept?a=b");
        assert!(!is_revoked(&next), "its place is another's now");
    }

    #[test]
    fn what_requests_leave_behind_is_small() {
        let owner = Rc::new(Owner::default());
        let long = format!("/{}", "a".repeat(10_000));
        let many: Vec<_> = (0..1_000).map(|_| admit(&owner, &long)).collect();
        drop(many);
        assert!(owner.0.0.borrow().slots.is_empty());
        for _ in 0..1_000 {
            drop(admit(&owner, &long));
        }
        let slots = owner.0.0.borrow();
        assert_eq!(slots.slots.len(), 1);
        assert!(slots.slots[0].facts.path.capacity() <= KEPT_TEXT);
    }
}
