//! Requests in flight that the policy has allowed, so that they can be aborted when it no longer
//! allows them.
//!
//! Belongs to one data thread. `inbound` authorizes requests, and authorizes them again when the
//! policy of their port changes. The servers of both protocols abort revoked requests, because only
//! they can do so while a client does not read.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use http::{HeaderMap, Method};
use mesh_core::route::http::RequestHead;

/// Owns the list of requests that it has authorized. Lives until the last of them completes.
pub(crate) trait RequestTracker {
    fn revocable(&self) -> &RevocableRequests;
    /// Called when a request is added.
    fn request_started(&self) {}
    /// Called when a request completes.
    fn request_ended(&self) {}
}

/// The authorized requests. Slots are reused, so that a request allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct RevocableRequests(RefCell<Slots>);

/// One authorized request. Dropping it removes the request from the list.
pub(crate) struct RevocableRequest {
    tracker: Rc<dyn RequestTracker>,
    slot: usize,
}

/// The attributes of a request that authorizing it again requires.
#[derive(Debug, Default)]
pub(crate) struct RequestAttributes {
    pub(crate) client: Option<IpAddr>,
    method: Method,
    authority: String,
    path: String,
    query: Option<String>,
    is_raw: bool,
    /// Kept only if the policy matches headers.
    headers: Option<Box<HeaderMap>>,
}

#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Slot>,
    /// Indices of free slots.
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct Slot {
    attributes: RequestAttributes,
    state: SlotState,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    #[default]
    Free,
    Allowed,
    Revoked,
}

/// Texts larger than this are not kept for the next request.
const MAX_RETAINED_TEXT: usize = 256;

/// When all slots are free, at most this many are kept.
const MAX_RETAINED_SLOTS: usize = 16;

impl RevocableRequests {
    fn add(&self, client: IpAddr, head: &RequestHead<'_>, keep_headers: bool) -> usize {
        let mut slots = self.0.borrow_mut();
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.slots.push(Slot::default());
            slots.slots.len() - 1
        });
        let entry = &mut slots.slots[slot];
        entry.state = SlotState::Allowed;
        entry.attributes.set(client, head, keep_headers);
        slot
    }

    /// Revokes the requests that are no longer allowed and returns their number.
    pub(crate) fn revoke_denied(
        &self,
        mut is_allowed: impl FnMut(&RequestAttributes) -> bool,
    ) -> usize {
        let mut revoked = 0;
        for slot in &mut self.0.borrow_mut().slots {
            if slot.state == SlotState::Allowed && !is_allowed(&slot.attributes) {
                slot.state = SlotState::Revoked;
                revoked += 1;
                if let Some(waker) = slot.waker.take() {
                    waker.wake();
                }
            }
        }
        revoked
    }

    fn remove(&self, slot: usize) {
        let mut slots = self.0.borrow_mut();
        let entry = &mut slots.slots[slot];
        entry.state = SlotState::Free;
        entry.waker = None;
        entry.attributes.clear();
        slots.free.push(slot);
        if slots.free.len() == slots.slots.len() && slots.slots.len() > MAX_RETAINED_SLOTS {
            *slots = Slots::default();
        }
    }
}

impl RevocableRequest {
    /// Adds a request to the list.
    pub(crate) fn new(
        tracker: Rc<dyn RequestTracker>,
        client: IpAddr,
        head: &RequestHead<'_>,
        keep_headers: bool,
    ) -> Self {
        let slot = tracker.revocable().add(client, head, keep_headers);
        tracker.request_started();
        Self { tracker, slot }
    }

    /// Ready when the request is no longer allowed.
    pub(crate) fn poll_revoked(&self, cx: &Context<'_>) -> Poll<()> {
        let mut slots = self.tracker.revocable().0.borrow_mut();
        let slot = &mut slots.slots[self.slot];
        if slot.state == SlotState::Revoked {
            return Poll::Ready(());
        }
        match &mut slot.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Completes when the request is no longer allowed.
    pub(crate) async fn revoked(&self) {
        poll_fn(|cx| self.poll_revoked(cx)).await;
    }
}

impl Drop for RevocableRequest {
    fn drop(&mut self) {
        self.tracker.revocable().remove(self.slot);
        self.tracker.request_ended();
    }
}

impl fmt::Debug for RevocableRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocableRequest")
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

impl RequestAttributes {
    fn set(&mut self, client: IpAddr, head: &RequestHead<'_>, keep_headers: bool) {
        self.client = Some(client);
        self.method.clone_from(head.method);
        self.authority.push_str(head.authority.unwrap_or_default());
        self.path.push_str(head.path);
        self.query = head.query.map(str::to_owned);
        self.is_raw = head.is_raw;
        self.headers = keep_headers.then(|| Box::new(head.headers.clone()));
    }

    fn clear(&mut self) {
        for text in [&mut self.authority, &mut self.path] {
            text.clear();
            text.shrink_to(MAX_RETAINED_TEXT);
        }
        self.query = None;
        self.headers = None;
    }

    pub(crate) fn has_headers(&self) -> bool {
        self.headers.is_some()
    }

    /// Returns the request as it was authorized, with `none` in place of headers that were not
    /// kept.
    pub(crate) fn to_head<'a>(&'a self, none: &'a HeaderMap) -> RequestHead<'a> {
        RequestHead {
            method: &self.method,
            scheme: None,
            authority: (!self.authority.is_empty()).then_some(self.authority.as_str()),
            path: &self.path,
            is_raw: self.is_raw,
            query: self.query.as_deref(),
            headers: self.headers.as_deref().unwrap_or(none),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Tracker(RevocableRequests);

    impl RequestTracker for Tracker {
        fn revocable(&self) -> &RevocableRequests {
            &self.0
        }
    }

    fn track(tracker: &Rc<Tracker>, path: &str) -> RevocableRequest {
        let request = http::Request::get(format!("http://web{path}")).body(());
        let request = request.unwrap();
        let client = IpAddr::from([10, 0, 0, 1]);
        RevocableRequest::new(tracker.clone(), client, &RequestHead::from(&request), false)
    }

    fn is_revoked(revocable: &RevocableRequest) -> bool {
        let cx = Context::from_waker(Waker::noop());
        revocable.poll_revoked(&cx).is_ready()
    }

    #[test]
    fn reauthorization_revokes_only_denied_requests() {
        let tracker = Rc::new(Tracker::default());
        let kept = track(&tracker, "/kept?a=b");
        let revoked = track(&tracker, "/revoked");
        assert!(!is_revoked(&kept) && !is_revoked(&revoked));
        let none = HeaderMap::new();
        let is_allowed = |attributes: &RequestAttributes| {
            let head = attributes.to_head(&none);
            assert_eq!((head.host(), head.method), (Some("web"), &Method::GET));
            head.path == "/kept" && head.query == Some("a=b")
        };
        assert_eq!(tracker.0.revoke_denied(is_allowed), 1);
        assert_eq!(
            tracker.0.revoke_denied(is_allowed),
            0,
            "a request is revoked once"
        );
        assert!(!is_revoked(&kept) && is_revoked(&revoked));
        drop(revoked);
        let next = track(&tracker, "/kept?a=b");
        assert!(!is_revoked(&next), "the slot belongs to a new request");
    }

    #[test]
    fn completed_requests_release_large_buffers() {
        let tracker = Rc::new(Tracker::default());
        let long = format!("/{}", "a".repeat(10_000));
        let many: Vec<_> = (0..1_000).map(|_| track(&tracker, &long)).collect();
        drop(many);
        assert!(tracker.0.0.borrow().slots.is_empty());
        for _ in 0..1_000 {
            drop(track(&tracker, &long));
        }
        let slots = tracker.0.0.borrow();
        assert_eq!(slots.slots.len(), 1);
        assert!(slots.slots[0].attributes.path.capacity() <= MAX_RETAINED_TEXT);
    }
}
