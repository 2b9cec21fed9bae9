//! What the server sent: frames that are right by themselves, and the responses in them.

use std::collections::BTreeMap;

use super::frames::Script;
use crate::wire::{
    self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, MAX_FRAME,
    PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};

/// How far a response has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Head,
    Over,
    Reset,
}

pub(super) struct Received {
    streams: BTreeMap<u32, Stage>,
    goaway: bool,
}

impl Received {
    /// Reads all frames, and complains about those that a server must not send.
    pub(super) fn of(bytes: &[u8], script: &Script) -> Self {
        let mut received = Self {
            streams: BTreeMap::new(),
            goaway: false,
        };
        for (n, frame) in wire::read(bytes).enumerate() {
            let length = frame.payload.len();
            assert!(
                length <= MAX_FRAME || !script.is_orderly,
                "a frame of {length} bytes"
            );
            assert!(
                n > 0 || (frame.kind, frame.flags & ACK) == (SETTINGS, 0),
                "the first frame is {frame:?}"
            );
            received.frame(frame);
        }
        received
    }

    fn frame(&mut self, frame: Frame<'_>) {
        let Frame {
            kind,
            flags,
            stream,
            payload,
        } = frame;
        let is_of_the_connection = matches!(kind, SETTINGS | PING | GOAWAY);
        assert!(
            kind == WINDOW_UPDATE || (stream == 0) == is_of_the_connection,
            "frame {kind} on stream {stream}"
        );
        // A client that uses the server's streams may be told so.
        if matches!(kind, HEADERS | DATA) {
            assert!(stream % 2 == 1, "frame {kind} on a stream of the server's");
        }
        let is_over = matches!(self.streams.get(&stream), Some(Stage::Over | Stage::Reset));
        match kind {
            HEADERS => {
                assert!(!is_over, "a head on stream {stream}, which is over");
                assert!(flags & END_HEADERS != 0, "our heads are short");
                self.advance(stream, flags);
            }
            DATA => {
                assert_eq!(
                    self.streams.get(&stream),
                    Some(&Stage::Head),
                    "data on stream {stream}"
                );
                self.advance(stream, flags);
            }
            RST_STREAM => {
                assert_eq!(payload.len(), 4);
                self.streams.insert(stream, Stage::Reset);
            }
            SETTINGS => {
                let is_empty = flags & ACK == 0 || payload.is_empty();
                assert!(payload.len().is_multiple_of(6) && is_empty);
            }
            PING => assert_eq!(payload.len(), 8),
            GOAWAY => {
                assert!(payload.len() >= 8);
                self.goaway = true;
            }
            WINDOW_UPDATE => assert!(payload.len() == 4 && payload != [0; 4]),
            CONTINUATION => panic!("our heads are short"),
            other => panic!("a frame of type {other}"),
        }
    }

    fn advance(&mut self, stream: u32, flags: u8) {
        let stage = match flags & END_STREAM {
            0 => Stage::Head,
            _ => Stage::Over,
        };
        self.streams.insert(stream, stage);
    }

    /// Nobody who is orderly is sent away.
    pub(super) fn assert_all_answered(&self, script: &Script) {
        for stream in &script.complete {
            let stage = self.streams.get(stream);
            assert!(
                matches!(stage, Some(Stage::Over | Stage::Reset)),
                "stream {stream} is {stage:?}"
            );
            // A reset may follow a response to a request that was not read.
            assert!(
                stage == Some(&Stage::Over) || !self.goaway,
                "stream {stream} was reset"
            );
        }
    }
}
