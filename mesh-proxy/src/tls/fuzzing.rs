//! Access to handshakes and records without sockets. Only for the package `mesh-fuzz`.

use std::io;
use std::task::Poll;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

use super::handshake::{Handshake, Progress, UnbufferedConnection};
use super::record::{self, ReceivedBytes, Session};

/// Limit of the received bytes that a handshake buffers.
pub const MAX_BUFFERED: usize = super::handshake::MAX_BUFFERED;

/// Limit of the bytes that a peer sends during a handshake.
pub const MAX_HANDSHAKE: usize = super::handshake::MAX_HANDSHAKE;

/// A handshake after which [`record`] seals and opens the records.
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
    pub fn advance(&mut self, received: &[u8]) -> Result<(bool, Vec<u8>), rustls::Error> {
        /// Like [`super::handshake::perform`] without a socket. Returns the unread bytes as well.
        fn step<'a, C: UnbufferedConnection>(
            handshake: &mut Handshake<C>,
            mut received: &'a [u8],
        ) -> Result<(bool, Vec<u8>, &'a [u8]), rustls::Error> {
            loop {
                if handshake.advance()? == Progress::Complete {
                    return Ok((true, handshake.take_outgoing(), received));
                }
                handshake.capacity()?;
                if received.is_empty() {
                    return Ok((false, handshake.take_outgoing(), received));
                }
                let taken = handshake.receive(received)?;
                received = &received[taken..];
            }
        }
        let (is_done, outgoing, unread) = match &mut self.role {
            Role::Client(handshake) => step(handshake, received)?,
            Role::Server(handshake) => step(handshake, received)?,
        };
        self.unread.extend_from_slice(unread);
        Ok((is_done, outgoing))
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
        let closed = record::with_record_buffers(|buffer| {
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
