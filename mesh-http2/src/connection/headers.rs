//! HEADERS and CONTINUATION: the heads and trailers of messages.

use http::{Response, StatusCode};

use super::receive::Fault;
use super::{Accepted, Connection, Leaving, Role};
use crate::error::{Reason, Violation};
use crate::frame::{self, Head};
use crate::hpack::DecodeProgress;
use crate::message::{List, Malformed, Refused, declared_length};
use crate::stream::{Stage, Stream, StreamId};
use crate::window::{Receiving, Sending};

/// A field block that is not complete. Its fields are decoded as they arrive, so that no frame
/// brings more work than its own bytes do.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    ends: bool,
    depends_on: Option<u32>,
    fields: PartialSection,
    /// The beginning of a field line that the next frame continues.
    rest: Vec<u8>,
    continuations: u32,
}

/// The field section that one field block encodes, as far as it was received.
#[derive(Debug, Default)]
struct PartialSection {
    list: List,
    progress: DecodeProgress,
    /// Bytes of the field block that were received.
    bytes: usize,
}

/// A header list of more than so many times what is allowed ends the connection; below, only its
/// message is refused.
const FAR_TOO_LARGE: usize = 4;

/// CONTINUATION frames of one block, whatever its size.
const MIN_CONTINUATIONS: u32 = 5;

/// A field section may be so many times as long as its field block, and so many bytes longer:
/// short field lines count for seven times their bytes, and an honest encoder refers to each entry
/// of the 4 KiB table once. A longer one repeats the same entries, and would cost the application
/// many times what it has cost the client.
const EXPANSION: usize = 8;
const EXPANSION_BYTES: usize = 16 * 1024;

/// Responses have no limit of their own but the size of their field section, which the operator may
/// set. `HeaderMap` panics when it is given more than 24,576 names, and the proxy adds some.
const MAX_RESPONSE_FIELDS: usize = 16 * 1024;

/// Bytes of a field section that are as much work as a field line.
const BYTES_OF_WORK: usize = 64;

const TOO_MANY: Fault = Fault::Violation(Violation::Headers);

impl PartialSection {
    /// Bytes of the field section beyond what its field block accounts for.
    fn excess(&self) -> usize {
        self.list
            .size()
            .saturating_sub(EXPANSION * self.bytes + EXPANSION_BYTES)
    }
}

impl Connection {
    pub(super) fn headers(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        if head.stream == 0 {
            return Err(Fault::Protocol(
                Reason::PROTOCOL_ERROR,
                "HEADERS concern no stream",
            ));
        }
        let payload = frame::headers(head, payload)?;
        let mut piece = payload.block;
        let mut fields = PartialSection {
            bytes: piece.len(),
            ..PartialSection::default()
        };
        self.decode(&mut fields, &mut piece, head.ends_headers())?;
        if head.ends_headers() {
            let (ends, on) = (head.ends_stream(), payload.depends_on);
            return self.block(head.stream, ends, on, fields);
        }
        self.block = Some(Box::new(Block {
            stream: head.stream,
            ends: head.ends_stream(),
            depends_on: payload.depends_on,
            fields,
            rest: piece.to_vec(),
            continuations: 0,
        }));
        Ok(())
    }

    pub(super) fn continuation(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        let Some(mut block) = self.block.take() else {
            // It was looked for when the frame began.
            return Ok(());
        };
        block.continuations += 1;
        let most = self.limits.header_list / frame::MIN_MAX_FRAME * 5 / 4;
        if block.continuations > most.max(MIN_CONTINUATIONS) {
            return Err(TOO_MANY);
        }
        block.fields.bytes += payload.len();
        let is_last = head.ends_headers();
        if block.rest.is_empty() {
            let mut piece = payload;
            self.decode(&mut block.fields, &mut piece, is_last)?;
            block.rest.extend_from_slice(piece);
        } else {
            block.rest.extend_from_slice(payload);
            let mut piece = &block.rest[..];
            self.decode(&mut block.fields, &mut piece, is_last)?;
            let done = block.rest.len() - piece.len();
            block.rest.drain(..done);
        }
        if is_last {
            return self.block(block.stream, block.ends, block.depends_on, block.fields);
        }
        self.block = Some(block);
        Ok(())
    }

    /// A complete field block. It was decoded whatever the state of its stream is, because the
    /// dynamic table must stay in step with the peer's.
    fn block(
        &mut self,
        id: u32,
        ends: bool,
        depends_on: Option<u32>,
        fields: PartialSection,
    ) -> Result<(), Fault> {
        let verdict = self.account.expanded(fields.excess());
        self.obey(verdict)?;
        let list = fields.list;
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
            self.on_closed(id)?;
            return self.on_discarded(0);
        };
        match stream.inbound.stage {
            _ if stream.failure.is_some() => {
                self.on_failed(id)?;
                self.on_discarded(0)
            }
            Stage::Head => self.response(id, ends, list),
            Stage::Body => self.trailers(id, ends, list),
            Stage::Over => self.refuse(id, Reason::STREAM_CLOSED, "HEADERS behind the end"),
        }
    }

    /// Decodes a fragment of a field block, and leaves the beginning of a field line that the next
    /// fragment continues.
    fn decode(
        &mut self,
        fields: &mut PartialSection,
        piece: &mut &[u8],
        is_last: bool,
    ) -> Result<(), Fault> {
        let max_size = self.limits.header_list as usize;
        let max_fields = match self.role {
            Role::Server => self.limits.fields.into(),
            Role::Client => MAX_RESPONSE_FIELDS,
        };
        let PartialSection {
            list,
            progress,
            bytes,
        } = fields;
        let explained = EXPANSION * *bytes + EXPANSION_BYTES;
        let (before, mut count) = (list.size(), 0);
        let decoded = self
            .decoder
            .decode(progress, piece, is_last, |field, size| {
                count += 1;
                list.add(field, size, max_size, max_fields);
                if list.size() > explained {
                    list.refuse(Refused::TooLarge);
                }
                list.size() <= max_size * FAR_TOO_LARGE
            });
        self.worked(count + (list.size() - before) / BYTES_OF_WORK);
        match decoded {
            Ok(true) => Ok(()),
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
        if matches!(self.leaving, Leaving::Last(_)) {
            // The client may not have received the GOAWAY yet.
            return self.on_discarded(0);
        }
        self.account.opened();
        self.count_received();
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
        self.count_received();
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
            return self.on_discarded(0);
        }
        let interims = stream.inbound.interims.get_or_insert_default();
        if !interims.push(response, size, most) {
            let why = "there are too many interim responses";
            return self.refuse(id, Reason::ENHANCE_YOUR_CALM, why);
        }
        stream.inbound.wake();
        self.count_received();
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
                self.count_received();
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
