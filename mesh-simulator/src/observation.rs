//! [`Observed`]: what the client and the server of a run have seen.

use std::time::Duration;

use crate::message::Message;
use crate::script::Side;

/// All connections of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// One for each connection of the script's client.
    pub clients: Vec<Observation>,
    /// One for each connection that the server has accepted, in this order.
    pub servers: Vec<Observation>,
}

/// One connection, as one of its peers has seen it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Why `connect` failed.
    pub refused: Option<String>,
    /// Everything that was received.
    pub bytes: Vec<u8>,
    pub ending: Ending,
    /// The step that did not complete, from 1, and its text.
    pub stopped_at: Option<(usize, String)>,
    /// The messages of HTTP, in the order of their beginnings, or of a client's requests.
    pub messages: Vec<Message>,
    /// What follows the messages of HTTP/1 after an upgrade or CONNECT.
    pub tunnel: Option<Vec<u8>>,
    /// The last stream and the code of each GOAWAY.
    pub goaways: Vec<(u32, u32)>,
    /// Why the bytes, from some point on, are not messages.
    pub malformed: Option<String>,
    /// The end is not between two messages.
    pub is_within_message: bool,
}

/// A step that a peer has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BegunStep {
    /// Since the beginning of the run.
    pub at: Duration,
    pub peer: Side,
    /// The number of the peer's connection, and of the step in its list. Both from 1.
    pub connection: usize,
    pub step: usize,
    pub text: String,
}

/// How the peer's direction of a connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// It has not ended.
    #[default]
    Open,
    Fin,
    Reset,
    /// Another error of the socket.
    Failed,
    /// The observer has closed the connection before it saw an end.
    Own,
}

impl Ending {
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Fin => "FIN",
            Self::Reset => "RST",
            Self::Failed => "failed",
            Self::Own => "closed here",
        }
    }
}
