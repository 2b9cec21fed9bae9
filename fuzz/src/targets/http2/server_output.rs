//! The server's output: checks its frames and extracts the responses.

use std::collections::BTreeMap;

use super::frames::Script;
use crate::frame::{self, DATA, END_STREAM, Frame, GOAWAY, HEADERS, RST_STREAM};

/// The state of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    Headers,
    Complete,
    Reset,
}

pub(super) struct ServerOutput {
    streams: BTreeMap<u32, StreamState>,
    has_goaway: bool,
}

impl ServerOutput {
    /// Parses all frames and panics at one that a server must not send.
    pub(super) fn parse(bytes: &[u8], script: &Script) -> Self {
        let mut output = Self {
            streams: BTreeMap::new(),
            has_goaway: false,
        };
        for frame in frame::read_checked(bytes, script.is_orderly) {
            output.receive(frame);
        }
        output
    }

    fn receive(&mut self, frame: Frame<'_>) {
        let Frame {
            kind,
            flags,
            stream,
            ..
        } = frame;
        // Other frames may report that the client uses a stream of the server.
        if matches!(kind, HEADERS | DATA) {
            assert!(stream % 2 == 1, "frame {kind} on a server-initiated stream");
        }
        let state = self.streams.get(&stream);
        let is_closed = matches!(state, Some(StreamState::Complete | StreamState::Reset));
        match kind {
            HEADERS => {
                assert!(!is_closed, "headers on closed stream {stream}");
                self.advance(stream, flags);
            }
            DATA => {
                assert_eq!(
                    state,
                    Some(&StreamState::Headers),
                    "data on stream {stream}"
                );
                self.advance(stream, flags);
            }
            RST_STREAM => {
                self.streams.insert(stream, StreamState::Reset);
            }
            GOAWAY => self.has_goaway = true,
            _ => {}
        }
    }

    fn advance(&mut self, stream: u32, flags: u8) {
        let state = match flags & END_STREAM {
            0 => StreamState::Headers,
            _ => StreamState::Complete,
        };
        self.streams.insert(stream, state);
    }

    /// Panics if a complete request of an orderly client has no response.
    pub(super) fn assert_all_complete(&self, script: &Script) {
        for stream in &script.complete {
            let state = self.streams.get(stream);
            let is_closed = matches!(state, Some(StreamState::Complete | StreamState::Reset));
            assert!(is_closed, "stream {stream} is {state:?}");
            // A reset may follow the response to a request whose body was not read.
            let is_complete = state == Some(&StreamState::Complete);
            assert!(is_complete || !self.has_goaway, "stream {stream} was reset");
        }
    }
}
