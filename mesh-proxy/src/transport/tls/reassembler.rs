//! Records without application data: reassembles handshake messages from their fragments and
//! interprets alerts.

use rustls::AlertDescription;

use super::error::RecordError;

/// The state between records.
#[derive(Debug, Default)]
pub(super) struct HandshakeReassembler {
    /// The start of an incomplete handshake message.
    message: Vec<u8>,
    /// Number of records since the last one with application data.
    without_data: u32,
}

/// A handshake message that may follow the handshake.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// The peer's next record is sealed with its next key.
    KeyUpdate {
        is_requested: bool,
    },
    Ticket(&'a [u8]),
}

/// A complete message, and the bytes that follow it.
struct RawMessage<'a> {
    kind: u8,
    body: &'a [u8],
    rest: &'a [u8],
}

/// How a session reacts to an alert.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AlertAction {
    Close,
    Ignore,
}

pub(super) const NEW_SESSION_TICKET: u8 = 4;
pub(super) const KEY_UPDATE: u8 = 24;

/// Type and length of a handshake message.
const MESSAGE_HEADER: usize = 4;

/// The longest message body, as in rustls. Only tickets are long, and they contain at most the
/// peer's certificates.
const MAX_MESSAGE: usize = 0xffff;

/// The most consecutive records without application data, which cost CPU time and carry nothing.
/// rustls, BoringSSL and OpenSSL limit key updates or empty records to the same number.
const MAX_WITHOUT_DATA: u32 = 32;

impl HandshakeReassembler {
    /// Checks a record of application data.
    pub(super) fn receive_data(&mut self, length: usize) -> Result<(), RecordError> {
        self.expect_message_boundary()?;
        if length == 0 {
            return self.count_without_data();
        }
        self.without_data = 0;
        Ok(())
    }

    /// Processes a record of handshake messages. Calls `apply` with each complete message.
    pub(super) fn receive_handshake(
        &mut self,
        fragment: &[u8],
        mut apply: impl FnMut(Message<'_>) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        if fragment.is_empty() {
            return Err(RecordError::EmptyFragment);
        }
        self.count_without_data()?;
        let mut joined = std::mem::take(&mut self.message);
        let mut rest = if joined.is_empty() {
            fragment
        } else {
            joined.extend_from_slice(fragment);
            &joined
        };
        while let Some(message) = split(rest)? {
            apply(parse(&message)?)?;
            rest = message.rest;
        }
        self.message = rest.to_vec();
        Ok(())
    }

    /// Processes a record of an alert.
    pub(super) fn receive_alert(&mut self, alert: &[u8]) -> Result<AlertAction, RecordError> {
        // TLS 1.3 ignores the level.
        let description = match *alert {
            [] => return Err(RecordError::EmptyFragment),
            [_level, description] => AlertDescription::from(description),
            _ => return Err(RecordError::Malformed("alert")),
        };
        match description {
            AlertDescription::CloseNotify => {
                self.expect_message_boundary()?;
                Ok(AlertAction::Close)
            }
            // A close_notify follows.
            AlertDescription::UserCanceled => {
                self.expect_message_boundary()?;
                self.count_without_data()?;
                Ok(AlertAction::Ignore)
            }
            other => Err(RecordError::AlertReceived(other)),
        }
    }

    fn expect_message_boundary(&self) -> Result<(), RecordError> {
        if self.message.is_empty() {
            Ok(())
        } else {
            Err(RecordError::Interleaved)
        }
    }

    fn count_without_data(&mut self) -> Result<(), RecordError> {
        self.without_data += 1;
        if self.without_data > MAX_WITHOUT_DATA {
            Err(RecordError::TooManyWithoutData(self.without_data))
        } else {
            Ok(())
        }
    }
}

/// Splits the first message off `bytes`. `None` when it is incomplete.
fn split(bytes: &[u8]) -> Result<Option<RawMessage<'_>>, RecordError> {
    let Some((&[kind, a, b, c], rest)) = bytes.split_first_chunk::<MESSAGE_HEADER>() else {
        return Ok(None);
    };
    // Rejected before its body is buffered.
    if !matches!(kind, NEW_SESSION_TICKET | KEY_UPDATE) {
        return Err(RecordError::UnexpectedMessage(kind));
    }
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    if length > MAX_MESSAGE {
        return Err(RecordError::Malformed("handshake message"));
    }
    Ok(rest
        .split_at_checked(length)
        .map(|(body, rest)| RawMessage { kind, body, rest }))
}

fn parse<'a>(message: &RawMessage<'a>) -> Result<Message<'a>, RecordError> {
    if message.kind == NEW_SESSION_TICKET {
        return Ok(Message::Ticket(message.body));
    }
    // The rest would have to be sealed with the next key, and a record has one key.
    if !message.rest.is_empty() {
        return Err(RecordError::KeyUpdateNotLast);
    }
    match *message.body {
        [0] => Ok(Message::KeyUpdate {
            is_requested: false,
        }),
        [1] => Ok(Message::KeyUpdate { is_requested: true }),
        [other] => Err(RecordError::InvalidKeyUpdate(other)),
        _ => Err(RecordError::Malformed("key update")),
    }
}
