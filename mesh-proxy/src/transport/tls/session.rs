//! A TLS 1.3 connection after its handshake, without I/O: seals content into records and opens
//! records.

use std::ops::Range;

use rustls::{AlertDescription, ExtractedSecrets};

use super::buffers::{SLOT_COUNT, SLOT_LEN};
use super::error::RecordError;
use super::protection::{InnerPlaintext, RecordProtection};
use super::reassembler::{AlertAction, HandshakeReassembler, KEY_UPDATE, Message};
use super::schedule::KeySchedule;
use super::{ALERT, DATA, HANDSHAKE, HEADER_LEN, MAX_CONTENT, OVERHEAD};

/// Keys of both directions and the state that updates them. Unusable after its first error.
pub(crate) struct Session {
    sending: RecordProtection,
    receiving: RecordProtection,
    reassembler: HandshakeReassembler,
    schedule: KeySchedule,
    /// Whether the peer has requested an update of the sending key.
    update_requested: bool,
    /// The most records that one sending key seals.
    record_limit: u64,
}

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The range of the application data in the record. Not empty.
    Data(Range<usize>),
    NoData,
    CloseNotify,
}

impl Session {
    pub(crate) fn new(
        secrets: &ExtractedSecrets,
        schedule: KeySchedule,
    ) -> Result<Self, RecordError> {
        let (sent, sending) = &secrets.tx;
        let (received, receiving) = &secrets.rx;
        Ok(Self {
            sending: RecordProtection::new(*sent, sending)?,
            receiving: RecordProtection::new(*received, receiving)?,
            reassembler: HandshakeReassembler::default(),
            record_limit: schedule.record_limit(),
            schedule,
            update_requested: false,
        })
    }

    /// Opens a complete record in place and applies handshake messages and alerts.
    pub(super) fn open(&mut self, record: &mut [u8]) -> Result<Content, RecordError> {
        let InnerPlaintext {
            content_type,
            content,
        } = self.receiving.open(record)?;
        match content_type {
            DATA => {
                self.reassembler.receive_data(content.len())?;
                Ok(if content.is_empty() {
                    Content::NoData
                } else {
                    Content::Data(content)
                })
            }
            HANDSHAKE => {
                let Self {
                    reassembler,
                    receiving,
                    schedule,
                    update_requested,
                    ..
                } = self;
                reassembler.receive_handshake(&record[content], |message| {
                    match message {
                        Message::Ticket(ticket) => schedule.store_ticket(ticket)?,
                        Message::KeyUpdate { is_requested } => {
                            let (number, secrets) = schedule.next_receive_secrets()?;
                            *receiving = RecordProtection::new(number, &secrets)?;
                            *update_requested |= is_requested;
                        }
                    }
                    Ok(())
                })?;
                Ok(Content::NoData)
            }
            ALERT => Ok(match self.reassembler.receive_alert(&record[content])? {
                AlertAction::Close => Content::CloseNotify,
                AlertAction::Ignore => Content::NoData,
            }),
            other => Err(RecordError::ContentType(other)),
        }
    }

    /// Seals `length` bytes of content in the slots. Returns the length of the records.
    pub(super) fn seal(&mut self, slots: &mut [u8], length: usize) -> Result<usize, RecordError> {
        let mut left = length;
        let mut sealed = 0;
        for slot in slots.chunks_mut(SLOT_LEN) {
            if left == 0 {
                break;
            }
            let content = left.min(MAX_CONTENT);
            sealed += self.sending.seal(slot, content, DATA)?;
            left -= content;
        }
        Ok(sealed)
    }

    /// Whether the sending key must be updated before all slots are sealed once more: because the
    /// peer has requested it, or because the key reaches its limit.
    pub(super) fn is_update_due(&self) -> bool {
        self.update_requested
            || self.sending.records().saturating_add(SLOT_COUNT as u64) >= self.record_limit
    }

    /// Appends a KeyUpdate to `records` and advances to the next key. Does not request an update of
    /// the peer's key.
    pub(super) fn update_keys(&mut self, records: &mut Vec<u8>) -> Result<(), RecordError> {
        const UPDATE_NOT_REQUESTED: u8 = 0;
        let message = [KEY_UPDATE, 0, 0, 1, UPDATE_NOT_REQUESTED];
        self.append(records, &message, HANDSHAKE)?;
        self.update_requested = false;
        self.advance_send_key()
    }

    /// Derives the next sending key; later records are sealed with it.
    pub(crate) fn advance_send_key(&mut self) -> Result<(), RecordError> {
        let (number, secrets) = self.schedule.next_send_secrets()?;
        self.sending = RecordProtection::new(number, &secrets)?;
        Ok(())
    }

    /// Appends an alert to `records`.
    pub(super) fn append_alert(
        &mut self,
        records: &mut Vec<u8>,
        alert: AlertDescription,
    ) -> Result<(), RecordError> {
        const WARNING: u8 = 1;
        const FATAL: u8 = 2;
        let level = match alert {
            AlertDescription::CloseNotify => WARNING,
            _ => FATAL,
        };
        self.append(records, &[level, alert.into()], ALERT)
    }

    /// Appends a record of `content` to `records`.
    pub(crate) fn append(
        &mut self,
        records: &mut Vec<u8>,
        content: &[u8],
        content_type: u8,
    ) -> Result<(), RecordError> {
        let start = records.len();
        records.resize(start + content.len() + OVERHEAD, 0);
        let slot = &mut records[start..];
        slot[HEADER_LEN..HEADER_LEN + content.len()].copy_from_slice(content);
        self.sending.seal(slot, content.len(), content_type)?;
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn set_record_limit(&mut self, limit: u64) {
        self.record_limit = limit;
    }

    /// Opens a record, and returns its type and content without applying them.
    #[cfg(test)]
    pub(super) fn open_only(&mut self, record: &mut [u8]) -> Result<(u8, Vec<u8>), RecordError> {
        let inner = self.receiving.open(record)?;
        Ok((inner.content_type, record[inner.content].to_vec()))
    }

    /// Returns how many records the current sending key has sealed.
    #[cfg(test)]
    pub(super) fn records_sent(&self) -> u64 {
        self.sending.records()
    }
}
