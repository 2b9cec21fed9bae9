//! A way to the record layer, without sockets, for the package `mesh-fuzz` and for nothing else.

use std::io;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

use super::handshake::{Handshake, Progress};
use super::record::{self, Session};

/// A handshake after which the records are ours.
pub struct Shaking(Role);

enum Role {
    Client(Handshake<UnbufferedClientConnection>),
    Server(Handshake<UnbufferedServerConnection>),
}

/// One end of a connection after its handshake.
pub struct Records(Session);

/// What the records that came held.
#[derive(Debug)]
pub struct Opened {
    pub content: Vec<u8>,
    /// What lies behind is the beginning of a record.
    pub consumed: usize,
    /// Whether the peer has ended its stream, or why the connection cannot go on.
    pub ended: Result<bool, String>,
}

impl Shaking {
    pub fn client(connection: UnbufferedClientConnection) -> Self {
        Self(Role::Client(Handshake::new(connection)))
    }

    pub fn server(connection: UnbufferedServerConnection) -> Self {
        Self(Role::Server(Handshake::new(connection)))
    }

    /// Takes what the peer has sent and goes as far as that allows; whether the handshake is over, and what is to be sent.
    pub fn advance(&mut self, received: &[u8]) -> Result<(bool, Vec<u8>), rustls::Error> {
        fn step<C: super::handshake::Connection>(
            handshake: &mut Handshake<C>,
            received: &[u8],
        ) -> Result<(bool, Vec<u8>), rustls::Error> {
            handshake.receive(received);
            let progress = handshake.advance()?;
            Ok((progress == Progress::Done, handshake.take_outgoing()))
        }
        match &mut self.0 {
            Role::Client(handshake) => step(handshake, received),
            Role::Server(handshake) => step(handshake, received),
        }
    }

    /// The connection, and what came behind the handshake.
    pub fn finish(self) -> io::Result<(Records, Vec<u8>)> {
        let established = match self.0 {
            Role::Client(handshake) => handshake.finish()?,
            Role::Server(handshake) => handshake.finish()?,
        };
        Ok((Records(established.session), established.received))
    }
}

impl Records {
    /// Opens the whole records that `bytes` begin with, at most as many as fit into the slots of a thread.
    pub fn open(&mut self, bytes: &mut [u8]) -> Opened {
        let opened = record::open(&mut self.0, bytes);
        Opened {
            content: opened
                .pieces
                .iter()
                .flat_map(|piece| bytes[piece].iter().copied())
                .collect(),
            consumed: opened.consumed,
            ended: opened.ended.map_err(|error| error.to_string()),
        }
    }

    /// Puts a record behind `records`, of any type and with any content: what a peer that holds the keys could send.
    pub fn seal(&mut self, records: &mut Vec<u8>, content: &[u8], content_type: u8) {
        if let Err(error) = self.0.append(records, content, content_type) {
            unreachable!("a fresh key seals: {error}");
        }
    }

    /// From here on, what is sealed is under the next key.
    pub fn change_key(&mut self) {
        if let Err(error) = self.0.take_next_key() {
            unreachable!("the next key can be derived: {error}");
        }
    }
}
