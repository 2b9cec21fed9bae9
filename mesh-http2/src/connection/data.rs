//! DATA frames and the release of flow-control capacity.

use mesh_planted::Bug;

use super::Connection;
use super::receive::{BYTES_PER_WORK, ReadState, ReceiveError};
use crate::error::ErrorCode;
use crate::frame::{self, FrameHeader};
use crate::stream::MessageState;

const FLOW_CONTROL: ErrorCode = ErrorCode::FLOW_CONTROL_ERROR;

impl Connection {
    /// Begins a DATA frame. Returns the number of `bytes` after its header that were processed.
    pub(super) fn begin_data(
        &mut self,
        header: FrameHeader,
        bytes: &[u8],
    ) -> Result<usize, ReceiveError> {
        if self.is_idle(header.stream) {
            let message = "DATA on an idle stream";
            return Err(ReceiveError::Protocol(ErrorCode::PROTOCOL_ERROR, message));
        }
        if self.receive_window.consume(header.length).is_err() {
            let message = "DATA beyond the connection's window";
            return Err(ReceiveError::Protocol(FLOW_CONTROL, message));
        }
        self.send_connection_update();
        self.data_received += u64::from(header.length);
        let is_accepted = match self.streams.get_mut(&header.stream) {
            None => {
                self.check_frame_on_closed_stream(header.stream)?;
                false
            }
            Some(stream) if stream.failure.is_some() => {
                self.handle_frame_on_failed_stream(header.stream)?;
                false
            }
            Some(stream) => match stream.inbound.state {
                MessageState::Body if stream.inbound.window.consume(header.length).is_ok() => {
                    let action = self.flood.record_data(header.length, header.ends_stream());
                    let whole = bytes.get(..header.length as usize);
                    // The fast path for bodies in many small frames.
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
                    self.raise_stream_error(
                        header.stream,
                        FLOW_CONTROL,
                        "DATA beyond the stream's window",
                    )?;
                    false
                }
                MessageState::Headers => {
                    let code = ErrorCode::PROTOCOL_ERROR;
                    self.raise_stream_error(header.stream, code, "DATA before HEADERS")?;
                    false
                }
                MessageState::Complete => {
                    self.raise_stream_error(
                        header.stream,
                        ErrorCode::STREAM_CLOSED,
                        "DATA after the end of the message",
                    )?;
                    false
                }
            },
        };
        if is_accepted {
            self.count_message_frame();
        } else {
            self.count_discarded_frame(header.length)?;
        }
        let stream = is_accepted.then_some(header.stream);
        if header.is_padded() {
            // Padding is rare, so that another copy of the payload is acceptable.
            return self.process_payload(header, bytes);
        }
        let ends_stream = header.ends_stream();
        if header.length == 0 {
            self.receive_data(stream, &[], ends_stream)?;
            return Ok(0);
        }
        let remaining = header.length;
        let is_split = bytes.len() < remaining as usize;
        self.input = ReadState::Data {
            stream,
            remaining,
            ends_stream: ends_stream && !(is_split && Bug::SplitDataLosesEnd.is_planted()),
        };
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
            let message = "padding of DATA exceeds its length";
            return Err(ReceiveError::Protocol(ErrorCode::PROTOCOL_ERROR, message));
        };
        let stream = self.streams.get(&header.stream);
        let is_accepted = stream.is_some_and(|stream| {
            stream.failure.is_none() && stream.inbound.state == MessageState::Body
        });
        let stream = is_accepted.then_some(header.stream);
        let padding = (payload.len() - data.len()) as u32;
        if !Bug::PaddingNotReturned.is_planted() {
            self.release_capacity(stream, padding);
        }
        self.receive_data(stream, data, header.ends_stream())
    }

    /// Processes data that was taken from the windows. `stream` is `None` if it is discarded.
    pub(super) fn receive_data(
        &mut self,
        id: Option<u32>,
        bytes: &[u8],
        ends_stream: bool,
    ) -> Result<(), ReceiveError> {
        let length = bytes.len() as u32;
        // The stream may have been reset since its frame began.
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
                    let message = "body exceeds Content-Length";
                    return self.raise_stream_error(id, ErrorCode::PROTOCOL_ERROR, message);
                }
            }
        }
        if !stream.has_reader {
            // The capacity of the stream's window is not released, so that the peer stops sending.
            self.release_capacity(None, length);
        } else if !bytes.is_empty() {
            stream.inbound.data.push(bytes);
            stream.inbound.wake();
        }
        if ends_stream {
            self.complete_inbound(id)
        } else {
            Ok(())
        }
    }

    /// Releases flow-control capacity of the connection and, while the message is incomplete, of
    /// the stream.
    pub(super) fn release_capacity(&mut self, stream: Option<u32>, bytes: u32) {
        if bytes == 0 {
            return;
        }
        self.receive_window.release(bytes);
        self.send_connection_update();
        if let Some(id) = stream
            && let Some(stream) = self.streams.get_mut(&id)
            && stream.inbound.state == MessageState::Body
            && stream.failure.is_none()
        {
            stream.inbound.window.release(bytes);
            if let Some(increment) = stream.inbound.window.window_update() {
                self.write_window_update(id, increment);
            }
        }
    }

    /// Sends a WINDOW_UPDATE of the connection if one is due.
    pub(super) fn send_connection_update(&mut self) {
        if let Some(increment) = self.receive_window.shared_window_update() {
            self.write_window_update(0, increment);
        }
    }

    pub(super) fn write_window_update(&mut self, id: u32, increment: u32) {
        self.output
            .write(|out| frame::write_u32_frame(out, frame::WINDOW_UPDATE, id, increment));
        self.wake_driver();
    }
}
