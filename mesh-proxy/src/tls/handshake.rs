//! The handshake of a connection whose records [`crate::transport::tls`] handles: rustls'
//! unbuffered interface, which reveals the traffic secrets.
//!
//! rustls receives one record at a time and none that follows the handshake: processing those would
//! change keys and sequence numbers without [`crate::transport::tls`] noticing.
//!
//! # Limits
//!
//! With the unbuffered interface, the caller limits how much of a handshake is buffered. A peer is
//! not authenticated before its Finished, so all its bytes count, including record headers, padding
//! and tags, in either role:
//!
//! * [`MAX_BUFFERED`]: the bytes buffered at a time, which are an incomplete message and the record
//!   being received. A handshake message between proxies takes a few kilobytes (a ClientHello with
//!   a post-quantum key share 1.7 KiB, a chain of two certificates 1.5 KiB, one with ML-DSA-87 keys
//!   25 KiB), in one or two records.
//! * [`MAX_HANDSHAKE`]: the bytes of the whole handshake.
//! * [`READ_SIZE`]: the bytes of one read, and therefore those that can follow the handshake.
//!
//! A peer that exceeds a limit is disconnected.

use std::io;

use mesh_runtime::bounded_buffer::{BoundedBuffer, Fill};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{CommonState, Error, ExtractedSecrets, HandshakeKind};
use tokio::io::{AsyncRead, AsyncWriteExt as _};

use crate::transport::Io;
use crate::transport::tls::{KeySchedule, RecordStream, Session};

/// A rustls connection of either role.
pub(crate) trait UnbufferedConnection {
    type Data;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn state(&self) -> &CommonState;

    /// Returns the current traffic secrets and the key schedule that derives the next ones.
    fn into_secrets(self) -> Result<(ExtractedSecrets, KeySchedule), Error>;
}

/// A handshake in progress.
pub(crate) struct Handshake<C> {
    connection: C,
    received: BoundedBuffer,
    /// How many bytes of `received`, in complete records, rustls may process.
    released: usize,
    /// Bytes to send after each step, even a failed one.
    outgoing: Vec<u8>,
    /// How many bytes have been received in total.
    total: usize,
}

/// Whether a handshake needs more input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    NeedsInput,
    Complete,
}

/// The result of a handshake.
pub(crate) struct Established {
    pub(crate) session: Session,
    /// Bytes that followed the handshake.
    pub(crate) received: Vec<u8>,
}

/// What rustls needs after a step.
enum Step {
    Continue,
    NeedsRecord,
    Failed(Error),
}

/// A client's first flight of 1.6 KB arrives as the replay of protocol detection; a server's flight
/// with its certificate chain takes two such reads.
const READ_SIZE: usize = 4096;

/// The limit of rustls' buffered interface, which Linkerd's proxies use: every handshake that they
/// accept is accepted here.
pub(crate) const MAX_BUFFERED: usize = 0xffff;

/// A peer may send two long messages: two ClientHellos or a CertificateRequest, and a Certificate.
/// The others are short.
pub(crate) const MAX_HANDSHAKE: usize = 2 * MAX_BUFFERED;

/// Performs the handshake over `io`, which must be plain, and calls `check` with the negotiated
/// parameters.
pub(super) async fn perform<C: UnbufferedConnection, T, E: From<io::Error>>(
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
            // A failure to send the alert must not hide the error that caused it.
            if progress.is_ok() {
                sent?;
            }
        }
        match progress.map_err(invalid)? {
            Progress::Complete => break,
            Progress::NeedsInput => {
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

impl<C: UnbufferedConnection> Handshake<C> {
    pub(crate) fn new(connection: C) -> Self {
        Self {
            connection,
            received: BoundedBuffer::new(MAX_BUFFERED),
            released: 0,
            outgoing: Vec::new(),
            total: 0,
        }
    }

    /// Reads at most [`READ_SIZE`] bytes from `peer`, within the limits. Returns 0 at the end of
    /// the stream.
    ///
    /// # Errors
    ///
    /// Fails when the peer has reached a limit and the handshake needs more.
    pub(crate) async fn receive_from(
        &mut self,
        peer: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<usize> {
        let too_long = |what, limit| {
            invalid(Error::General(format!(
                "peer's TLS handshake {what} exceeds {limit} bytes, including record headers and padding"
            )))
        };
        let left = MAX_HANDSHAKE.saturating_sub(self.total);
        if left == 0 {
            return Err(too_long("total", MAX_HANDSHAKE));
        }
        match self.received.fill_from(peer, left.min(READ_SIZE)).await? {
            Fill::Read(read) => {
                self.total += read;
                Ok(read)
            }
            Fill::End => Ok(0),
            Fill::Full => Err(too_long("message", MAX_BUFFERED)),
        }
    }

    /// Takes the bytes that the caller has to send.
    pub(crate) fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Advances as far as the received bytes allow.
    pub(crate) fn advance(&mut self) -> Result<Progress, Error> {
        loop {
            match self.step() {
                Step::Continue => {}
                Step::NeedsRecord if !self.connection.state().is_handshaking() => {
                    return Ok(Progress::Complete);
                }
                Step::NeedsRecord => match self.release_record() {
                    Ok(true) => {}
                    Ok(false) => return Ok(Progress::NeedsInput),
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
        let (released, _) = self.received.split_at_mut(self.released);
        let status = self.connection.process(released);
        let discard = status.discard;
        let step = match status.state {
            Ok(ConnectionState::EncodeTlsData(data)) => encode(data, &mut self.outgoing),
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                sent.done();
                Step::Continue
            }
            Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                Step::NeedsRecord
            }
            // Early data is not accepted, and later data is never released.
            Ok(_) => Step::Failed(Error::General(
                "peer closed the connection during the TLS handshake".into(),
            )),
            Err(error) => Step::Failed(error),
        };
        match self.released.checked_sub(discard) {
            Some(released) => {
                self.received.consume(discard);
                self.released = released;
                step
            }
            None => Step::Failed(Error::General(
                "rustls discarded more bytes of a TLS handshake than it received".into(),
            )),
        }
    }

    /// Encodes the alert of a failed step. Stops there: another step would process the record after
    /// the rejected one.
    fn encode_alert(&mut self) {
        while self.connection.state().wants_write() && matches!(self.step(), Step::Continue) {}
    }

    /// Releases the next record to rustls. Returns false when it is incomplete.
    fn release_record(&mut self) -> Result<bool, Error> {
        let (_, rest) = self.received.split_at(self.released);
        let Some(&[content_type, major, minor, high, low]) = rest.first_chunk() else {
            return Ok(false);
        };
        let length = HEADER_LEN + usize::from(u16::from_be_bytes([high, low]));
        if !is_record(content_type, [major, minor], length) {
            // rustls rejects it by its header and encodes an alert.
            self.released = self.received.len();
            return match self.step() {
                Step::Failed(error) => {
                    self.encode_alert();
                    Err(error)
                }
                Step::Continue | Step::NeedsRecord => Err(Error::General(
                    "peer sent bytes that are not a TLS record".into(),
                )),
            };
        }
        if length > rest.len() {
            return Ok(false);
        }
        self.released += length;
        Ok(true)
    }

    /// Extracts the keys of the completed handshake.
    pub(crate) fn finish(self) -> Result<Established, io::Error> {
        if self.released > 0 {
            return Err(invalid(Error::General(
                "peer's last TLS handshake record contains the start of another message".into(),
            )));
        }
        let (secrets, schedule) = self.connection.into_secrets().map_err(invalid)?;
        Ok(Established {
            session: Session::new(&secrets, schedule)?,
            // Copied, because the buffer has the memory of the longest message.
            received: self.received.to_vec(),
        })
    }
}

/// A record header: content type, version and length.
const HEADER_LEN: usize = 5;

/// The longest record that rustls does not reject by its header (`MAX_PAYLOAD`), which is longer
/// than RFC 8446 section 5.2 allows.
const MAX_RECORD: usize = HEADER_LEN + (1 << 14) + 2048 - 1;

/// Whether rustls waits for the end of a record with this header. It accepts the version numbers of
/// SSL 2 and of DTLS, although it does not implement them.
fn is_record(content_type: u8, version: [u8; 2], length: usize) -> bool {
    let is_version = matches!(version, [3, _] | [0, 2] | [0xfe, 0xfc | 0xfd | 0xff]);
    (20..=24).contains(&content_type) && is_version && length <= MAX_RECORD
}

fn encode<D>(mut data: EncodeTlsData<'_, D>, outgoing: &mut Vec<u8>) -> Step {
    let start = outgoing.len();
    let length = match data.encode(&mut []) {
        // There was nothing to encode.
        Ok(_) => return Step::Continue,
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            required_size
        }
        Err(error) => return Step::Failed(Error::General(error.to_string())),
    };
    outgoing.resize(start + length, 0);
    match data.encode(&mut outgoing[start..]) {
        Ok(_) => Step::Continue,
        Err(error) => Step::Failed(Error::General(error.to_string())),
    }
}

fn invalid(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl UnbufferedConnection for UnbufferedClientConnection {
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

impl UnbufferedConnection for UnbufferedServerConnection {
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
pub(crate) mod tests;
