//! [`Script`]: a client and a server as data. `script::parse` reads the text format that
//! docs/simulation.md documents, `script::print` writes it.

mod error;
mod line;
mod parse;
mod print;
mod steps;

pub use self::error::ScriptError;
pub(crate) use self::print::code_name;

/// The longest text of a script, in bytes.
pub const MAX_TEXT: usize = 1 << 20;
/// The most steps of a script, of all connections together.
pub const MAX_STEPS: usize = 10_000;
/// The most connections of a script's client, and the most that have steps of their own at its
/// server.
pub const MAX_CONNECTIONS: usize = 64;
/// The most bytes that the steps of a script send together, and that one wait may ask for.
pub const MAX_BYTES: u64 = 64 << 20;
/// The most lines of a field section.
pub const MAX_FIELDS: usize = 10_000;
/// The longest pause, in milliseconds: two hours.
pub const MAX_PAUSE: u64 = 7_200_000;

/// What a client and a server do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub protocol: Protocol,
    /// One list of steps for each connection that the client opens.
    pub clients: Vec<Vec<Step>>,
    pub server: Server,
}

/// Which peer of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Client,
    Server,
}

/// How the bytes of a script are read and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Bytes.
    Tcp,
    /// Messages of HTTP/1, and the bytes of a tunnel after an upgrade.
    Http1,
    /// Frames of HTTP/2, also with gRPC.
    Http2,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// Nothing listens on its port.
    Refuses,
    /// The steps for the first connection, the second and so on. The last list is also for all that
    /// follow.
    Accepts(Vec<Vec<Step>>),
    /// The steps for the first request of HTTP/1, the second and so on, on the connection where the
    /// request arrives. The last list is also for all that follow.
    Responds(Vec<Vec<Step>>),
}

/// Something that a client or a server does on one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sends bytes; with a size, in pieces of that many bytes that arrive separately.
    Send {
        bytes: Bytes,
        piece: Option<usize>,
    },
    /// Milliseconds.
    Pause(u64),
    /// Ends waits for the signal of this name, on all connections and at both peers.
    Signal(String),
    Wait(Wait),
    Read(Reading),
    /// Sends FIN.
    Finish,
    /// Closes with RST.
    Reset,
    /// Closes both directions.
    Close,
    Http2(Http2Step),
    Grpc(GrpcStep),
    WebSocket(WebSocketStep),
}

/// The event that a step waits for. It fails if the connection ends before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// This many bytes since the beginning of the connection.
    Bytes(u64),
    /// These bytes, after the ones that an earlier wait found.
    Text(Bytes),
    /// The end of the connection: FIN or RST.
    End,
    Signal(String),
    /// The next start line and header section, also of an interim response; with a stream, of that
    /// stream.
    Head(Option<Stream>),
    /// The end of the next message; with a stream, of the stream.
    Message(Option<Stream>),
    /// This many bytes of a stream's content.
    Data(Stream, u64),
    /// These bytes in the content of messages of HTTP/1, without framing, after the ones that an
    /// earlier wait of this kind found.
    Content(Bytes),
    /// This many bytes after an upgrade or CONNECT of HTTP/1.
    Tunnel(u64),
    GoAway,
    /// An acknowledgement of SETTINGS.
    SettingsAck,
    /// A PING's acknowledgement.
    PingAck,
}

/// How fast a peer reads. It reads everything at once until a step says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Stop,
    Go,
    /// At most `bytes` each `every` milliseconds.
    Slow {
        bytes: usize,
        every: u64,
    },
}

/// A stream of HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The stream of the n-th request on the connection, from 1: a proxy may give it another number
    /// on its connection to the server.
    Nth(u32),
    /// The stream of this number.
    Id(u32),
}

/// A frame, or a change of the peer's conduct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Http2Step {
    /// From here on the peer sends only the frames of its script: no SETTINGS and acknowledgements
    /// of its own, and no WINDOW_UPDATE for what it has read.
    Manual,
    Settings(Vec<(u16, u32)>),
    SettingsAck,
    Headers(FieldBlock),
    Continuation(FieldBlock),
    /// Waits for the peer's window. `padding` is the number of octets of padding.
    Data {
        stream: Stream,
        end: bool,
        padding: Option<u8>,
        bytes: Bytes,
    },
    ResetStream {
        stream: Stream,
        code: u32,
    },
    GoAway {
        last: Stream,
        code: u32,
    },
    Ping {
        ack: bool,
        opaque: u64,
    },
    /// Stream 0 is the connection.
    Window {
        stream: Stream,
        increment: u32,
    },
    /// Any frame. Its length is the length of the bytes.
    Raw {
        kind: u8,
        flags: u8,
        stream: Stream,
        bytes: Bytes,
    },
}

/// A field block or a part of one, of literals without compression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldBlock {
    pub stream: Stream,
    /// END_STREAM.
    pub end: bool,
    /// CONTINUATION follows: without END_HEADERS.
    pub more: bool,
    pub fields: Vec<Field>,
}

/// A field line: name and value.
pub type Field = (Vec<u8>, Vec<u8>);

pub(crate) fn field(name: &str, value: impl AsRef<[u8]>) -> Field {
    (name.as_bytes().to_vec(), value.as_ref().to_vec())
}

/// What gRPC sends in frames of HTTP/2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcStep {
    /// The header section of a call.
    Call { stream: Stream, path: String },
    /// The header section of a response.
    Reply { stream: Stream },
    /// A message with its prefix of five octets.
    Message {
        stream: Stream,
        end: bool,
        compressed: bool,
        bytes: Bytes,
    },
    /// Trailers that end the call.
    Status {
        stream: Stream,
        code: u32,
        message: Option<String>,
    },
}

/// A frame of RFC 6455, section 5.2. The client's is masked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketStep {
    pub opcode: u8,
    /// Another frame of the same message follows: without FIN.
    pub more: bool,
    pub bytes: Bytes,
}

/// Bytes as a concatenation of repeated parts, so that a script of a few bytes can send many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub text: Vec<u8>,
    pub times: u32,
}

impl Bytes {
    /// Bytes that are written as they are.
    pub fn literal(text: impl Into<Vec<u8>>) -> Self {
        Self::repeated(text, 1)
    }

    pub fn repeated(text: impl Into<Vec<u8>>, times: u32) -> Self {
        Self(vec![Part {
            text: text.into(),
            times,
        }])
    }

    pub fn len(&self) -> u64 {
        let lengths = self.0.iter();
        lengths
            .map(|part| (part.text.len() as u64).saturating_mul(u64::from(part.times)))
            .fold(0, u64::saturating_add)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let parts = self.0.iter();
        parts
            .flat_map(|part| part.text.repeat(part.times as usize))
            .collect()
    }
}

impl Step {
    /// The number of bytes that the step sends, without framing.
    pub fn sent(&self) -> u64 {
        match self {
            Self::Send { bytes, .. }
            | Self::Http2(Http2Step::Data { bytes, .. } | Http2Step::Raw { bytes, .. })
            | Self::Grpc(GrpcStep::Message { bytes, .. })
            | Self::WebSocket(WebSocketStep { bytes, .. }) => bytes.len(),
            _ => 0,
        }
    }
}

impl Server {
    /// The lists of steps.
    fn parts(&self) -> &[Vec<Step>] {
        match self {
            Self::Refuses => &[],
            Self::Accepts(parts) | Self::Responds(parts) => parts,
        }
    }

    /// The steps of the n-th connection or for the n-th request, from 0.
    pub fn steps(&self, n: usize) -> &[Step] {
        let parts = self.parts();
        parts.get(n).or(parts.last()).map_or(&[], Vec::as_slice)
    }
}

impl Script {
    /// Reads the text format.
    ///
    /// # Errors
    ///
    /// The text is not a script, or exceeds one of the bounds of this module. The error has the
    /// line, the column and the remedy.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        parse::parse(text)
    }

    /// All lists of steps, the client's first.
    pub fn parts(&self) -> impl Iterator<Item = &Vec<Step>> {
        self.clients.iter().chain(self.server.parts())
    }
}

#[cfg(test)]
mod tests;
