//! The handshake of a connection whose records will be ours: rustls' unbuffered interface, from which its keys can be taken over.
//!
//! The library is given one record after the other, and none behind the last of the handshake: what follows is for [`super::record`], and a library that had looked
//! at it would have changed keys or numbers that we could not know of.

use std::io;

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

/// A client's first flight takes 1.6 KB and is replayed whole by detection; what a server answers with its chain takes two such reads.
const READ_SIZE: usize = 4096;

/// Makes the handshake over `io`, which must be plain, `check` what was agreed on, and go on with records of our own.
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
                handshake.received.reserve(READ_SIZE);
                if io.read_buf(&mut handshake.received).await? == 0 {
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
        }
    }

    /// Adds what the peer has sent.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
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
                Step::Record => {
                    if !self.give_record() {
                        return Ok(Progress::More);
                    }
                }
                Step::Failed(error) => {
                    // The alert for it; then the error again.
                    while let Step::Again = self.step() {}
                    return Err(error);
                }
            }
        }
    }

    fn step(&mut self) -> Step {
        let status = self.connection.process(&mut self.received[..self.given]);
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
        self.received.drain(..discard);
        self.given -= discard;
        step
    }

    /// Gives the library one more record. False when none has come whole.
    fn give_record(&mut self) -> bool {
        let Some(&[kind, major, _, high, low]) = self.received[self.given..].first_chunk() else {
            return false;
        };
        let length = 5 + usize::from(u16::from_be_bytes([high, low]));
        let waiting = self.received.len() - self.given;
        // What cannot be a record is the library's to refuse, without waiting for the end of it.
        let is_record = (20..=23).contains(&kind) && major == 3 && length <= MAX_PLAUSIBLE;
        if is_record && length > waiting {
            return false;
        }
        self.given += if is_record { length } else { waiting };
        true
    }

    /// Takes the keys over.
    pub(super) fn finish(self) -> Result<Established, io::Error> {
        if self.given > 0 {
            // The beginning of a message that is none of the handshake's: nobody sends any that long.
            return Err(invalid(Error::General(
                "the peer's first message after the TLS handshake began within it".into(),
            )));
        }
        let (secrets, schedule) = self.connection.into_secrets().map_err(invalid)?;
        Ok(Established {
            session: Session::new(&secrets, schedule)?,
            received: self.received,
        })
    }
}

/// RFC 8446 §5.2, and the header.
const MAX_PLAUSIBLE: usize = 5 + (1 << 14) + 256;

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
