//! The extension frame CLIENT_CLOSED: a proxy passes on that the HTTP/1 client of a request has
//! closed its sending direction, which HTTP/2 cannot say. The request stays valid, and the server
//! may respond. Decision: ADR 0171.
//!
//! A server of this implementation announces in its SETTINGS that it accepts the frame. Unknown
//! settings and frames are ignored by all others (RFC 9113, section 5.5).

use super::{Connection, Role};
use crate::frame::{self, FrameHeader};
use crate::stream::{Stream, StreamId};

impl Connection {
    /// Tells the server that the client of a request has closed its sending direction. Does nothing
    /// if the server does not accept it, the stream is closed, or it was told before. Waits for the
    /// server's SETTINGS if necessary.
    pub fn send_client_closed(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return;
        };
        if self.role == Role::Client
            && !stream.is_closed()
            && !std::mem::replace(&mut stream.is_client_closed, true)
            && self.peer_settings.accepts_client_closed
        {
            self.write_client_closed(id.0);
            self.wake_driver();
        }
    }

    /// Sends the frames that were to be sent before the server's SETTINGS arrived.
    pub(super) fn send_delayed_client_closed(&mut self) {
        self.add_work(self.streams.len());
        let is_due = |stream: &Stream| stream.is_client_closed && !stream.is_closed();
        let due = self.streams.iter().filter(|(_, stream)| is_due(stream));
        let mut ids: Vec<u32> = due.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        for id in ids {
            self.write_client_closed(id);
        }
    }

    fn write_client_closed(&mut self, id: u32) {
        let header = FrameHeader {
            length: 0,
            kind: frame::CLIENT_CLOSED,
            flags: 0,
            stream: id,
        };
        self.output.write(|out| header.write(out));
    }

    /// Applies CLIENT_CLOSED. It is ignored, as an unknown frame is, where it has no meaning.
    pub(super) fn on_client_closed(&mut self, header: FrameHeader) {
        if self.role == Role::Server
            && let Some(stream) = self.streams.get_mut(&header.stream)
            && !stream.is_closed()
            && !std::mem::replace(&mut stream.is_client_closed, true)
        {
            self.client_closed.push(header.stream);
        }
    }

    /// Returns the next stream whose client has closed its sending direction.
    pub fn next_client_closed(&mut self) -> Option<StreamId> {
        self.client_closed.pop().map(StreamId)
    }

    /// Whether the client of the request has closed its sending direction.
    pub fn is_client_closed(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id.0);
        stream.is_some_and(|stream| stream.is_client_closed)
    }
}
