//! [`ReadAhead`]: how much of its responses one client's connection lets the proxy read ahead.
//!
//! A response begins in a window of 16 KiB. When its header section has arrived, the server of the
//! client's connection widens the window, as far as the budget of that connection allows. A client
//! that opens streams and does not read them thus occupies its budget and 16 KiB for each stream,
//! and no stream waits for the reader of another (docs/adr/0166).

use std::cell::Cell;

use crate::http::Body;

/// The budget of one client's connection.
#[derive(Debug, Default)]
pub(in crate::http) struct ReadAhead {
    /// The windows of responses are widened by these bytes in all.
    granted: Cell<u32>,
}

/// The window of one response is widened by these bytes. Dropping it returns them to the budget.
#[derive(Debug)]
pub(super) struct ReadAheadGrant<'a> {
    budget: &'a ReadAhead,
    bytes: u32,
}

/// Widens the windows of 73 responses from 16 to 72 KiB: with the first windows of 200 streams half
/// of the 14 MiB that these streams could occupy when each began with 72 KiB.
pub(in crate::http) const READ_AHEAD_BYTES: u32 = 4 * 1024 * 1024;

impl ReadAhead {
    /// Widens the window of a response that is about to be sent to the client.
    pub(super) fn widen(&self, response: &Body) -> ReadAheadGrant<'_> {
        let mut grant = ReadAheadGrant {
            budget: self,
            bytes: 0,
        };
        response.widen_window(|missing| {
            grant.bytes = grantable(self.granted.get(), missing);
            self.granted.set(self.granted.get() + grant.bytes);
            grant.bytes
        });
        grant
    }
}

impl Drop for ReadAheadGrant<'_> {
    fn drop(&mut self) {
        let granted = &self.budget.granted;
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
