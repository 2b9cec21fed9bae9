//! A version of a watched value, with the messages that streams send for it.
//!
//! The index publishes versions; the gRPC services encode the messages and know their format.

use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Encoded messages, which streams share.
pub type Messages = Arc<[Bytes]>;

/// A version of a watched value.
///
/// Messages are encoded once for all readers that have sent the same value before, and dropped when
/// the next version is published.
#[derive(Debug)]
pub struct Version<V> {
    value: Arc<V>,
    changed_at: Option<Instant>,
    // The most recently used first. Locked while an entry is found or added, never while messages
    // are encoded.
    prepared: Mutex<Vec<Prepared<V>>>,
}

/// The messages for the readers that have sent one earlier value.
#[derive(Debug)]
struct Prepared<V> {
    /// `None` for readers that have sent nothing. The reference does not keep the value; its
    /// address is not reused while the reference exists.
    since: Option<Weak<V>>,
    messages: Arc<OnceLock<Messages>>,
}

/// The maximum number of earlier values whose messages are kept. Nearly all readers have sent
/// nothing or the previous version; under load many skip the same versions.
const MAX_PREPARED: usize = 4;

impl<V> Version<V> {
    /// A value that was computed for a new reader.
    pub(crate) fn new(value: V) -> Self {
        Self {
            value: Arc::new(value),
            changed_at: None,
            prepared: Mutex::default(),
        }
    }

    /// A value that follows from a change reported at this time.
    pub(crate) fn changed(value: V, at: Instant) -> Self {
        Self {
            changed_at: Some(at),
            ..Self::new(value)
        }
    }

    /// When the change that led to this version was reported; `None` if it was computed for a new
    /// reader.
    pub fn changed_at(&self) -> Option<Instant> {
        self.changed_at
    }

    /// Returns the value. A reader keeps it and compares the next value with it; this does not keep
    /// the messages in memory.
    pub fn value(&self) -> &Arc<V> {
        &self.value
    }

    /// Returns the messages for a reader that has sent the value `since`. Only the first of the
    /// readers with the same one encodes them, and the others wait for it. For endpoints, `encode`
    /// returns the difference to `since`.
    pub fn messages(&self, since: Option<&Arc<V>>, encode: impl FnOnce() -> Messages) -> Messages {
        let messages = self.prepared(since);
        messages.get_or_init(encode).clone()
    }

    fn prepared(&self, since: Option<&Arc<V>>) -> Arc<OnceLock<Messages>> {
        let mut prepared = self.prepared.lock();
        let found = prepared.iter().position(|entry| entry.is_since(since));
        let entry = match found {
            Some(at) => prepared.remove(at),
            None => {
                prepared.truncate(MAX_PREPARED - 1);
                Prepared {
                    since: since.map(Arc::downgrade),
                    messages: Arc::default(),
                }
            }
        };
        let messages = entry.messages.clone();
        prepared.insert(0, entry);
        messages
    }
}

impl<V> Prepared<V> {
    fn is_since(&self, value: Option<&Arc<V>>) -> bool {
        match (&self.since, value) {
            (None, None) => true,
            (Some(since), Some(value)) => std::ptr::eq(since.as_ptr(), Arc::as_ptr(value)),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }
}

impl<V> Deref for Version<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

/// Versions are equal if their values are.
impl<V: PartialEq> PartialEq for Version<V> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn one_message(text: &'static str) -> Messages {
        [Bytes::from_static(text.as_bytes())].into()
    }

    #[test]
    fn messages_are_encoded_once_for_each_earlier_value() {
        let [first, second] = [1, 2].map(Arc::new);
        let version = Version::new(3);
        let encoded = Cell::new(0);
        let messages = |since: Option<&Arc<i32>>, text| {
            version.messages(since, || {
                encoded.set(encoded.get() + 1);
                one_message(text)
            })
        };
        for (since, text) in [(None, "3"), (Some(&first), "+2"), (Some(&second), "+1")] {
            let one = messages(since, text);
            assert_eq!(one[0], text);
            assert!(Arc::ptr_eq(&one, &messages(since, "other")), "{text}");
        }
        assert_eq!(encoded.get(), 3);
        // An equal value that was published at another time is another one.
        assert_eq!(messages(Some(&Arc::new(1)), "again")[0], "again");
    }

    #[test]
    fn kept_messages_are_bounded_to_those_in_use() {
        let version = Version::new(0);
        let encoded = Cell::new(0);
        let messages = |since: Option<&Arc<i32>>| {
            version.messages(since, || {
                encoded.set(encoded.get() + 1);
                one_message("m")
            })
        };
        let earlier: Vec<_> = (0..100).map(Arc::new).collect();
        for value in &earlier {
            messages(Some(value));
            messages(None);
            assert!(version.prepared.lock().len() <= MAX_PREPARED);
        }
        assert_eq!(encoded.get(), 101, "a message in use was dropped");
        messages(Some(&earlier[0]));
        assert_eq!(encoded.get(), 102);
        let dropped = Arc::downgrade(&earlier[0]);
        drop(earlier);
        assert!(dropped.upgrade().is_none(), "an earlier value is kept");
    }
}
