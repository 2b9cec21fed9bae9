//! [`Reader`]: the messages of HTTP/1 (RFC 9112) in one direction of a connection. Reads requests
//! strictly, and responses as clients do, with a note where a strict reader refuses them. Shares no
//! code with the proxy, whose work it judges.

mod head;

use crate::message::{End, Message, value};

/// Reads what a peer has received.
#[derive(Debug)]
pub(crate) struct Reader {
    role: Role,
    buffer: Vec<u8>,
    /// The bytes of the buffer that are read already.
    at: usize,
    state: State,
    messages: Vec<Message>,
    /// The requests of the responses.
    requests: Vec<Request>,
    /// The number of final responses.
    finals: usize,
    /// What follows a response that switches protocols, or the request that it responds to.
    tunnel: Option<Vec<u8>>,
    malformed: Option<&'static str>,
}

/// The properties of a request that its response depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Request {
    method: Vec<u8>,
    offers_upgrade: bool,
}

impl Request {
    fn new(request: &Message) -> Self {
        let method = value(&request.fields, ":method").unwrap_or_default();
        Self {
            method: method.to_vec(),
            offers_upgrade: value(&request.fields, "upgrade").is_some(),
        }
    }
}

/// The direction that a reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Requests,
    Responses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// Bytes of the body that are missing.
    Sized(u64),
    ChunkSize,
    /// Bytes of the chunk that are missing, without its line end.
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// A response that ends with the connection.
    UntilEnd,
    /// After a request whose response may switch protocols.
    Undecided,
    Tunnel,
}

/// How a body is delimited (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    None,
    Sized(u64),
    Chunked,
    UntilEnd,
    /// None, and the response decides what follows.
    Undecided,
    Tunnel,
}

impl Reader {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            buffer: Vec::new(),
            at: 0,
            state: State::Head,
            messages: Vec::new(),
            requests: Vec::new(),
            finals: 0,
            tunnel: None,
            malformed: None,
        }
    }

    /// Relates the requests and the responses of one connection, after bytes of either: the method
    /// of a request decides whether its response has content, and a response whether its request
    /// has opened a tunnel.
    pub(crate) fn relate(requests: &mut Self, responses: &mut Self) {
        loop {
            let known = responses.requests.len();
            let new = requests.messages.iter().skip(known);
            responses.requests.extend(new.map(Request::new));
            let is_decided = responses.finals >= requests.messages.len();
            if requests.state != State::Undecided || !(is_decided || responses.malformed.is_some())
            {
                return;
            }
            requests.state = State::Head;
            if responses.tunnel.is_some() {
                requests.state = State::Tunnel;
                requests.tunnel = Some(Vec::new());
            }
            requests.feed(&[]);
        }
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(crate) fn messages_mut(&mut self) -> &mut [Message] {
        &mut self.messages
    }

    pub(crate) fn tunnel(&self) -> Option<&[u8]> {
        self.tunnel.as_deref()
    }

    pub(crate) fn malformed(&self) -> Option<&'static str> {
        self.malformed
    }

    /// The number of messages that have begun, one whose header section is not complete included.
    pub(crate) fn begun(&self) -> usize {
        let is_head_begun = self.state == State::Head && self.at < self.buffer.len();
        self.messages.len() + usize::from(is_head_begun)
    }

    /// Whether the last message is not complete, or another one has begun.
    pub(crate) fn is_within_message(&self) -> bool {
        let has_begun = self.state != State::Head || self.at < self.buffer.len();
        has_begun && !matches!(self.state, State::Undecided | State::Tunnel)
    }

    /// Reads bytes that follow the earlier ones.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.malformed.is_some() {
            return;
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
        loop {
            match self.step() {
                Ok(true) => {}
                Ok(false) => return,
                Err(reason) => {
                    self.malformed = Some(reason);
                    return;
                }
            }
        }
    }

    /// The connection has ended; `complete` if with FIN.
    pub(crate) fn end(&mut self, complete: bool) {
        let state = self.state;
        if let Some(message) = self.messages.last_mut()
            && message.end == End::Open
        {
            let is_end = state == State::UntilEnd && complete;
            message.end = if is_end { End::Complete } else { End::Cut };
        }
    }

    fn rest(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    /// Reads the next element; false if it has not arrived.
    fn step(&mut self) -> Result<bool, &'static str> {
        if self.rest().is_empty() {
            return Ok(false);
        }
        match self.state {
            State::Head => self.head(),
            State::Sized(missing) => {
                let missing = self.content(missing);
                self.state = State::Sized(missing);
                self.finish_if(missing == 0);
                Ok(true)
            }
            State::ChunkSize => self.chunk_size(),
            State::Chunk(missing) => {
                let missing = self.content(missing);
                self.state = if missing == 0 {
                    State::ChunkEnd
                } else {
                    State::Chunk(missing)
                };
                Ok(true)
            }
            State::ChunkEnd => match self.rest() {
                [b'\r', b'\n', ..] => {
                    self.at += 2;
                    self.state = State::ChunkSize;
                    Ok(true)
                }
                [b'\r'] => Ok(false),
                _ => Err("chunk longer than its size"),
            },
            State::Trailers => self.trailers(),
            State::UntilEnd => {
                self.content(u64::MAX);
                Ok(true)
            }
            State::Undecided => Ok(false),
            State::Tunnel => {
                let rest = self.buffer[self.at..].to_vec();
                self.at = self.buffer.len();
                self.tunnel.get_or_insert_default().extend(rest);
                Ok(false)
            }
        }
    }

    fn head(&mut self) -> Result<bool, &'static str> {
        // A server ignores empty lines before a request (section 2.2).
        if self.role == Role::Requests && self.rest().starts_with(b"\r\n") {
            self.at += 2;
            return Ok(true);
        }
        let Some(section) = head::read(self.rest(), self.role)? else {
            return Ok(false);
        };
        self.at += section.length;
        let is_new =
            self.messages.last().is_none_or(Message::has_ended) || self.role == Role::Requests;
        if is_new {
            self.messages.push(Message::default());
        }
        let Some(message) = self.messages.last_mut() else {
            return Ok(false);
        };
        message.add_section(section.fields);
        message.irregular = message.irregular.or(section.irregular);
        if message.fields.is_empty() {
            // An interim response, which has no body.
            return Ok(true);
        }
        let framing = match self.role {
            Role::Requests => request_framing(message)?,
            Role::Responses => {
                let request = self.requests.get(self.finals);
                self.finals += 1;
                response_framing(message, request)?
            }
        };
        self.state = match framing {
            Framing::None => State::Head,
            Framing::Sized(length) => State::Sized(length),
            Framing::Chunked => State::ChunkSize,
            Framing::UntilEnd => State::UntilEnd,
            Framing::Undecided => State::Undecided,
            Framing::Tunnel => State::Tunnel,
        };
        if framing == Framing::Tunnel {
            self.tunnel = Some(Vec::new());
        }
        if matches!(
            framing,
            Framing::None | Framing::Sized(0) | Framing::Undecided | Framing::Tunnel
        ) {
            message.end = End::Complete;
        }
        self.finish_if(framing == Framing::Sized(0));
        Ok(true)
    }

    /// Takes at most `missing` bytes of the body; returns how many are missing then.
    fn content(&mut self, missing: u64) -> u64 {
        let available = self.rest().len();
        let taken = usize::try_from(missing).map_or(available, |missing| missing.min(available));
        let content = self.buffer[self.at..self.at + taken].to_vec();
        self.at += taken;
        if let Some(message) = self.messages.last_mut() {
            message.body.extend(content);
        }
        missing - taken as u64
    }

    fn chunk_size(&mut self) -> Result<bool, &'static str> {
        let Some(length) = head::line(self.rest())? else {
            return Ok(false);
        };
        let line = &self.rest()[..length];
        let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
        let size = head::hexadecimal(size).ok_or("invalid chunk size")?;
        self.at += length + 2;
        self.state = if size == 0 {
            State::Trailers
        } else {
            State::Chunk(size)
        };
        Ok(true)
    }

    fn trailers(&mut self) -> Result<bool, &'static str> {
        let Some(section) = head::fields(self.rest(), false)? else {
            return Ok(false);
        };
        self.at += section.length;
        if let Some(message) = self.messages.last_mut() {
            message.trailers = section.fields;
        }
        self.finish_if(true);
        Ok(true)
    }

    fn finish_if(&mut self, is_complete: bool) {
        if !is_complete {
            return;
        }
        self.state = State::Head;
        if let Some(message) = self.messages.last_mut() {
            message.end = End::Complete;
        }
    }
}

fn request_framing(message: &Message) -> Result<Framing, &'static str> {
    if value(&message.fields, ":method") == Some(b"CONNECT") {
        return Ok(Framing::Undecided);
    }
    // Requests to upgrade with content are not played.
    let is_upgrade = value(&message.fields, "upgrade").is_some();
    match declared(message)? {
        (_, Some(reason)) => Err(reason),
        (Some(framing), None) => Ok(framing),
        (None, None) if is_upgrade => Ok(Framing::Undecided),
        (None, None) => Ok(Framing::None),
    }
}

fn response_framing(
    message: &mut Message,
    request: Option<&Request>,
) -> Result<Framing, &'static str> {
    let status = value(&message.fields, ":status").unwrap_or_default();
    let is_switched = status == b"101";
    let is_of = |method: &[u8]| request.is_some_and(|request| request.method == method);
    let is_connected = is_of(b"CONNECT") && status.starts_with(b"2");
    if is_switched || is_connected {
        let is_unasked = request.is_none_or(|request| !request.offers_upgrade);
        if is_switched && is_unasked {
            message.irregular = Some(UNASKED_SWITCH);
        }
        return Ok(Framing::Tunnel);
    }
    let is_empty = matches!(status, b"204" | b"304");
    let (declared, irregular) = match declared(message) {
        Err(_) if is_empty || is_of(b"HEAD") => (None, Some(FRAMING_WITHOUT_CONTENT)),
        declared => declared?,
    };
    let length = value(&message.fields, "content-length");
    let has_content = status == b"204" && (declared.is_some() && length != Some(b"0"));
    let irregular = irregular.or(has_content.then_some(FRAMING_WITHOUT_CONTENT));
    message.irregular = message.irregular.or(irregular);
    if is_empty || is_of(b"HEAD") {
        return Ok(Framing::None);
    }
    Ok(declared.unwrap_or(Framing::UntilEnd))
}

/// The length of a body, as the framing fields declare it, and why a strict reader refuses them.
fn declared(message: &Message) -> Result<(Option<Framing>, Option<&'static str>), &'static str> {
    let values = |name: &str| {
        let fields = message.fields.iter();
        let fields = fields.filter(|(it, _)| it.eq_ignore_ascii_case(name.as_bytes()));
        let elements = fields.flat_map(|(_, value)| value.split(|byte| *byte == b','));
        elements.map(<[u8]>::trim_ascii).collect::<Vec<_>>()
    };
    let (codings, lengths) = (values("transfer-encoding"), values("content-length"));
    let length = match lengths.as_slice() {
        [] => None,
        [length, others @ ..] => {
            if others.iter().any(|other| other != length) {
                return Err("several content-length");
            }
            Some(head::decimal(length).ok_or("invalid content-length")?)
        }
    };
    let is_repeated = (lengths.len() > 1).then_some(REPEATED_LENGTH);
    match codings.as_slice() {
        [] => Ok((length.map(Framing::Sized), is_repeated)),
        [coding] if coding.eq_ignore_ascii_case(b"chunked") => {
            let irregular = length.map(|_| LENGTH_AND_CHUNKED);
            Ok((Some(Framing::Chunked), irregular))
        }
        [coding] if coding.eq_ignore_ascii_case(b"identity") && length.is_none() => {
            Ok((Some(Framing::UntilEnd), Some(IDENTITY)))
        }
        _ => Err("transfer-encoding other than chunked"),
    }
}

pub(crate) use self::head::{BARE_LINE_FEED, BLANK_BEFORE_COLON};
pub(crate) const UNASKED_SWITCH: &str = "switch of protocols that was not asked for";
pub(crate) const FRAMING_WITHOUT_CONTENT: &str = "framing of a message without content";
pub(crate) const REPEATED_LENGTH: &str = "repeated content-length";
pub(crate) const LENGTH_AND_CHUNKED: &str = "transfer-encoding and content-length";
pub(crate) const IDENTITY: &str = "transfer-encoding: identity";

#[cfg(test)]
mod tests;
