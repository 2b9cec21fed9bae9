//! [`Reader`]: the frames of one direction of a connection, as events and as messages.

use super::frame::{self, Frame};
use super::hpack::Decoder;
use crate::message::{End, Message};
use crate::script::Stream;

/// Streams beyond this one of a client are not compared.
const MAX_STREAMS: usize = 1 << 16;

/// Reads what a peer has received.
#[derive(Debug)]
pub(crate) struct Reader {
    /// A server's, which begins with the client's preface.
    is_server: bool,
    has_preface: bool,
    buffer: Vec<u8>,
    decoder: Decoder,
    /// The stream, END_STREAM and fragments of a field block that is not complete.
    block: Option<(u32, bool, Vec<u8>)>,
    /// One for each stream, in the order of their first HEADERS.
    messages: Vec<(u32, Message)>,
    goaways: Vec<(u32, u32)>,
    malformed: Option<&'static str>,
}

/// Something that the peer reacts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Settings,
    SettingsAck,
    /// SETTINGS_INITIAL_WINDOW_SIZE.
    InitialWindow(u32),
    Ping([u8; 8]),
    PingAck,
    /// DATA of this many octets of flow control.
    Data(u32, u32),
    Window(u32, u32),
    GoAway,
    /// A stream's first HEADERS.
    Opened(u32),
}

impl Reader {
    pub(crate) fn new(is_server: bool) -> Self {
        Self {
            is_server,
            has_preface: false,
            buffer: Vec::new(),
            decoder: Decoder::default(),
            block: None,
            messages: Vec::new(),
            goaways: Vec::new(),
            malformed: None,
        }
    }

    pub(crate) fn malformed(&self) -> Option<&'static str> {
        self.malformed
    }

    /// The last stream and the code of each GOAWAY.
    pub(crate) fn goaways(&self) -> &[(u32, u32)] {
        &self.goaways
    }

    /// A client's messages, in the order of its requests: with an empty one for each stream that
    /// has had no response while a later one had.
    pub(crate) fn into_responses(self) -> Vec<Message> {
        let mut responses: Vec<Message> = Vec::new();
        let mut messages = self.messages;
        messages.sort_by_key(|(id, _)| *id);
        for (id, message) in messages {
            let index = (id / 2) as usize;
            if index < MAX_STREAMS {
                responses.resize_with(responses.len().max(index + 1), Message::default);
                responses[index] = message;
            }
        }
        responses
    }

    pub(crate) fn set_order(&mut self, id: u32, order: u64) {
        if let Some((_, message)) = self.messages.iter_mut().find(|(stream, _)| *stream == id) {
            message.order = order;
        }
    }

    /// The streams that have had HEADERS, in their order.
    pub(crate) fn streams(&self) -> impl Iterator<Item = u32> {
        self.messages.iter().map(|(id, _)| *id)
    }

    pub(crate) fn message(&self, id: u32) -> Option<&Message> {
        let mut messages = self.messages.iter();
        messages
            .find(|(stream, _)| *stream == id)
            .map(|(_, message)| message)
    }

    pub(crate) fn messages(&self) -> impl Iterator<Item = &Message> {
        self.messages.iter().map(|(_, message)| message)
    }

    /// Reads bytes that follow the earlier ones.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        if self.malformed.is_some() {
            return events;
        }
        self.buffer.extend_from_slice(bytes);
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_slice();
        let read = self.read(&mut rest, &mut events);
        self.malformed = read.err();
        self.buffer = rest.to_vec();
        events
    }

    fn read(&mut self, rest: &mut &[u8], events: &mut Vec<Event>) -> Result<(), &'static str> {
        if self.is_server && !self.has_preface {
            let length = rest.len().min(frame::PREFACE.len());
            if rest[..length] != frame::PREFACE[..length] {
                return Err("not the preface of HTTP/2");
            }
            if length < frame::PREFACE.len() {
                return Ok(());
            }
            *rest = &rest[length..];
        }
        self.has_preface = true;
        while let Some((frame, following)) = frame::read(rest) {
            *rest = following;
            self.frame(&frame, events)?;
        }
        if frame::announced_length(rest).is_some_and(|length| length > frame::MAX_FRAME) {
            return Err("frame above SETTINGS_MAX_FRAME_SIZE");
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame<'_>, events: &mut Vec<Event>) -> Result<(), &'static str> {
        if frame.payload.len() > frame::MAX_FRAME {
            return Err("frame above SETTINGS_MAX_FRAME_SIZE");
        }
        if self.block.is_some() != (frame.kind == frame::CONTINUATION) {
            return Err("CONTINUATION where it is not allowed, or missing");
        }
        let is_connection = matches!(frame.kind, frame::SETTINGS | frame::PING | frame::GOAWAY);
        let is_stream = matches!(
            frame.kind,
            frame::DATA
                | frame::HEADERS
                | frame::PRIORITY
                | frame::RST_STREAM
                | frame::PUSH_PROMISE
                | frame::CONTINUATION
        );
        if is_connection && frame.stream_id() != 0 || is_stream && frame.stream_id() == 0 {
            return Err("frame on the wrong stream");
        }
        match frame.kind {
            frame::DATA => self.data(frame, events),
            frame::HEADERS => self.headers(frame, events),
            frame::CONTINUATION => self.continuation(frame, events),
            frame::RST_STREAM => self.reset(frame),
            frame::SETTINGS => settings(frame, events),
            frame::PING => ping(frame, events),
            frame::GOAWAY => self.goaway(frame, events),
            frame::WINDOW_UPDATE => {
                let increment = word(frame.payload, "WINDOW_UPDATE")?;
                if increment == 0 {
                    return Err("WINDOW_UPDATE of 0");
                }
                events.push(Event::Window(frame.stream_id(), increment));
                Ok(())
            }
            frame::PUSH_PROMISE => Err("PUSH_PROMISE, which was not allowed"),
            // PRIORITY is deprecated, and unknown frames are ignored.
            _ => Ok(()),
        }
    }

    fn data(&mut self, frame: &Frame<'_>, events: &mut Vec<Event>) -> Result<(), &'static str> {
        let content = frame::content(frame).ok_or("invalid padding")?;
        let stream = self.open_stream(frame.stream_id())?;
        if stream.end != End::Left {
            stream.body.extend_from_slice(content);
            if frame.has(frame::END_STREAM) {
                stream.end = End::Complete;
            }
        }
        events.push(Event::Data(frame.stream_id(), frame.payload.len() as u32));
        Ok(())
    }

    fn headers(&mut self, frame: &Frame<'_>, events: &mut Vec<Event>) -> Result<(), &'static str> {
        let content = frame::content(frame).ok_or("invalid padding")?;
        let end = frame.has(frame::END_STREAM);
        if frame.has(frame::END_HEADERS) {
            return self.block(frame.stream_id(), end, content, events);
        }
        self.block = Some((frame.stream_id(), end, content.to_vec()));
        Ok(())
    }

    fn continuation(
        &mut self,
        frame: &Frame<'_>,
        events: &mut Vec<Event>,
    ) -> Result<(), &'static str> {
        let Some((stream, end, mut block)) = self.block.take() else {
            return Err("CONTINUATION without HEADERS");
        };
        if stream != frame.stream_id() {
            return Err("CONTINUATION of another stream");
        }
        block.extend_from_slice(frame.payload);
        if frame.has(frame::END_HEADERS) {
            return self.block(stream, end, &block, events);
        }
        self.block = Some((stream, end, block));
        Ok(())
    }

    fn block(
        &mut self,
        id: u32,
        end: bool,
        block: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), &'static str> {
        let fields = self.decoder.decode(block).ok_or("invalid field block")?;
        if self.message(id).is_none() {
            if self.is_server && id.is_multiple_of(2) {
                return Err("request on a server's stream");
            }
            self.messages.push((id, Message::default()));
            events.push(Event::Opened(id));
        }
        let stream = self.open_stream(id)?;
        if stream.end == End::Left {
            return Ok(());
        }
        stream.add_section(fields);
        if end {
            stream.end = End::Complete;
        }
        Ok(())
    }

    fn open_stream(&mut self, id: u32) -> Result<&mut Message, &'static str> {
        let mut messages = self.messages.iter_mut();
        let stream = messages.find(|(stream, _)| *stream == id);
        let stream = stream.map(|(_, message)| message);
        let stream = stream.ok_or("frame on an idle stream")?;
        if stream.end == End::Complete {
            return Err("frame after the end of its stream");
        }
        Ok(stream)
    }

    fn reset(&mut self, frame: &Frame<'_>) -> Result<(), &'static str> {
        let code = word(frame.payload, "RST_STREAM")?;
        if let Some((_, message)) = self
            .messages
            .iter_mut()
            .find(|(id, _)| *id == frame.stream_id())
        {
            if message.end == End::Left {
                return Ok(());
            }
            message.reset = message.reset.or(Some(code));
            if message.end != End::Complete {
                message.end = End::Reset;
            }
            return Ok(());
        }
        // A server may refuse a request before it has sent a header section.
        if self.is_server {
            return Err("RST_STREAM on an idle stream");
        }
        let message = Message {
            reset: Some(code),
            end: End::Reset,
            ..Message::default()
        };
        self.messages.push((frame.stream_id(), message));
        Ok(())
    }

    /// The observer resets a stream, and ignores what follows on it.
    pub(crate) fn leave(&mut self, id: u32) {
        let mut messages = self.messages.iter_mut();
        match messages.find(|(stream, _)| *stream == id) {
            Some((_, message)) if message.end == End::Open => message.end = End::Left,
            Some(_) => {}
            // A request that does not exist, or a response that has not begun.
            None if self.is_server => {}
            None => {
                let message = Message {
                    end: End::Left,
                    ..Message::default()
                };
                self.messages.push((id, message));
            }
        }
    }

    fn goaway(&mut self, frame: &Frame<'_>, events: &mut Vec<Event>) -> Result<(), &'static str> {
        let (last, code) = frame
            .payload
            .split_at_checked(4)
            .ok_or("GOAWAY of the wrong length")?;
        let code = code.get(..4).ok_or("GOAWAY of the wrong length")?;
        let (last, code) = (word(last, "GOAWAY")?, word(code, "GOAWAY")?);
        self.goaways.push((last & (u32::MAX >> 1), code));
        events.push(Event::GoAway);
        Ok(())
    }

    /// The number of a stream of a script: a client's n-th request has the n-th odd number. `None`
    /// until the server has received the request.
    pub(crate) fn id(&self, stream: Stream) -> Option<u32> {
        match stream {
            Stream::Id(id) => Some(id),
            Stream::Nth(nth) if self.is_server => self.streams().nth(nth as usize - 1),
            Stream::Nth(nth) => Some(2 * nth - 1),
        }
    }
}

fn settings(frame: &Frame<'_>, events: &mut Vec<Event>) -> Result<(), &'static str> {
    if frame.has(frame::ACK) {
        events.push(Event::SettingsAck);
        return Ok(());
    }
    let (settings, rest) = frame.payload.as_chunks::<6>();
    if !rest.is_empty() {
        return Err("SETTINGS of the wrong length");
    }
    events.push(Event::Settings);
    for [a, b, c, d, e, f] in settings {
        if u16::from_be_bytes([*a, *b]) == frame::INITIAL_WINDOW_SIZE {
            let value = u32::from_be_bytes([*c, *d, *e, *f]);
            events.push(Event::InitialWindow(value));
        }
    }
    Ok(())
}

fn ping(frame: &Frame<'_>, events: &mut Vec<Event>) -> Result<(), &'static str> {
    let opaque = frame.payload.try_into();
    let opaque = opaque.map_err(|_length| "PING of the wrong length")?;
    events.push(if frame.has(frame::ACK) {
        Event::PingAck
    } else {
        Event::Ping(opaque)
    });
    Ok(())
}

fn word(payload: &[u8], name: &'static str) -> Result<u32, &'static str> {
    let bytes = payload.try_into().map_err(|_length| match name {
        "WINDOW_UPDATE" => "WINDOW_UPDATE of the wrong length",
        "RST_STREAM" => "RST_STREAM of the wrong length",
        _ => "GOAWAY of the wrong length",
    });
    bytes.map(u32::from_be_bytes)
}
