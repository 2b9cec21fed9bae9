//! What the server sent: frames that are right by themselves, and the responses in them.

use std::collections::BTreeMap;

use super::frames::Script;
use crate::wire::{self, DATA, END_STREAM, Frame, GOAWAY, HEADERS, RST_STREAM};

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
        for frame in wire::read_ours(bytes, script.is_orderly) {
            received.frame(frame);
        }
        received
    }

    fn frame(&mut self, frame: Frame<'_>) {
        let Frame {
            kind,
            flags,
            stream,
            ..
        } = frame;
        // A client that uses the server's streams may be told so.
        if matches!(kind, HEADERS | DATA) {
            assert!(stream % 2 == 1, "frame {kind} on a stream of the server's");
        }
        let is_over = matches!(self.streams.get(&stream), Some(Stage::Over | Stage::Reset));
        match kind {
            HEADERS => {
                assert!(!is_over, "a head on stream {stream}, which is over");
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
                self.streams.insert(stream, Stage::Reset);
            }
            GOAWAY => self.goaway = true,
            _ => {}
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
