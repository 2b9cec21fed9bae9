//! [`State`]: what a peer has received on a connection, and what it has yet to send.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::task::Waker;

use crate::http1;
use crate::http2::{self, Event, frame};
use crate::message::{End, Message};
use crate::observation::{Ending, Observation};
use crate::peer::{Signals, Socket};
use crate::script::{self, Protocol, Reading, Side, Wait};

pub(crate) struct State {
    /// `None` before the connection is open and after it was closed here.
    pub(crate) socket: Option<Socket>,
    pub(super) refused: Option<String>,
    pub(super) waiting: Vec<Waker>,
    pub(super) reading: Reading,
    pub(crate) ending: Ending,
    pub(super) step: Option<(usize, String)>,
    pub(super) output: VecDeque<u8>,
    /// Frames that follow the pieces of a step.
    held: Option<Vec<u8>>,
    /// The socket accepts nothing more.
    is_broken: bool,
    received: Vec<u8>,
    /// For waits for bytes.
    bytes: Search,
    /// For waits for content.
    content: Search,
    reader: Reader,
    pub(crate) is_manual: bool,
    side: Side,
    counts: Counts,
    windows: Windows,
}

enum Reader {
    Bytes,
    Http1 {
        received: http1::Reader,
        /// The peer's own messages.
        sent: http1::Reader,
    },
    Http2(http2::Reader),
}

/// How many of the events that steps wait for have happened, and how many have been waited for.
#[derive(Default)]
struct Counts {
    heads: usize,
    messages: usize,
    /// Messages of HTTP/1 that have their number.
    numbered: usize,
    heads_of: BTreeMap<u32, usize>,
    goaways: usize,
    settings_acks: (usize, usize),
    ping_acks: (usize, usize),
}

/// Waits for texts, each after the one that was found before.
#[derive(Default)]
struct Search {
    /// The bytes before the end of the last text.
    found: usize,
    /// Within this many bytes the present text does not begin.
    searched: usize,
}

/// What the peer may be sent (RFC 9113, section 5.2).
struct Windows {
    connection: i64,
    initial: i64,
    /// Beyond the initial window.
    streams: BTreeMap<u32, i64>,
}

impl State {
    pub(super) fn new(side: Side, protocol: Protocol) -> Self {
        let reader = match (protocol, side) {
            (Protocol::Tcp, _) => Reader::Bytes,
            (Protocol::Http1, Side::Client) => Reader::Http1 {
                received: http1::Reader::new(http1::Role::Responses),
                sent: http1::Reader::new(http1::Role::Requests),
            },
            (Protocol::Http1, Side::Server) => Reader::Http1 {
                received: http1::Reader::new(http1::Role::Requests),
                sent: http1::Reader::new(http1::Role::Responses),
            },
            (Protocol::Http2, _) => Reader::Http2(http2::Reader::new(side == Side::Server)),
        };
        Self {
            socket: None,
            refused: None,
            waiting: Vec::new(),
            reading: Reading::Go,
            ending: Ending::Open,
            step: None,
            output: VecDeque::new(),
            held: None,
            is_broken: false,
            received: Vec::new(),
            bytes: Search::default(),
            content: Search::default(),
            reader,
            is_manual: false,
            side,
            counts: Counts::default(),
            windows: Windows {
                connection: i64::from(frame::WINDOW),
                initial: i64::from(frame::WINDOW),
                streams: BTreeMap::new(),
            },
        }
    }

    pub(super) fn hold(&mut self, is_held: bool) {
        if is_held {
            self.held.get_or_insert_default();
        } else if let Some(held) = self.held.take() {
            self.output.extend(held);
        }
    }

    pub(super) fn received(&self) -> usize {
        self.received.len()
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.output.is_empty() || self.is_broken || self.socket.is_none()
    }

    pub(super) fn close(&mut self) -> Option<Socket> {
        if self.ending == Ending::Open && self.socket.is_some() {
            self.ending = Ending::Own;
        }
        self.socket.take()
    }

    pub(super) fn note_sent(&mut self, bytes: &[u8], signals: &Signals) {
        if let Reader::Http1 { sent, .. } = &mut self.reader {
            sent.feed(bytes);
            self.relate(signals);
        }
    }

    /// Relates the messages of both directions of HTTP/1, and numbers the ones that have arrived.
    fn relate(&mut self, signals: &Signals) {
        let Reader::Http1 { received, sent } = &mut self.reader else {
            return;
        };
        match self.side {
            Side::Client => http1::Reader::relate(sent, received),
            Side::Server => http1::Reader::relate(received, sent),
        }
        for message in &mut received.messages_mut()[self.counts.numbered..] {
            message.order = signals.next_message();
            self.counts.numbered += 1;
        }
    }

    /// The result of a write.
    pub(super) fn sent(&mut self, written: io::Result<usize>) {
        match written {
            Ok(n) => {
                self.output.drain(..n);
            }
            Err(error) => {
                self.is_broken = true;
                self.output.clear();
                // The kernel reports an RST once, to the first call after it.
                if self.ending == Ending::Open && error.kind() != io::ErrorKind::BrokenPipe {
                    self.end(ending_of(&error));
                }
            }
        }
        if self.is_broken {
            self.output.clear();
        }
    }

    /// The result of a read. Returns whether it is the last one.
    pub(super) fn receive(&mut self, read: io::Result<&[u8]>, signals: &Signals) -> bool {
        match read {
            Ok([]) => self.end(Ending::Fin),
            Ok(bytes) => {
                self.received.extend_from_slice(bytes);
                self.feed(bytes, signals);
                return false;
            }
            Err(error) => self.end(ending_of(&error)),
        }
        true
    }

    fn end(&mut self, ending: Ending) {
        if self.ending != Ending::Open {
            return;
        }
        self.ending = ending;
        if let Reader::Http1 { received, .. } = &mut self.reader {
            received.end(ending == Ending::Fin);
        }
    }

    fn feed(&mut self, bytes: &[u8], signals: &Signals) {
        match &mut self.reader {
            Reader::Bytes => {}
            Reader::Http1 { received, .. } => {
                received.feed(bytes);
                self.relate(signals);
            }
            Reader::Http2(reader) => {
                let events = reader.feed(bytes);
                for event in events {
                    self.react(event, signals);
                }
            }
        }
    }

    fn react(&mut self, event: Event, signals: &Signals) {
        let mut reply = Vec::new();
        match event {
            Event::Settings => frame::write(&mut reply, frame::SETTINGS, frame::ACK, 0, &[]),
            Event::Ping(opaque) => frame::write(&mut reply, frame::PING, frame::ACK, 0, &opaque),
            Event::Data(stream, length) if length > 0 => {
                for stream in [0, stream] {
                    let increment = length.to_be_bytes();
                    frame::write(&mut reply, frame::WINDOW_UPDATE, 0, stream, &increment);
                }
            }
            Event::Data(..) => {}
            Event::SettingsAck => self.counts.settings_acks.0 += 1,
            Event::PingAck => self.counts.ping_acks.0 += 1,
            Event::InitialWindow(size) => self.windows.initial = i64::from(size),
            Event::Window(0, increment) => self.windows.connection += i64::from(increment),
            Event::Window(stream, increment) => {
                *self.windows.streams.entry(stream).or_default() += i64::from(increment);
            }
            Event::GoAway => {}
            Event::Opened(id) => {
                if let Reader::Http2(reader) = &mut self.reader {
                    reader.set_order(id, signals.next_message());
                }
            }
        }
        if self.is_manual {
            return;
        }
        match &mut self.held {
            Some(held) => held.extend(reply),
            None => self.output.extend(reply),
        }
    }

    /// The peer resets a stream.
    pub(crate) fn leave(&mut self, stream: u32) {
        if let Reader::Http2(reader) = &mut self.reader {
            reader.leave(stream);
        }
    }

    /// The number of a stream, once it is known.
    pub(crate) fn stream_id(&self, stream: script::Stream) -> Option<u32> {
        match &self.reader {
            Reader::Http2(reader) => reader.id(stream),
            _ => match stream {
                script::Stream::Id(id) | script::Stream::Nth(id) => Some(id),
            },
        }
    }

    /// Takes at most `wanted` octets from the windows of a stream and the connection. `None` while
    /// there are none; 0 if the stream takes no more.
    pub(crate) fn take_window(&mut self, stream: u32, wanted: usize) -> Option<usize> {
        let is_over = self.ending != Ending::Open
            || self.is_broken
            || self.socket.is_none()
            || self
                .message(stream)
                .is_some_and(|message| message.reset.is_some());
        if is_over {
            return Some(0);
        }
        let windows = &mut self.windows;
        let used = windows.streams.entry(stream).or_default();
        let available = windows.connection.min(windows.initial + *used);
        let available = usize::try_from(available).ok().filter(|it| *it > 0)?;
        let taken = available.min(wanted).min(frame::MAX_FRAME);
        windows.connection -= taken as i64;
        *used -= taken as i64;
        Some(taken)
    }

    fn message(&self, id: u32) -> Option<&Message> {
        match &self.reader {
            Reader::Http2(reader) => reader.message(id),
            _ => None,
        }
    }

    fn messages(&self) -> Vec<&Message> {
        match &self.reader {
            Reader::Bytes => Vec::new(),
            Reader::Http1 { received, .. } => received.messages().iter().collect(),
            Reader::Http2(reader) => reader.messages().collect(),
        }
    }

    /// The number of messages of HTTP/1 that have begun to arrive.
    fn begun(&self) -> usize {
        match &self.reader {
            Reader::Http1 { received, .. } => received.begun(),
            Reader::Bytes | Reader::Http2(_) => 0,
        }
    }

    /// Whether more than `count` messages of HTTP/1 have begun to arrive; `None` if another can
    /// follow.
    pub(super) fn has_begun(&self, count: usize) -> Option<bool> {
        if self.socket.is_none() {
            return Some(false);
        }
        let has_begun = self.begun() > count;
        (has_begun || self.ending != Ending::Open).then_some(has_begun)
    }

    /// Whether the event has happened. One that has is not found by the next wait again.
    pub(super) fn has_happened(&mut self, wait: &Wait) -> bool {
        match wait {
            Wait::Bytes(count) => self.received.len() as u64 >= *count,
            Wait::Text(text) => {
                // The end of a run takes the received bytes away.
                let rest = self.received.get(self.bytes.begin()..).unwrap_or_default();
                self.bytes.find(rest, &text.to_vec())
            }
            Wait::End => self.ending != Ending::Open,
            // The caller waits for signals.
            Wait::Signal(_) => true,
            Wait::Head(None) => {
                let heads = self.messages().iter().map(|message| message.heads()).sum();
                advance(&mut self.counts.heads, heads)
            }
            Wait::Head(Some(stream)) => {
                let Some(id) = self.stream_id(*stream) else {
                    return false;
                };
                let heads = self.message(id).map_or(0, Message::heads);
                advance(self.counts.heads_of.entry(id).or_default(), heads)
            }
            Wait::Message(None) => {
                let messages = self.messages();
                let ended = messages.iter().filter(|it| it.has_ended());
                let heads: Vec<usize> = ended.map(|it| it.heads()).collect();
                let counts = &mut self.counts;
                let has_ended = advance(&mut counts.messages, heads.len());
                // The next head is the one of the next message.
                let waited = heads.iter().take(counts.messages).sum();
                counts.heads = counts.heads.max(waited);
                has_ended
            }
            Wait::Message(Some(stream)) => {
                let id = self.stream_id(*stream);
                let message = id.and_then(|id| self.message(id));
                message.is_some_and(Message::has_ended)
            }
            Wait::Data(stream, count) => {
                let id = self.stream_id(*stream);
                let message = id.and_then(|id| self.message(id));
                message.is_some_and(|message| message.body.len() as u64 >= *count)
            }
            Wait::Content(text) => {
                let mut before = self.content.begin();
                let mut rest = Vec::new();
                for message in self.messages() {
                    let skipped = before.min(message.body.len());
                    before -= skipped;
                    rest.extend_from_slice(&message.body[skipped..]);
                }
                self.content.find(&rest, &text.to_vec())
            }
            Wait::Tunnel(count) => match &self.reader {
                Reader::Http1 { received, .. } => {
                    let tunnel = received.tunnel().unwrap_or_default();
                    tunnel.len() as u64 >= *count
                }
                _ => false,
            },
            Wait::GoAway => match &self.reader {
                Reader::Http2(reader) => advance(&mut self.counts.goaways, reader.goaways().len()),
                _ => false,
            },
            Wait::SettingsAck => {
                let (happened, waited) = &mut self.counts.settings_acks;
                advance(waited, *happened)
            }
            Wait::PingAck => {
                let (happened, waited) = &mut self.counts.ping_acks;
                advance(waited, *happened)
            }
        }
    }

    pub(super) fn observe(&mut self) -> Observation {
        let mut observation = Observation {
            refused: self.refused.take(),
            bytes: std::mem::take(&mut self.received),
            ending: self.ending,
            stopped_at: self.step.take(),
            ..Observation::default()
        };
        match std::mem::replace(&mut self.reader, Reader::Bytes) {
            Reader::Bytes => {}
            Reader::Http1 { received, .. } => {
                observation.is_within_message = received.is_within_message();
                observation.tunnel = received.tunnel().map(<[u8]>::to_vec);
                observation.malformed = received.malformed().map(str::to_owned);
                observation.messages = received.messages().to_vec();
            }
            Reader::Http2(reader) => {
                observation.goaways = reader.goaways().to_vec();
                observation.malformed = reader.malformed().map(str::to_owned);
                observation.messages = match self.side {
                    Side::Client => reader.into_responses(),
                    Side::Server => reader.messages().cloned().collect(),
                };
                for message in &mut observation.messages {
                    if self.ending != Ending::Open && message.end == End::Open {
                        message.end = End::Cut;
                    }
                }
                let mut messages = observation.messages.iter();
                observation.is_within_message =
                    messages.any(|message| matches!(message.end, End::Open | End::Cut));
            }
        }
        observation
    }
}

impl Search {
    /// The bytes that are not searched any more.
    fn begin(&self) -> usize {
        self.found.max(self.searched)
    }

    /// Whether `text` is in `rest`, the bytes from [`Search::begin`] on.
    fn find(&mut self, rest: &[u8], text: &[u8]) -> bool {
        let begin = self.begin();
        let at = find(rest, text);
        if let Some(at) = at {
            self.found = begin + at + text.len();
        }
        // The beginning of the text may have arrived.
        let unfinished = text.len().saturating_sub(1);
        self.searched = at.map_or((begin + rest.len()).saturating_sub(unfinished), |_| 0);
        at.is_some()
    }
}

/// Counts one more as waited for, if there is one.
fn advance(waited: &mut usize, happened: usize) -> bool {
    let has_happened = happened > *waited;
    *waited += usize::from(has_happened);
    has_happened
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    if text.is_empty() {
        return Some(0);
    }
    bytes.windows(text.len()).position(|window| window == text)
}

fn ending_of(error: &io::Error) -> Ending {
    match error.kind() {
        io::ErrorKind::ConnectionReset => Ending::Reset,
        _ => Ending::Failed,
    }
}
