//! DATA: bodies, and the windows that they take.

use super::Connection;
use super::receive::{BYTES_PER_WORK, ReadState, ReceiveError};
use crate::error::ErrorCode;
use crate::frame::{self, FrameHeader};
use crate::stream::MessageState;

const NO_ROOM: ErrorCode = ErrorCode::FLOW_CONTROL_ERROR;

impl Connection {
    /// DATA begins. Returns how many of the `bytes` behind its header were processed.
    pub(super) fn begin_data(
        &mut self,
        header: FrameHeader,
        bytes: &[u8],
    ) -> Result<usize, ReceiveError> {
        if self.is_idle(header.stream) {
            let what = "DATA on a stream that was never opened";
            return Err(ReceiveError::Protocol(ErrorCode::PROTOCOL_ERROR, what));
        }
        if self.receive_window.consume(header.length).is_err() {
            let what = "more data than the connection's window";
            return Err(ReceiveError::Protocol(NO_ROOM, what));
        }
        self.send_connection_update();
        self.data_received += u64::from(header.length);
        let is_wanted = match self.streams.get_mut(&header.stream) {
            None => {
                self.frame_on_closed_stream(header.stream)?;
                false
            }
            Some(stream) if stream.failure.is_some() => {
                self.frame_on_failed_stream(header.stream)?;
                false
            }
            Some(stream) => match stream.inbound.stage {
                MessageState::Body if stream.inbound.window.consume(header.length).is_ok() => {
                    let action = self
                        .flood
                        .received_data(header.length, header.ends_stream());
                    let whole = bytes.get(..header.length as usize);
                    // Small frames of a long body, of which there may be many.
                    if let Some(data) = whole
                        && let (1.., false) =
                            (data.len(), header.is_padded() || header.ends_stream())
                        && stream.has_reader
                        && stream.inbound.remaining.is_none()
                    {
                        stream.inbound.data.push(data);
                        stream.inbound.wake();
                        self.count_message_frame();
                        self.add_work(data.len() / BYTES_PER_WORK);
                        self.apply(action)?;
                        return Ok(data.len());
                    }
                    self.apply(action)?;
                    true
                }
                MessageState::Body => {
                    self.stream_error(
                        header.stream,
                        NO_ROOM,
                        "more data than the stream's window",
                    )?;
                    false
                }
                MessageState::Headers => {
                    let reason = ErrorCode::PROTOCOL_ERROR;
                    self.stream_error(header.stream, reason, "DATA before HEADERS")?;
                    false
                }
                MessageState::Complete => {
                    self.stream_error(
                        header.stream,
                        ErrorCode::STREAM_CLOSED,
                        "DATA behind the end",
                    )?;
                    false
                }
            },
        };
        match is_wanted {
            true => self.count_message_frame(),
            false => self.frame_discarded(header.length)?,
        }
        let stream = is_wanted.then_some(header.stream);
        if header.is_padded() {
            // Rare, and so it may be copied once more.
            return self.process_payload(header, bytes);
        }
        let ends = header.ends_stream();
        if header.length == 0 {
            self.receive_data(stream, &[], ends)?;
            return Ok(0);
        }
        let left = header.length;
        self.input = ReadState::Data { stream, left, ends };
        Ok(0)
    }

    pub(super) fn on_padded_data(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), ReceiveError> {
        let padding = payload.first().map(|length| 1 + usize::from(*length));
        let data = padding.and_then(|padding| {
            let end = (payload.len() + 1).checked_sub(padding)?;
            payload.get(1..end)
        });
        let Some(data) = data else {
            let what = "the padding of DATA is longer than it is";
            return Err(ReceiveError::Protocol(ErrorCode::PROTOCOL_ERROR, what));
        };
        let stream = self.streams.get(&header.stream);
        let is_wanted = stream.is_some_and(|stream| {
            stream.failure.is_none() && stream.inbound.stage == MessageState::Body
        });
        let stream = is_wanted.then_some(header.stream);
        let padding = (payload.len() - data.len()) as u32;
        self.release_capacity(stream, padding);
        self.receive_data(stream, data, header.ends_stream())
    }

    /// A piece of data whose windows are taken. `stream` is none when nobody wants it.
    pub(super) fn receive_data(
        &mut self,
        id: Option<u32>,
        bytes: &[u8],
        ends: bool,
    ) -> Result<(), ReceiveError> {
        let length = bytes.len() as u32;
        // It may have been reset since its frame began.
        let stream = id.and_then(|id| self.streams.get_mut(&id));
        let (Some(stream), Some(id)) = (stream.filter(|stream| stream.failure.is_none()), id)
        else {
            self.release_capacity(None, length);
            return Ok(());
        };
        if let Some(remaining) = &mut stream.inbound.remaining {
            match remaining.checked_sub(length.into()) {
                Some(left) => *remaining = left,
                None => {
                    self.release_capacity(None, length);
                    let what = "the body is longer than its header allows";
                    return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, what);
                }
            }
        }
        if !stream.has_reader {
            // Its own window is not given back, so that no more comes than that.
            self.release_capacity(None, length);
        } else if !bytes.is_empty() {
            stream.inbound.data.push(bytes);
            stream.inbound.wake();
        }
        match ends {
            true => self.end_inbound(id),
            false => Ok(()),
        }
    }

    /// Gives room in the windows back. The stream's only matters while more may come.
    pub(super) fn release_capacity(&mut self, stream: Option<u32>, bytes: u32) {
        if bytes == 0 {
            return;
        }
        self.receive_window.release(bytes);
        self.send_connection_update();
        if let Some(id) = stream
            && let Some(stream) = self.streams.get_mut(&id)
            && stream.inbound.stage == MessageState::Body
            && stream.failure.is_none()
        {
            stream.inbound.window.release(bytes);
            if let Some(more) = stream.inbound.window.window_update() {
                self.write_window_update(id, more);
            }
        }
    }

    /// Tells the other side of free room in the window of the connection.
    pub(super) fn send_connection_update(&mut self) {
        if let Some(more) = self.receive_window.shared_window_update() {
            self.write_window_update(0, more);
        }
    }

    fn write_window_update(&mut self, id: u32, increment: u32) {
        self.output
            .write(|out| frame::write_u32_frame(out, frame::WINDOW_UPDATE, id, increment));
        self.wake_driver();
    }
}
