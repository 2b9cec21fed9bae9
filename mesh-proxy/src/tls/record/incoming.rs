//! What the records of a peer that are no data mean: handshake messages put together from their
//! fragments, and alerts.

use rustls::AlertDescription;

use super::error::RecordError;

/// Between records.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// The beginning of a handshake message of which more is to come.
    message: Vec<u8>,
    /// Records without data since the last with.
    quiet: u32,
}

/// Something that must be done because a handshake message says so.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// The peer's next record is under its next key.
    KeyUpdate {
        answer: bool,
    },
    Ticket(&'a [u8]),
}

/// A whole message, and what follows it in its record.
struct Raw<'a> {
    kind: u8,
    body: &'a [u8],
    behind: &'a [u8],
}

/// What an alert is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Alert {
    End,
    Ignored,
}

pub(super) const NEW_SESSION_TICKET: u8 = 4;
pub(super) const KEY_UPDATE: u8 = 24;

/// Type and length of a handshake message.
const MESSAGE_HEADER: usize = 4;

/// What a message may hold. Tickets are the only long ones, and contain at most the peer's
/// certificates; the library has the same limit.
const MAX_MESSAGE: usize = 0xffff;

/// The library, BoringSSL and OpenSSL give up after as many key updates or empty records: they cost
/// us work and carry nothing.
const MAX_QUIET: u32 = 32;

impl Incoming {
    /// A record of data has come.
    pub(super) fn data(&mut self, length: usize) -> Result<(), RecordError> {
        self.complete()?;
        if length == 0 {
            return self.quiet();
        }
        self.quiet = 0;
        Ok(())
    }

    /// A record of handshake messages has come; `act` is told each.
    pub(super) fn handshake(
        &mut self,
        fragment: &[u8],
        mut act: impl FnMut(Message<'_>) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        if fragment.is_empty() {
            return Err(RecordError::EmptyFragment);
        }
        self.quiet()?;
        let mut joined = std::mem::take(&mut self.message);
        let mut rest = if joined.is_empty() {
            fragment
        } else {
            joined.extend_from_slice(fragment);
            &joined
        };
        while let Some(message) = split(rest)? {
            act(interpret(&message)?)?;
            rest = message.behind;
        }
        self.message = rest.to_vec();
        Ok(())
    }

    /// A record of an alert has come.
    pub(super) fn alert(&mut self, alert: &[u8]) -> Result<Alert, RecordError> {
        // The level says nothing any more in TLS 1.3.
        let description = match *alert {
            [] => return Err(RecordError::EmptyFragment),
            [_level, description] => AlertDescription::from(description),
            _ => return Err(RecordError::Malformed("alert")),
        };
        match description {
            AlertDescription::CloseNotify => {
                self.complete()?;
                Ok(Alert::End)
            }
            // Precedes a close_notify.
            AlertDescription::UserCanceled => {
                self.complete()?;
                self.quiet()?;
                Ok(Alert::Ignored)
            }
            other => Err(RecordError::Alerted(other)),
        }
    }

    fn complete(&self) -> Result<(), RecordError> {
        match self.message.is_empty() {
            true => Ok(()),
            false => Err(RecordError::Interleaved),
        }
    }

    fn quiet(&mut self) -> Result<(), RecordError> {
        self.quiet += 1;
        match self.quiet > MAX_QUIET {
            true => Err(RecordError::Quiet(self.quiet)),
            false => Ok(()),
        }
    }
}

/// The first message of `bytes`. `None` when it is not whole.
fn split(bytes: &[u8]) -> Result<Option<Raw<'_>>, RecordError> {
    let Some((&[kind, a, b, c], rest)) = bytes.split_first_chunk::<MESSAGE_HEADER>() else {
        return Ok(None);
    };
    // Refused before it is collected.
    if !matches!(kind, NEW_SESSION_TICKET | KEY_UPDATE) {
        return Err(RecordError::Message(kind));
    }
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    if length > MAX_MESSAGE {
        return Err(RecordError::Malformed("handshake message"));
    }
    Ok(rest
        .split_at_checked(length)
        .map(|(body, behind)| Raw { kind, body, behind }))
}

fn interpret<'a>(message: &Raw<'a>) -> Result<Message<'a>, RecordError> {
    if message.kind == NEW_SESSION_TICKET {
        return Ok(Message::Ticket(message.body));
    }
    // What follows would be under another key, and a record has one.
    if !message.behind.is_empty() {
        return Err(RecordError::Unaligned);
    }
    match *message.body {
        [0] => Ok(Message::KeyUpdate { answer: false }),
        [1] => Ok(Message::KeyUpdate { answer: true }),
        [other] => Err(RecordError::UpdateRequest(other)),
        _ => Err(RecordError::Malformed("key update")),
    }
}
