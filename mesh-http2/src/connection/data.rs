//! DATA: bodies, and the windows that they take.

use super::Connection;
use super::receive::{BYTES_OF_WORK, Fault, Input};
use crate::error::Reason;
use crate::frame::{self, Head};
use crate::stream::Stage;

const NO_ROOM: Reason = Reason::FLOW_CONTROL_ERROR;

impl Connection {
    /// DATA begins. Returns how many of the `bytes` behind its header were processed.
    pub(super) fn begin_data(&mut self, head: Head, bytes: &[u8]) -> Result<usize, Fault> {
        if self.is_idle(head.stream) {
            let what = "DATA on a stream that was never opened";
            return Err(Fault::Protocol(Reason::PROTOCOL_ERROR, what));
        }
        if self.receiving.take(head.length).is_err() {
            let what = "more data than the connection's window";
            return Err(Fault::Protocol(NO_ROOM, what));
        }
        self.update_window();
        self.data += u64::from(head.length);
        let is_wanted = match self.streams.get_mut(&head.stream) {
            None => {
                self.on_closed(head.stream)?;
                false
            }
            Some(stream) if stream.failure.is_some() => {
                self.on_failed(head.stream)?;
                false
            }
            Some(stream) => match stream.inbound.stage {
                Stage::Body if stream.inbound.window.take(head.length).is_ok() => {
                    let verdict = self.account.data(head.length, head.ends_stream());
                    let whole = bytes.get(..head.length as usize);
                    // Small frames of a long body, of which there may be many.
                    if let Some(data) = whole
                        && let (1.., false) = (data.len(), head.is_padded() || head.ends_stream())
                        && stream.is_read
                        && stream.inbound.remaining.is_none()
                    {
                        stream.inbound.data.push(data);
                        stream.inbound.wake();
                        self.count_message();
                        self.worked(data.len() / BYTES_OF_WORK);
                        self.obey(verdict)?;
                        return Ok(data.len());
                    }
                    self.obey(verdict)?;
                    true
                }
                Stage::Body => {
                    self.refuse(head.stream, NO_ROOM, "more data than the stream's window")?;
                    false
                }
                Stage::Head => {
                    let reason = Reason::PROTOCOL_ERROR;
                    self.refuse(head.stream, reason, "DATA before HEADERS")?;
                    false
                }
                Stage::Over => {
                    self.refuse(head.stream, Reason::STREAM_CLOSED, "DATA behind the end")?;
                    false
                }
            },
        };
        match is_wanted {
            true => self.count_message(),
            false => self.on_discarded(head.length)?,
        }
        let stream = is_wanted.then_some(head.stream);
        if head.is_padded() {
            // Rare, and so it may be copied once more.
            return self.payload(head, bytes);
        }
        let ends = head.ends_stream();
        if head.length == 0 {
            self.take_data(stream, &[], ends)?;
            return Ok(0);
        }
        let left = head.length;
        self.input = Input::Data { stream, left, ends };
        Ok(0)
    }

    pub(super) fn padded_data(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        let padding = payload.first().map(|length| 1 + usize::from(*length));
        let data = padding.and_then(|padding| {
            let end = (payload.len() + 1).checked_sub(padding)?;
            payload.get(1..end)
        });
        let Some(data) = data else {
            let what = "the padding of DATA is longer than it is";
            return Err(Fault::Protocol(Reason::PROTOCOL_ERROR, what));
        };
        let stream = self.streams.get(&head.stream);
        let is_wanted = stream
            .is_some_and(|stream| stream.failure.is_none() && stream.inbound.stage == Stage::Body);
        let stream = is_wanted.then_some(head.stream);
        let padding = (payload.len() - data.len()) as u32;
        self.free(stream, padding);
        self.take_data(stream, data, head.ends_stream())
    }

    /// A piece of data whose windows are taken. `stream` is none when nobody wants it.
    pub(super) fn take_data(
        &mut self,
        id: Option<u32>,
        bytes: &[u8],
        ends: bool,
    ) -> Result<(), Fault> {
        let length = bytes.len() as u32;
        // It may have been reset since its frame began.
        let stream = id.and_then(|id| self.streams.get_mut(&id));
        let (Some(stream), Some(id)) = (stream.filter(|stream| stream.failure.is_none()), id)
        else {
            self.free(None, length);
            return Ok(());
        };
        if let Some(remaining) = &mut stream.inbound.remaining {
            match remaining.checked_sub(length.into()) {
                Some(left) => *remaining = left,
                None => {
                    self.free(None, length);
                    let what = "the body is longer than its head allows";
                    return self.refuse(id, Reason::PROTOCOL_ERROR, what);
                }
            }
        }
        if !stream.is_read {
            // Its own window is not given back, so that no more comes than that.
            self.free(None, length);
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
    pub(super) fn free(&mut self, stream: Option<u32>, bytes: u32) {
        if bytes == 0 {
            return;
        }
        self.receiving.free(bytes);
        self.update_window();
        if let Some(id) = stream
            && let Some(stream) = self.streams.get_mut(&id)
            && stream.inbound.stage == Stage::Body
            && stream.failure.is_none()
        {
            stream.inbound.window.free(bytes);
            if let Some(more) = stream.inbound.window.update() {
                self.write_update(id, more);
            }
        }
    }

    /// Tells the other side of free room in the window of the connection.
    pub(super) fn update_window(&mut self) {
        if let Some(more) = self.receiving.shared_update() {
            self.write_update(0, more);
        }
    }

    fn write_update(&mut self, id: u32, increment: u32) {
        self.output
            .write(|out| frame::write_number(out, frame::WINDOW_UPDATE, id, increment));
        self.wake_driver();
    }
}
