//! A peer that seals its own records, so that an input can fragment, pad, seal and mix the
//! handshake messages.

use std::collections::VecDeque;

use mesh_test_support::tls::sealing::{self, PlaintextRecord};
use rustls::Connection;

/// A rustls connection and the records that it wants to send.
pub(super) struct ScriptedPeer {
    rustls: Connection,
    pub(super) pending: VecDeque<PlaintextRecord>,
    /// The index of its current sending key.
    pub(super) key: Option<usize>,
}

impl ScriptedPeer {
    pub(super) fn new(mut rustls: Connection) -> Self {
        Self {
            pending: sealing::pending_records(&mut rustls).into(),
            rustls,
            key: None,
        }
    }

    /// Passes the proxy's bytes to rustls, which stops at the first invalid record.
    pub(super) fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let read = self.rustls.read_tls(&mut bytes);
            if !matches!(read, Ok(1..)) || self.rustls.process_new_packets().is_err() {
                break;
            }
        }
        let records = sealing::pending_records(&mut self.rustls);
        self.pending.extend(records);
    }

    /// Seals a record. `padding` zeros follow the content of an encrypted one.
    pub(super) fn seal(
        &mut self,
        key: Option<usize>,
        content_type: u8,
        content: &[u8],
        padding: usize,
    ) -> Vec<u8> {
        self.key = key.or(self.key);
        sealing::seal(key, content_type, content, padding)
    }
}
