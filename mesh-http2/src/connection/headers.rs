//! HEADERS and CONTINUATION frames: requests, responses and trailer sections.

use http::{Response, StatusCode};
use mesh_planted::Bug;

use super::receive::ReceiveError;
use super::{AcceptedStream, Connection, GoAwayState, Role};
use crate::error::{ErrorCode, LimitExceeded};
use crate::flood::surplus_lines;
use crate::frame::{self, FrameHeader};
use crate::hpack::DecodeProgress;
use crate::message::{FieldSection, FieldSectionLimit, MalformedMessage, content_length};
use crate::stream::{MessageState, Stream, StreamId};
use crate::window::{ReceiveWindow, SendWindow};

/// A field block whose last frame was not received yet. Its field lines are decoded as they arrive,
/// so that no frame causes more work than its own bytes.
#[derive(Debug)]
pub(super) struct PartialFieldBlock {
    pub(super) stream: u32,
    ends_stream: bool,
    dependency: Option<u32>,
    fields: PartialFieldSection,
    /// The bytes of a field line that the next frame continues.
    remainder: Vec<u8>,
    continuations: u32,
}

/// The field section of a field block, as far as it was decoded.
#[derive(Debug, Default)]
struct PartialFieldSection {
    section: FieldSection,
    progress: DecodeProgress,
    /// Bytes of the field block that were received.
    bytes: usize,
    /// Surplus lines that were accounted for.
    counted_surplus: usize,
}

/// A field section of more than this multiple of the limit closes the connection; a smaller one is
/// only rejected with its message.
const CLOSE_FACTOR: usize = 4;

/// CONTINUATION frames that any field block may have.
const MIN_CONTINUATIONS: u32 = 5;

/// A field section may have this multiple of the bytes of its field block, and this allowance:
/// short field lines count for seven times their bytes, and an honest encoder refers to each entry
/// of the 4 KiB table once. A longer section repeats the same entries, and would cost the
/// application many times the bytes of the client.
const MAX_EXPANSION: usize = 8;
const EXPANSION_ALLOWANCE: usize = 16 * 1024;

/// Responses are otherwise only limited by the size of their field section, which is configurable.
/// `HeaderMap` panics beyond 24,576 names, and the proxy adds some.
const MAX_RESPONSE_FIELDS: usize = 16 * 1024;

/// Bytes of a field section that cost as much work as a field line.
const BYTES_PER_WORK: usize = 64;

const SECTION_TOO_LARGE: ReceiveError = ReceiveError::Limit(LimitExceeded::HeaderSize);

impl PartialFieldSection {
    /// Returns the bytes of the field section beyond those that its field block accounts for.
    fn excess(&self) -> usize {
        self.section
            .size()
            .saturating_sub(MAX_EXPANSION * self.bytes + EXPANSION_ALLOWANCE)
    }
}

impl Connection {
    pub(super) fn on_headers(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), ReceiveError> {
        if header.stream == 0 {
            return Err(ReceiveError::Protocol(
                ErrorCode::PROTOCOL_ERROR,
                "HEADERS on stream 0",
            ));
        }
        let payload = frame::headers(header, payload)?;
        let mut fragment = payload.fragment;
        let mut fields = PartialFieldSection {
            bytes: fragment.len(),
            ..PartialFieldSection::default()
        };
        self.decode_fragment(&mut fields, &mut fragment, header.ends_headers())?;
        if header.ends_headers() {
            let (ends_stream, dependency) = (header.ends_stream(), payload.dependency);
            return self.on_field_block(header.stream, ends_stream, dependency, fields);
        }
        self.field_block = Some(Box::new(PartialFieldBlock {
            stream: header.stream,
            ends_stream: header.ends_stream(),
            dependency: payload.dependency,
            fields,
            remainder: fragment.to_vec(),
            continuations: 0,
        }));
        Ok(())
    }

    pub(super) fn on_continuation(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), ReceiveError> {
        let Some(mut field_block) = self.field_block.take() else {
            // Checked when the frame began.
            return Ok(());
        };
        field_block.continuations += 1;
        let max = self.limits.max_header_list_size / frame::MIN_MAX_FRAME_SIZE * 5 / 4;
        if field_block.continuations > max.max(MIN_CONTINUATIONS) {
            return Err(SECTION_TOO_LARGE);
        }
        field_block.fields.bytes += payload.len();
        let is_last = header.ends_headers();
        if Bug::ContinuationRestLost.is_planted() {
            field_block.remainder.clear();
        }
        if field_block.remainder.is_empty() {
            let mut fragment = payload;
            self.decode_fragment(&mut field_block.fields, &mut fragment, is_last)?;
            field_block.remainder.extend_from_slice(fragment);
        } else {
            field_block.remainder.extend_from_slice(payload);
            let mut fragment = &field_block.remainder[..];
            self.decode_fragment(&mut field_block.fields, &mut fragment, is_last)?;
            let decoded = field_block.remainder.len() - fragment.len();
            field_block.remainder.drain(..decoded);
        }
        if is_last {
            return self.on_field_block(
                field_block.stream,
                field_block.ends_stream,
                field_block.dependency,
                field_block.fields,
            );
        }
        self.field_block = Some(field_block);
        Ok(())
    }

    /// Processes a complete field block. It was decoded in any state of the stream, because the
    /// dynamic table must stay consistent with the peer's.
    fn on_field_block(
        &mut self,
        id: u32,
        ends_stream: bool,
        dependency: Option<u32>,
        fields: PartialFieldSection,
    ) -> Result<(), ReceiveError> {
        let action = self.flood.record_expansion(fields.excess());
        self.apply(action)?;
        let section = fields.section;
        if self.is_peer_initiated(id) && id > self.last_peer_stream {
            return self.on_request(id, ends_stream, dependency, section);
        }
        if dependency == Some(id) {
            return self.reset_self_dependent(id);
        }
        if self.is_idle(id) {
            let message = "HEADERS on an idle stream";
            return Err(ReceiveError::Protocol(ErrorCode::PROTOCOL_ERROR, message));
        }
        let Some(stream) = self.streams.get(&id) else {
            self.check_frame_on_closed_stream(id)?;
            return self.count_discarded_frame(0);
        };
        match stream.inbound.state {
            _ if stream.failure.is_some() => {
                self.handle_frame_on_failed_stream(id)?;
                self.count_discarded_frame(0)
            }
            MessageState::Headers => self.on_response(id, ends_stream, section),
            MessageState::Body => self.on_trailers(id, ends_stream, section),
            MessageState::Complete => self.raise_stream_error(
                id,
                ErrorCode::STREAM_CLOSED,
                "HEADERS after the end of the message",
            ),
        }
    }

    /// Decodes a fragment of a field block, and leaves the beginning of a field line that the next
    /// fragment continues.
    fn decode_fragment(
        &mut self,
        fields: &mut PartialFieldSection,
        fragment: &mut &[u8],
        is_last: bool,
    ) -> Result<(), ReceiveError> {
        let max_size = self.limits.max_header_list_size as usize;
        let max_fields = match self.role {
            Role::Server => self.limits.max_fields.into(),
            Role::Client => MAX_RESPONSE_FIELDS,
        };
        let PartialFieldSection {
            section,
            progress,
            bytes,
            counted_surplus,
        } = fields;
        let max_expanded_size = MAX_EXPANSION * *bytes + EXPANSION_ALLOWANCE;
        let (before, mut count) = (section.size(), 0);
        let decoded = self
            .decoder
            .decode(progress, fragment, is_last, |field, size| {
                count += 1;
                section.add(field, size, max_size, max_fields);
                if section.size() > max_expanded_size {
                    section.reject(FieldSectionLimit::Size);
                }
                section.size() <= max_size * CLOSE_FACTOR
            });
        self.add_work(count + (section.size() - before) / BYTES_PER_WORK);
        let surplus = surplus_lines(progress.lines, progress.short_literals, *bytes);
        if surplus > *counted_surplus {
            let action = self
                .flood
                .record_field_lines(surplus - *counted_surplus, self.limits.field_lines);
            *counted_surplus = surplus;
            self.apply(action)?;
        }
        match decoded {
            Ok(true) => Ok(()),
            Ok(false) => Err(SECTION_TOO_LARGE),
            Err(error) => Err(ReceiveError::Protocol(
                ErrorCode::COMPRESSION_ERROR,
                error.message(),
            )),
        }
    }

    /// Accepts a stream that the peer opens.
    fn on_request(
        &mut self,
        id: u32,
        ends_stream: bool,
        dependency: Option<u32>,
        section: FieldSection,
    ) -> Result<(), ReceiveError> {
        if self.role == Role::Client {
            let message = "stream opened by a server";
            return Err(ReceiveError::Protocol(ErrorCode::PROTOCOL_ERROR, message));
        }
        self.last_peer_stream = id;
        if matches!(self.goaway, GoAwayState::Final(_)) {
            // The client may not have received the final GOAWAY yet.
            return self.count_discarded_frame(0);
        }
        self.flood.record_opened_stream();
        self.count_received();
        if self.open_peer_streams >= self.limits.max_concurrent_streams {
            return self.refuse_stream(id, ErrorCode::REFUSED_STREAM);
        }
        if dependency == Some(id) {
            return self.refuse_stream(id, ErrorCode::PROTOCOL_ERROR);
        }
        let exceeded_limit = section.exceeded_limit();
        let request = match exceeded_limit {
            None => section.into_request(),
            Some(_) => section
                .into_rejected_request()
                .map(|request| (request, None)),
        };
        let checked = request.and_then(|(request, raw_target)| {
            let length = content_length(request.headers())?;
            match length {
                Some(1..) if ends_stream => Err(MalformedMessage("no body despite Content-Length")),
                _ => Ok((request, raw_target, length)),
            }
        });
        let (request, raw_target, length) = match checked {
            Ok(checked) => checked,
            Err(MalformedMessage(_)) => return self.refuse_stream(id, ErrorCode::PROTOCOL_ERROR),
        };
        let stage = if ends_stream {
            MessageState::Complete
        } else {
            MessageState::Body
        };
        let mut stream = self.new_stream(stage);
        stream.inbound.remaining = length;
        self.streams.insert(id, stream);
        self.open_peer_streams += 1;
        self.accepted.push_back(AcceptedStream {
            id: StreamId(id),
            request,
            raw_target,
            exceeded_limit,
            is_headers_only: ends_stream,
            content_length: length,
        });
        Ok(())
    }

    pub(super) fn new_stream(&self, inbound: MessageState) -> Box<Stream> {
        Box::new(Stream::new(
            inbound,
            ReceiveWindow::new(self.stream_window),
            SendWindow::new(self.peer_settings.initial_window_size),
        ))
    }

    fn on_response(
        &mut self,
        id: u32,
        ends_stream: bool,
        section: FieldSection,
    ) -> Result<(), ReceiveError> {
        let size = section.size();
        let response = match section.exceeded_limit() {
            None => section.into_response(),
            Some(_) => Err(MalformedMessage("header section of a response too large")),
        };
        let checked = response.and_then(|response| {
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                return Err(MalformedMessage("101 Switching Protocols in HTTP/2"));
            }
            let length = content_length(response.headers())?;
            Ok((response, length))
        });
        let (response, length) = match checked {
            Ok(checked) => checked,
            Err(MalformedMessage(message)) => {
                return self.raise_stream_error(id, ErrorCode::PROTOCOL_ERROR, message);
            }
        };
        if response.status().is_informational() {
            return self.on_interim_response(id, ends_stream, response, size);
        }
        self.count_received();
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        let has_no_body = stream.inbound.responds_to_head
            || matches!(
                response.status(),
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            );
        // The Content-Length of a response without content describes another response.
        stream.inbound.remaining = if has_no_body { Some(0) } else { length };
        stream.inbound.response = Some(Box::new(response));
        stream.inbound.state = MessageState::Body;
        stream.inbound.is_headers_only = ends_stream;
        stream.inbound.wake();
        if ends_stream {
            self.complete_inbound(id)
        } else {
            Ok(())
        }
    }

    fn on_interim_response(
        &mut self,
        id: u32,
        ends_stream: bool,
        response: Response<()>,
        size: usize,
    ) -> Result<(), ReceiveError> {
        if ends_stream {
            let message = "END_STREAM on an interim response";
            return self.raise_stream_error(id, ErrorCode::PROTOCOL_ERROR, message);
        }
        let max = self.limits.max_header_list_size as usize;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if !stream.has_reader || Bug::Http2InterimLost.is_planted() {
            return self.count_discarded_frame(0);
        }
        let interims = stream.inbound.interims.get_or_insert_default();
        if !interims.push(response, size, max) {
            let message = "too many interim responses";
            return self.raise_stream_error(id, ErrorCode::ENHANCE_YOUR_CALM, message);
        }
        stream.inbound.wake();
        self.count_received();
        Ok(())
    }

    fn on_trailers(
        &mut self,
        id: u32,
        ends_stream: bool,
        section: FieldSection,
    ) -> Result<(), ReceiveError> {
        let trailers = match section.exceeded_limit() {
            None if ends_stream => section.into_trailers(),
            None => Err(MalformedMessage("trailer section without END_STREAM")),
            Some(_) => Err(MalformedMessage("trailer section too large")),
        };
        match trailers {
            Err(MalformedMessage(message)) => {
                self.raise_stream_error(id, ErrorCode::PROTOCOL_ERROR, message)
            }
            Ok(trailers) => {
                self.count_received();
                if let Some(stream) = self.streams.get_mut(&id)
                    && stream.has_reader
                    && !Bug::Http2TrailerLost.is_planted()
                {
                    stream.inbound.trailers = Some(Box::new(trailers));
                }
                self.complete_inbound(id)
            }
        }
    }

    /// Completes the received message.
    pub(super) fn complete_inbound(&mut self, id: u32) -> Result<(), ReceiveError> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if stream.inbound.remaining.is_some_and(|bytes| bytes > 0) {
            return self.raise_stream_error(
                id,
                ErrorCode::PROTOCOL_ERROR,
                "body shorter than Content-Length",
            );
        }
        stream.inbound.state = MessageState::Complete;
        stream.inbound.wake();
        self.release_closed(id);
        Ok(())
    }
}
