//! The handshake of a connection whose records will be ours: rustls' unbuffered interface, from
//! which its keys can be taken over.
//!
//! The library is given one record after the other, and none behind the last of the handshake: what
//! follows is for [`super::record`], and a library that had looked at it would have changed keys or
//! numbers that we could not know of.
//!
//! # Limits
//!
//! The unbuffered interface leaves it to its caller how much of a handshake is held. A peer is not
//! authenticated before its Finished, so everything that it sends counts, with record headers,
//! padding and tags, in either role:
//!
//! * [`MAX_HELD`]: what waits at a time, which is a message that is not whole yet and the record
//!   that is being received. A handshake message between proxies takes a few kilobytes (a hello
//!   with a post-quantum key share 1.7 KiB, a chain of two certificates 1.5 KiB, one with ML-DSA-87
//!   keys 25 KiB), in one record or two.
//! * [`MAX_HANDSHAKE`]: the whole handshake.
//! * [`READ_SIZE`]: what one read takes, and so what can have come behind the handshake.
//!
//! A peer that goes over one of them is disconnected.

use std::io;

use bytes::BufMut as _;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{CommonState, Error, ExtractedSecrets, HandshakeKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::record::{KeySchedule, RecordStream, Session};
use crate::transport::Io;

/// The library's connection of either role.
pub(super) trait Connection {
    type Data;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn state(&self) -> &CommonState;

    /// Keys, and what is needed for the next ones.
    fn into_secrets(self) -> Result<(ExtractedSecrets, KeySchedule), Error>;
}

/// A handshake that is being made.
pub(super) struct Handshake<C> {
    connection: C,
    received: Vec<u8>,
    /// So much of it, whole records, is the library's to look at.
    given: usize,
    /// To be sent after each step, even when it has failed.
    outgoing: Vec<u8>,
    /// How much has been received in all.
    total: usize,
}

/// What a handshake needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    Done,
}

/// A handshake's result.
pub(super) struct Established {
    pub(super) session: Session,
    /// What was received behind it.
    pub(super) received: Vec<u8>,
}

/// What the library wants at once.
enum Step {
    Again,
    Record,
    Failed(Error),
}

/// A client's first flight takes 1.6 KB and is replayed whole by detection; what a server answers
/// with its chain takes two such reads.
const READ_SIZE: usize = 4096;

/// As much as rustls' buffered interface holds of a handshake, which is what Linkerd's proxies use:
/// a peer that they understand is understood here.
pub(super) const MAX_HELD: usize = 0xffff;

/// Twice that: a peer may send two hellos or a CertificateRequest, and a Certificate. The other
/// messages are short.
pub(super) const MAX_HANDSHAKE: usize = 2 * MAX_HELD;

/// Makes the handshake over `io`, which must be plain, `check` what was agreed on, and go on with
/// records of our own.
pub(super) async fn shake<C: Connection, T, E: From<io::Error>>(
    mut io: Io,
    connection: C,
    check: impl FnOnce(&CommonState) -> Result<T, E>,
) -> Result<(RecordStream, T), E> {
    let mut handshake = Handshake::new(connection);
    loop {
        let progress = handshake.advance();
        let outgoing = handshake.take_outgoing();
        if !outgoing.is_empty() {
            let sent = io.write_all(&outgoing).await;
            // An alert that cannot be sent does not hide its reason.
            if progress.is_ok() {
                sent?;
            }
        }
        match progress.map_err(invalid)? {
            Progress::Done => break,
            Progress::More => {
                if handshake.receive_from(&mut io).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
            }
        }
    }
    let agreed = check(handshake.connection.state())?;
    let is_resumed = handshake.connection.state().handshake_kind() == Some(HandshakeKind::Resumed);
    let Established {
        session,
        mut received,
    } = handshake.finish()?;
    let (tcp, unread) = io.into_plain()?;
    received.extend_from_slice(&unread);
    let stream = RecordStream::new(tcp, session, received, is_resumed);
    Ok((stream, agreed))
}

impl<C: Connection> Handshake<C> {
    pub(super) fn new(connection: C) -> Self {
        Self {
            connection,
            received: Vec::new(),
            given: 0,
            outgoing: Vec::new(),
            total: 0,
        }
    }

    /// How much may be received next. An error when the peer has sent as much as it may, and the
    /// handshake needs more.
    pub(super) fn capacity(&self) -> Result<usize, Error> {
        let held = MAX_HELD.saturating_sub(self.received.len());
        let left = MAX_HANDSHAKE.saturating_sub(self.total);
        let too_long = |what, limit| {
            let records = "with the headers and the padding of its records";
            Err(Error::General(format!(
                "the peer's TLS handshake {what} more than {limit} bytes {records}"
            )))
        };
        match (held, left) {
            (0, _) => too_long("has a message of", MAX_HELD),
            (_, 0) => too_long("takes", MAX_HANDSHAKE),
            _ => Ok(held.min(left).min(READ_SIZE)),
        }
    }

    /// Adds what the peer has sent, at most [`Handshake::capacity`] of it. Returns how much that
    /// was.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let taken = bytes.len().min(self.capacity()?);
        let (taken, _) = bytes.split_at(taken);
        self.received.reserve_exact(taken.len());
        self.received.extend_from_slice(taken);
        self.total += taken.len();
        Ok(taken.len())
    }

    /// The same with what `io` has. Returns 0 at its end.
    async fn receive_from(&mut self, io: &mut Io) -> io::Result<usize> {
        let capacity = self.capacity().map_err(invalid)?;
        if self.received.len() == self.received.capacity() {
            // By so much and no more: doubling would hold twice what the limit says.
            self.received.reserve_exact(capacity);
        }
        let read = io
            .read_buf(&mut (&mut self.received).limit(capacity))
            .await?;
        self.total += read;
        Ok(read)
    }

    /// What is to be sent, of which the caller takes care.
    pub(super) fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Goes as far as what was received allows.
    pub(super) fn advance(&mut self) -> Result<Progress, Error> {
        loop {
            match self.step() {
                Step::Again => {}
                Step::Record if !self.connection.state().is_handshaking() => {
                    return Ok(Progress::Done);
                }
                Step::Record => match self.give_record() {
                    Ok(true) => {}
                    Ok(false) => return Ok(Progress::More),
                    Err(error) => return Err(error),
                },
                Step::Failed(error) => {
                    self.encode_alert();
                    return Err(error);
                }
            }
        }
    }

    fn step(&mut self) -> Step {
        let (given, _) = self.received.split_at_mut(self.given);
        let status = self.connection.process(given);
        let discard = status.discard;
        let step = match status.state {
            Ok(ConnectionState::EncodeTlsData(data)) => encode(data, &mut self.outgoing),
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                sent.done();
                Step::Again
            }
            Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                Step::Record
            }
            // Early data is not accepted, and later data not given.
            Ok(_) => Step::Failed(Error::General(
                "the peer closed the connection during the TLS handshake".into(),
            )),
            Err(error) => Step::Failed(error),
        };
        match self.given.checked_sub(discard) {
            Some(given) => {
                self.received.drain(..discard);
                self.given = given;
                step
            }
            None => Step::Failed(Error::General(
                "rustls discarded more of a TLS handshake than it had been given".into(),
            )),
        }
    }

    /// Takes what the library has to say about its failure. It is not asked any further: it would
    /// look at what is behind the record that it has refused.
    fn encode_alert(&mut self) {
        while self.connection.state().wants_write() && matches!(self.step(), Step::Again) {}
    }

    /// Gives the library one more record. False when none has come whole.
    fn give_record(&mut self) -> Result<bool, Error> {
        let (_, waiting) = self.received.split_at(self.given);
        let Some(&[kind, major, minor, high, low]) = waiting.first_chunk() else {
            return Ok(false);
        };
        let length = HEADER + usize::from(u16::from_be_bytes([high, low]));
        if !is_record(kind, [major, minor], length) {
            // The library refuses it without waiting for its end, and says so to the peer.
            self.given = self.received.len();
            return match self.step() {
                Step::Failed(error) => {
                    self.encode_alert();
                    Err(error)
                }
                Step::Again | Step::Record => Err(Error::General(
                    "the peer sent bytes that are not a TLS record".into(),
                )),
            };
        }
        if length > waiting.len() {
            return Ok(false);
        }
        self.given += length;
        Ok(true)
    }

    /// Takes the keys over.
    pub(super) fn finish(self) -> Result<Established, io::Error> {
        if self.given > 0 {
            // The beginning of a message that does not belong to the handshake.
            return Err(invalid(Error::General(
                "the peer's first message after the TLS handshake began in the handshake's last record".into(),
            )));
        }
        let (secrets, schedule) = self.connection.into_secrets().map_err(invalid)?;
        // It was as long as the longest message.
        let mut received = self.received;
        received.shrink_to_fit();
        Ok(Established {
            session: Session::new(&secrets, schedule)?,
            received,
        })
    }
}

/// Type, version, length.
const HEADER: usize = 5;

/// From here on rustls refuses a record by its header (`MAX_PAYLOAD`). Shorter ones are given to it
/// whole, also those that are longer than RFC 8446 §5.2 allows.
const MAX_RECORD: usize = HEADER + (1 << 14) + 2048 - 1;

/// Whether rustls waits for the end of a record with this header. It knows the versions of SSL 2
/// and of DTLS by name, although it does not speak them.
fn is_record(kind: u8, version: [u8; 2], length: usize) -> bool {
    let is_version = matches!(version, [3, _] | [0, 2] | [0xfe, 0xfc | 0xfd | 0xff]);
    (20..=24).contains(&kind) && is_version && length <= MAX_RECORD
}

fn encode<D>(mut data: EncodeTlsData<'_, D>, outgoing: &mut Vec<u8>) -> Step {
    let start = outgoing.len();
    let length = match data.encode(&mut []) {
        // It was empty.
        Ok(_) => return Step::Again,
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            required_size
        }
        Err(error) => return Step::Failed(Error::General(error.to_string())),
    };
    outgoing.resize(start + length, 0);
    match data.encode(&mut outgoing[start..]) {
        Ok(_) => Step::Again,
        Err(error) => Step::Failed(Error::General(error.to_string())),
    }
}

fn invalid(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Connection for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn state(&self) -> &CommonState {
        self
    }

    fn into_secrets(self) -> Result<(ExtractedSecrets, KeySchedule), Error> {
        let (secrets, schedule) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, KeySchedule::Client(schedule)))
    }
}

impl Connection for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn state(&self) -> &CommonState {
        self
    }

    fn into_secrets(self) -> Result<(ExtractedSecrets, KeySchedule), Error> {
        let (secrets, schedule) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, KeySchedule::Server(schedule)))
    }
}

#[cfg(test)]
mod tests;
