//! A TLS 1.3 connection after its handshake, without its socket: records in, content out, and the
//! other way round.

use std::ops::Range;

use rustls::{AlertDescription, ExtractedSecrets};

use super::cipher::{Cipher, Inner};
use super::error::RecordError;
use super::incoming::{Alert, Incoming, KEY_UPDATE, Message};
use super::schedule::KeySchedule;
use super::slots::{SLOT, SLOTS};
use super::{ALERT, DATA, HANDSHAKE, HEADER, MAX_CONTENT, OVERHEAD};

/// Keys of both directions and what may change them. Useless after its first error.
pub(in crate::tls) struct Session {
    sending: Cipher,
    receiving: Cipher,
    incoming: Incoming,
    schedule: KeySchedule,
    /// The peer has asked for new keys of ours.
    update_asked: bool,
    /// Records under one key of ours.
    limit: u64,
}

/// What a record held.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Where in the record the bytes are; there is at least one.
    Data(Range<usize>),
    Nothing,
    /// The peer will send no more.
    End,
}

impl Session {
    pub(in crate::tls) fn new(
        secrets: &ExtractedSecrets,
        schedule: KeySchedule,
    ) -> Result<Self, RecordError> {
        let (sent, sending) = &secrets.tx;
        let (received, receiving) = &secrets.rx;
        Ok(Self {
            sending: Cipher::new(*sent, sending)?,
            receiving: Cipher::new(*received, receiving)?,
            incoming: Incoming::default(),
            limit: schedule.record_limit(),
            schedule,
            update_asked: false,
        })
    }

    /// Opens a whole record where it lies and does what it says.
    pub(super) fn open(&mut self, record: &mut [u8]) -> Result<Content, RecordError> {
        let Inner {
            content_type,
            content,
        } = self.receiving.open(record)?;
        match content_type {
            DATA => {
                self.incoming.data(content.len())?;
                Ok(match content.is_empty() {
                    true => Content::Nothing,
                    false => Content::Data(content),
                })
            }
            HANDSHAKE => {
                let Self {
                    incoming,
                    receiving,
                    schedule,
                    update_asked,
                    ..
                } = self;
                incoming.handshake(&record[content], |message| {
                    match message {
                        Message::Ticket(ticket) => schedule.ticket(ticket)?,
                        Message::KeyUpdate { answer } => {
                            let (number, secrets) = schedule.next_receiving()?;
                            *receiving = Cipher::new(number, &secrets)?;
                            *update_asked |= answer;
                        }
                    }
                    Ok(())
                })?;
                Ok(Content::Nothing)
            }
            ALERT => Ok(match self.incoming.alert(&record[content])? {
                Alert::End => Content::End,
                Alert::Ignored => Content::Nothing,
            }),
            other => Err(RecordError::ContentType(other)),
        }
    }

    /// Makes records of `length` bytes that lie in the slots, and says how long the records are
    /// together.
    pub(super) fn seal(&mut self, slots: &mut [u8], length: usize) -> Result<usize, RecordError> {
        let mut left = length;
        let mut sealed = 0;
        for slot in slots.chunks_mut(SLOT) {
            if left == 0 {
                break;
            }
            let content = left.min(MAX_CONTENT);
            sealed += self.sending.seal(slot, content, DATA)?;
            left -= content;
        }
        Ok(sealed)
    }

    /// Whether the key must be changed before all slots are sealed once more: because the peer
    /// wants it, or because it has been used enough.
    pub(super) fn is_update_due(&self) -> bool {
        self.update_asked || self.sending.used().saturating_add(SLOTS as u64) >= self.limit
    }

    /// Puts a KeyUpdate behind `records`; what is sealed afterwards is under the next key. The
    /// peer's own keys are its business: it is not asked to change them.
    pub(super) fn update_keys(&mut self, records: &mut Vec<u8>) -> Result<(), RecordError> {
        const UPDATE_NOT_REQUESTED: u8 = 0;
        let message = [KEY_UPDATE, 0, 0, 1, UPDATE_NOT_REQUESTED];
        self.append(records, &message, HANDSHAKE)?;
        self.update_asked = false;
        self.take_next_key()
    }

    /// From here on, what is sealed is under the next key.
    pub(in crate::tls) fn take_next_key(&mut self) -> Result<(), RecordError> {
        let (number, secrets) = self.schedule.next_sending()?;
        self.sending = Cipher::new(number, &secrets)?;
        Ok(())
    }

    /// Puts an alert behind `records`.
    pub(super) fn alert(
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

    /// Puts a record of `content` behind `records`.
    pub(in crate::tls) fn append(
        &mut self,
        records: &mut Vec<u8>,
        content: &[u8],
        content_type: u8,
    ) -> Result<(), RecordError> {
        let start = records.len();
        records.resize(start + content.len() + OVERHEAD, 0);
        let slot = &mut records[start..];
        slot[HEADER..HEADER + content.len()].copy_from_slice(content);
        self.sending.seal(slot, content.len(), content_type)?;
        Ok(())
    }

    /// Makes keys wear out sooner.
    #[cfg(test)]
    pub(super) fn limit_records(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Records under the present key of ours.
    #[cfg(test)]
    pub(super) fn sent(&self) -> u64 {
        self.sending.used()
    }
}
