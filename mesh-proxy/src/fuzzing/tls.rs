//! Handshakes and records without sockets.

use std::io;
use std::task::Poll;

use futures_util::FutureExt as _;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

use crate::tls::handshake::{self, Handshake, Progress, UnbufferedConnection};
use crate::transport::tls::received::ReceivedBytes;
use crate::transport::tls::{Session, buffers};

/// Limit of the received bytes that a handshake buffers.
pub const MAX_BUFFERED: usize = handshake::MAX_BUFFERED;

/// Limit of the bytes that a peer sends during a handshake.
pub const MAX_HANDSHAKE: usize = handshake::MAX_HANDSHAKE;

/// A handshake. [`crate::transport::tls`] seals and opens the records after it.
pub struct HandshakeDriver {
    role: Role,
    /// Bytes that followed the handshake.
    unread: Vec<u8>,
}

enum Role {
    Client(Handshake<UnbufferedClientConnection>),
    Server(Handshake<UnbufferedServerConnection>),
}

/// One peer's state of a connection after its handshake.
pub struct RecordConnection {
    session: Session,
    received: ReceivedBytes,
}

/// The outcome of opening received records.
#[derive(Debug)]
pub struct Opened {
    pub content: Vec<u8>,
    /// Whether the peer has sent close_notify, or why the connection has failed.
    pub closed: Result<bool, String>,
}

impl HandshakeDriver {
    pub fn client(connection: UnbufferedClientConnection) -> Self {
        Self {
            role: Role::Client(Handshake::new(connection)),
            unread: Vec::new(),
        }
    }

    pub fn server(connection: UnbufferedServerConnection) -> Self {
        Self {
            role: Role::Server(Handshake::new(connection)),
            unread: Vec::new(),
        }
    }

    /// Processes bytes from the peer. Returns whether the handshake is complete and the bytes to
    /// send.
    pub fn advance(&mut self, mut received: &[u8]) -> io::Result<(bool, Vec<u8>)> {
        let advanced = match &mut self.role {
            Role::Client(handshake) => advance(handshake, &mut received),
            Role::Server(handshake) => advance(handshake, &mut received),
        };
        self.unread.extend_from_slice(received);
        advanced
    }

    /// Returns the established connection, with the bytes that followed the handshake.
    pub fn finish(self) -> io::Result<RecordConnection> {
        let mut established = match self.role {
            Role::Client(handshake) => handshake.finish()?,
            Role::Server(handshake) => handshake.finish()?,
        };
        established.received.extend_from_slice(&self.unread);
        Ok(RecordConnection {
            session: established.session,
            received: ReceivedBytes::new(established.received),
        })
    }
}

impl RecordConnection {
    /// Receives `bytes` and opens all complete records.
    pub fn open(&mut self, mut bytes: &[u8]) -> Opened {
        let mut content = Vec::new();
        let mut read = |buffer: &mut [u8]| {
            let (taken, rest) = bytes.split_at(bytes.len().min(buffer.len()));
            bytes = rest;
            buffer[..taken.len()].copy_from_slice(taken);
            match taken.len() {
                0 => Poll::Pending,
                n => Poll::Ready(Ok(n)),
            }
        };
        let closed = buffers::with(|buffer| {
            loop {
                let opened = self
                    .received
                    .poll_open(&mut self.session, buffer, &mut read);
                let Poll::Ready(Ok(opened)) = opened else {
                    return Ok(false);
                };
                for piece in opened.pieces.iter() {
                    content.extend_from_slice(&buffer[piece]);
                }
                if opened.closed != Ok(false) {
                    self.received.clear();
                    return opened.closed.map_err(|error| error.to_string());
                }
            }
        });
        Opened { content, closed }
    }

    /// Appends a record of any type and content, as a peer with the keys could send it.
    pub fn seal(&mut self, records: &mut Vec<u8>, content: &[u8], content_type: u8) {
        if let Err(error) = self.session.append(records, content, content_type) {
            unreachable!("a fresh key seals: {error}");
        }
    }

    /// Derives the next sending key; later records are sealed with it.
    pub fn advance_send_key(&mut self) {
        if let Err(error) = self.session.advance_send_key() {
            unreachable!("the next key can be derived: {error}");
        }
    }
}

/// Like [`handshake::perform`] without a socket. Leaves the unread bytes in `received`.
fn advance(
    handshake: &mut Handshake<impl UnbufferedConnection>,
    received: &mut &[u8],
) -> io::Result<(bool, Vec<u8>)> {
    loop {
        let is_complete = handshake.advance().map_err(io::Error::other)? == Progress::Complete;
        if is_complete || read_now(handshake.receive_from(received))? == 0 {
            return Ok((is_complete, handshake.take_outgoing()));
        }
    }
}

fn read_now<T>(reading: impl Future<Output = T>) -> T {
    let Some(read) = reading.now_or_never() else {
        unreachable!("bytes in memory can be read")
    };
    read
}
