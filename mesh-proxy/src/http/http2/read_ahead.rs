//! [`ReadAhead`]: how much of its responses one client's connection lets the proxy read ahead.
//!
//! A response begins in a window of 16 KiB. When its header section has arrived, the server of the
//! client's connection widens the window, as far as the budget of that connection allows. A client
//! that opens streams and does not read them thus occupies its budget and 16 KiB for each stream,
//! and no stream waits for the reader of another (docs/adr/0166).
//!
//! While half of the budget is free, a request is granted a part of it before its response arrives,
//! which saves the response a read or a round trip (docs/adr/0193).

use std::cell::Cell;
use std::rc::Rc;

use crate::http::Body;
use crate::http::buffers::{FIRST_READ_SIZE, READ_SIZE};

/// The budget of one client's connection: the bytes that are granted.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct ReadAhead(Rc<Cell<u32>>);

/// Bytes of one response that may be read ahead. Dropping it returns them to the budget.
#[derive(Debug)]
pub(super) struct ReadAheadGrant {
    budget: ReadAhead,
    bytes: u32,
}

/// Widens the windows of 73 responses from 16 to 72 KiB: with the first windows of 200 streams half
/// of the 14 MiB that these streams could occupy when each began with 72 KiB.
pub(in crate::http) const READ_AHEAD_BYTES: u32 = 4 * 1024 * 1024;

/// The grant of a request whose response has not begun: the rest of one read over HTTP/1.
const GRANTED_AHEAD: u32 = READ_SIZE as u32 - FIRST_READ_SIZE;

/// Requests are granted no more than this, so that responses that have begun do not lack what
/// others have only reserved.
const MAX_AHEAD: u32 = READ_AHEAD_BYTES / 2;

impl ReadAhead {
    /// Grants [`GRANTED_AHEAD`] bytes to a request, or none.
    pub(super) fn grant_ahead(&self) -> ReadAheadGrant {
        let granted = self.0.get();
        let is_allowed = granted + GRANTED_AHEAD <= MAX_AHEAD;
        let bytes = if is_allowed { GRANTED_AHEAD } else { 0 };
        self.0.set(granted + bytes);
        ReadAheadGrant {
            budget: self.clone(),
            bytes,
        }
    }
}

impl ReadAheadGrant {
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Widens the window of a response that is about to be sent to the client. The bytes granted
    /// ahead are part of that, or were used already.
    pub(super) fn widen(&mut self, response: &Body) {
        response.widen_window(|missing| {
            let others = self.budget.0.get() - self.bytes;
            self.bytes = grantable(others, missing);
            self.budget.0.set(others + self.bytes);
            self.bytes
        });
    }
}

impl Drop for ReadAheadGrant {
    fn drop(&mut self) {
        let granted = &self.budget.0;
        granted.set(granted.get() - self.bytes);
    }
}

/// Returns how many of the `missing` bytes a budget grants. A single response always gets all of
/// them, however large a window the user has configured.
fn grantable(granted: u32, missing: u32) -> u32 {
    match READ_AHEAD_BYTES.checked_sub(granted) {
        _ if granted == 0 => missing,
        Some(left) => missing.min(left),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_granted_half_of_the_budget_until_they_end() {
        let budget = ReadAhead::default();
        let mut grants: Vec<_> = (0..200).map(|_| budget.grant_ahead()).collect();
        let granted = grants.iter().filter(|grant| grant.bytes() > 0).count();
        assert_eq!(granted, (MAX_AHEAD / GRANTED_AHEAD) as usize);
        assert_eq!(budget.0.get(), granted as u32 * GRANTED_AHEAD);
        drop(grants.remove(0));
        assert_eq!(budget.grant_ahead().bytes(), GRANTED_AHEAD);
        drop(grants);
        assert_eq!(budget.0.get(), 0);
    }

    #[test]
    fn budget_grants_what_is_left_and_all_to_a_single_response() {
        const ALL: u32 = READ_AHEAD_BYTES;
        for (granted, missing, expected) in [
            (0, 57_344, 57_344),
            (0, 2 * ALL, 2 * ALL),
            (57_344, 57_344, 57_344),
            (ALL - 1000, 57_344, 1000),
            (ALL, 57_344, 0),
            (2 * ALL, 57_344, 0),
        ] {
            assert_eq!(grantable(granted, missing), expected, "{granted} {missing}");
        }
    }
}
