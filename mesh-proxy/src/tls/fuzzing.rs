//! A way to handshakes and records, without sockets, for the package `mesh-fuzz` and for nothing
//! else.

use std::io;
use std::task::Poll;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

use super::handshake::{Connection, Handshake, Progress};
use super::record::{self, ReceivedBytes, Session};

/// What a handshake may hold of what its peer has sent.
pub const MAX_HELD: usize = super::handshake::MAX_HELD;

/// What a handshake may take in all.
pub const MAX_HANDSHAKE: usize = super::handshake::MAX_HANDSHAKE;

/// A handshake after which the records are ours.
pub struct Shaking {
    role: Role,
    /// What came behind the handshake and was not read by it.
    unread: Vec<u8>,
}

enum Role {
    Client(Handshake<UnbufferedClientConnection>),
    Server(Handshake<UnbufferedServerConnection>),
}

/// One end of a connection after its handshake.
pub struct Records {
    session: Session,
    received: ReceivedBytes,
}

/// What the records that came held.
#[derive(Debug)]
pub struct Opened {
    pub content: Vec<u8>,
    /// Whether the peer has ended its stream, or why the connection cannot go on.
    pub ended: Result<bool, String>,
}

impl Shaking {
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

    /// Takes what the peer has sent and goes as far as that allows; whether the handshake is over,
    /// and what is to be sent.
    pub fn advance(&mut self, received: &[u8]) -> Result<(bool, Vec<u8>), rustls::Error> {
        /// As [`super::handshake::shake`] does it with a socket. Returns what was not read as well.
        fn step<'a, C: Connection>(
            handshake: &mut Handshake<C>,
            mut received: &'a [u8],
        ) -> Result<(bool, Vec<u8>, &'a [u8]), rustls::Error> {
            loop {
                if handshake.advance()? == Progress::Done {
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

    /// The connection, with what came behind the handshake.
    pub fn finish(self) -> io::Result<Records> {
        let mut established = match self.role {
            Role::Client(handshake) => handshake.finish()?,
            Role::Server(handshake) => handshake.finish()?,
        };
        established.received.extend_from_slice(&self.unread);
        Ok(Records {
            session: established.session,
            received: ReceivedBytes::new(established.received),
        })
    }
}

impl Records {
    /// Receives `bytes` and opens what is whole of them and of what came before.
    pub fn open(&mut self, mut bytes: &[u8]) -> Opened {
        let mut content = Vec::new();
        let mut read = |room: &mut [u8]| {
            let (taken, behind) = bytes.split_at(bytes.len().min(room.len()));
            bytes = behind;
            room[..taken.len()].copy_from_slice(taken);
            match taken.len() {
                0 => Poll::Pending,
                n => Poll::Ready(Ok(n)),
            }
        };
        let ended = record::with_slots(|buffer| {
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
                if opened.ended != Ok(false) {
                    self.received.clear();
                    return opened.ended.map_err(|error| error.to_string());
                }
            }
        });
        Opened { content, ended }
    }

    /// Puts a record behind `records`, of any type and with any content: what a peer that holds the
    /// keys could send.
    pub fn seal(&mut self, records: &mut Vec<u8>, content: &[u8], content_type: u8) {
        if let Err(error) = self.session.append(records, content, content_type) {
            unreachable!("a fresh key seals: {error}");
        }
    }

    /// From here on, what is sealed is under the next key.
    pub fn change_key(&mut self) {
        if let Err(error) = self.session.take_next_key() {
            unreachable!("the next key can be derived: {error}");
        }
    }
}
