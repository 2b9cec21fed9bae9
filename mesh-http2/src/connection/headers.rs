//! HEADERS and CONTINUATION: the heads and trailers of messages.

use http::{Response, StatusCode};

use super::receive::Fault;
use super::{Accepted, Connection, Leaving, Role};
use crate::error::{Reason, Violation};
use crate::frame::{self, Head};
use crate::hpack::DecodeProgress;
use crate::message::{List, Malformed, declared_length};
use crate::stream::{Stage, Stream, StreamId};
use crate::window::{Receiving, Sending};

/// A header block that is not complete.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    ends: bool,
    depends_on: Option<u32>,
    bytes: Vec<u8>,
    continuations: u32,
}

/// A header list of more than so many times what is allowed ends the connection; below, only its message is refused.
const FAR_TOO_LARGE: usize = 4;

/// CONTINUATION frames of one block, whatever its size.
const MIN_CONTINUATIONS: u32 = 5;

const TOO_MANY: Fault = Fault::Violation(Violation::Headers);

impl Connection {
    pub(super) fn headers(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        if head.stream == 0 {
            return Err(Fault::Protocol(
                Reason::PROTOCOL_ERROR,
                "HEADERS concern no stream",
            ));
        }
        let payload = frame::headers(head, payload)?;
        if head.ends_headers() {
            let (ends, on) = (head.ends_stream(), payload.depends_on);
            return self.block(head.stream, ends, on, payload.block);
        }
        self.block = Some(Box::new(Block {
            stream: head.stream,
            ends: head.ends_stream(),
            depends_on: payload.depends_on,
            bytes: payload.block.to_vec(),
            continuations: 0,
        }));
        Ok(())
    }

    pub(super) fn continuation(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        let Some(block) = &mut self.block else {
            // It was looked for when the frame began.
            return Ok(());
        };
        block.continuations += 1;
        block.bytes.extend_from_slice(payload);
        let most = self.limits.header_list / frame::MIN_MAX_FRAME * 5 / 4;
        if block.continuations > most.max(MIN_CONTINUATIONS) {
            return Err(TOO_MANY);
        }
        if !head.ends_headers() {
            return Ok(());
        }
        match self.block.take() {
            Some(block) => self.block(block.stream, block.ends, block.depends_on, &block.bytes),
            None => Ok(()),
        }
    }

    /// A whole header block. It is decoded whatever becomes of it, because the tables must stay in step.
    fn block(
        &mut self,
        id: u32,
        ends: bool,
        depends_on: Option<u32>,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let list = self.decode(bytes)?;
        if self.is_theirs(id) && id > self.last_theirs {
            return self.opened(id, ends, depends_on, list);
        }
        if depends_on == Some(id) {
            return self.depends_on_itself(id);
        }
        if self.is_idle(id) {
            let what = "HEADERS on a stream that was never opened";
            return Err(Fault::Protocol(Reason::PROTOCOL_ERROR, what));
        }
        let Some(stream) = self.streams.get(&id) else {
            return self.on_closed(id);
        };
        match stream.inbound.stage {
            _ if stream.failure.is_some() => self.on_failed(id),
            Stage::Head => self.response(id, ends, list),
            Stage::Body => self.trailers(id, ends, list),
            Stage::Over => self.refuse(id, Reason::STREAM_CLOSED, "HEADERS behind the end"),
        }
    }

    fn decode(&mut self, bytes: &[u8]) -> Result<List, Fault> {
        let max_size = self.limits.header_list as usize;
        let max_fields = match self.role {
            Role::Server => self.limits.fields.into(),
            Role::Client => usize::MAX,
        };
        let mut list = List::default();
        let (progress, piece) = (&mut DecodeProgress::default(), &mut &*bytes);
        let decoded = self.decoder.decode(progress, piece, true, |field, size| {
            list.add(field, size, max_size, max_fields);
            list.size() <= max_size * FAR_TOO_LARGE
        });
        match decoded {
            Ok(true) => Ok(list),
            Ok(false) => Err(TOO_MANY),
            Err(broken) => Err(Fault::Protocol(Reason::COMPRESSION_ERROR, broken.why())),
        }
    }

    /// The other side opens a stream.
    fn opened(
        &mut self,
        id: u32,
        ends: bool,
        depends_on: Option<u32>,
        list: List,
    ) -> Result<(), Fault> {
        if self.role == Role::Client {
            let what = "a server opens a stream";
            return Err(Fault::Protocol(Reason::PROTOCOL_ERROR, what));
        }
        self.last_theirs = id;
        self.account.opened();
        if matches!(self.leaving, Leaving::Last(_)) {
            // It does not know yet.
            return Ok(());
        }
        if self.open_theirs >= self.limits.streams {
            return self.refuse_opening(id, Reason::REFUSED_STREAM);
        }
        if depends_on == Some(id) {
            return self.refuse_opening(id, Reason::PROTOCOL_ERROR);
        }
        let refused = list.refused();
        let request = match refused {
            None => list.into_request(),
            Some(_) => list.into_refused_request(),
        };
        let checked = request.and_then(|request| {
            let length = declared_length(request.headers())?;
            match length {
                Some(1..) if ends => Err(Malformed("the body is missing")),
                _ => Ok((request, length)),
            }
        });
        let (request, length) = match checked {
            Ok(checked) => checked,
            Err(Malformed(_)) => return self.refuse_opening(id, Reason::PROTOCOL_ERROR),
        };
        let stage = if ends { Stage::Over } else { Stage::Body };
        let mut stream = self.new_stream(stage);
        stream.inbound.remaining = length;
        self.streams.insert(id, stream);
        self.open_theirs += 1;
        self.accepted.push_back(Accepted {
            id: StreamId(id),
            request,
            refused,
            is_head_only: ends,
            length,
        });
        Ok(())
    }

    pub(super) fn new_stream(&self, inbound: Stage) -> Box<Stream> {
        Box::new(Stream::new(
            inbound,
            Receiving::new(self.stream_window),
            Sending::new(self.peer.stream_window),
        ))
    }

    fn response(&mut self, id: u32, ends: bool, list: List) -> Result<(), Fault> {
        let size = list.size();
        let response = match list.refused() {
            None => list.into_response(),
            Some(_) => Err(Malformed("the header list of a response is too large")),
        };
        let checked = response.and_then(|response| {
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                return Err(Malformed("HTTP/2 has no 101"));
            }
            let length = declared_length(response.headers())?;
            Ok((response, length))
        });
        let (response, length) = match checked {
            Ok(checked) => checked,
            Err(Malformed(why)) => return self.refuse(id, Reason::PROTOCOL_ERROR, why),
        };
        if response.status().is_informational() {
            return self.interim(id, ends, response, size);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        let has_no_body = stream.inbound.answers_head
            || matches!(
                response.status(),
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            );
        // What it says of a body that does not come is about another response.
        stream.inbound.remaining = if has_no_body { Some(0) } else { length };
        stream.inbound.head = Some(Box::new(response));
        stream.inbound.stage = Stage::Body;
        stream.inbound.is_head_only = ends;
        stream.inbound.wake();
        match ends {
            true => self.end_inbound(id),
            false => Ok(()),
        }
    }

    fn interim(
        &mut self,
        id: u32,
        ends: bool,
        response: Response<()>,
        size: usize,
    ) -> Result<(), Fault> {
        if ends {
            let why = "an interim response is the last";
            return self.refuse(id, Reason::PROTOCOL_ERROR, why);
        }
        let most = self.limits.header_list as usize;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if !stream.is_read {
            return Ok(());
        }
        let interims = stream.inbound.interims.get_or_insert_default();
        if !interims.push(response, size, most) {
            let why = "there are too many interim responses";
            return self.refuse(id, Reason::ENHANCE_YOUR_CALM, why);
        }
        stream.inbound.wake();
        Ok(())
    }

    fn trailers(&mut self, id: u32, ends: bool, list: List) -> Result<(), Fault> {
        let trailers = match list.refused() {
            None if ends => list.into_trailers(),
            None => Err(Malformed("trailers do not end the message")),
            Some(_) => Err(Malformed("there are too many trailers")),
        };
        match trailers {
            Err(Malformed(why)) => self.refuse(id, Reason::PROTOCOL_ERROR, why),
            Ok(trailers) => {
                if let Some(stream) = self.streams.get_mut(&id)
                    && stream.is_read
                {
                    stream.inbound.trailers = Some(Box::new(trailers));
                }
                self.end_inbound(id)
            }
        }
    }

    /// The other side's message is complete.
    pub(super) fn end_inbound(&mut self, id: u32) -> Result<(), Fault> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if stream.inbound.remaining.is_some_and(|left| left > 0) {
            return self.refuse(
                id,
                Reason::PROTOCOL_ERROR,
                "the body is shorter than its head says",
            );
        }
        stream.inbound.stage = Stage::Over;
        stream.inbound.wake();
        self.settle(id);
        Ok(())
    }
}
