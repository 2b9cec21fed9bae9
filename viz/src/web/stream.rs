//! Server-sent events: the responses to several questions in one stream, whenever one changes.
//!
//! Each message is an `update` whose data is a JSON object: `query`, the index of the question in
//! the request, `status` and `body`, the response of the JSON API. A stream has the last response
//! of each question only, so that a slow viewer skips responses instead of queueing them.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::Stream;
use futures_util::stream::{BoxStream, SelectAll, StreamExt as _, select_all, unfold};
use hyper::body::{Bytes, Frame};
use mesh_runtime::drain;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::feed::{Answer, AnswerRx};

/// The responses to a page's questions.
pub(crate) struct Updates {
    answers: SelectAll<BoxStream<'static, (usize, Arc<Answer>)>>,
    heartbeat: Interval,
    drain: drain::Watch,
    compressor: Option<GzEncoder<Vec<u8>>>,
    /// Whether the first part has been sent.
    is_open: bool,
    _permit: OwnedSemaphorePermit,
}

/// Whether the client accepts compressed parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compresses {
    Gzip,
    Nothing,
}

/// The questions of one stream.
pub(crate) const MAX_QUERIES: usize = 16;

/// The interval of comments. They make proxies in between keep an idle stream open, and show
/// whether the viewer has gone.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Sent first: a browser reconnects after 2,000 ms.
const OPENING: &str = "retry: 2000\n\n";

impl Updates {
    pub(crate) fn new(
        answers: Vec<AnswerRx>,
        drain: drain::Watch,
        permit: OwnedSemaphorePermit,
        compresses: Compresses,
    ) -> Self {
        let answers = answers.into_iter().enumerate();
        let answers = answers.map(|(index, answers)| changes(index, answers).boxed());
        let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            answers: select_all(answers),
            heartbeat,
            drain,
            compressor: match compresses {
                Compresses::Gzip => Some(GzEncoder::new(Vec::new(), Compression::fast())),
                Compresses::Nothing => None,
            },
            is_open: false,
            _permit: permit,
        }
    }

    /// Returns the stream as parts of a body.
    pub(crate) fn frames(self) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
        unfold(self, async |mut updates| {
            let text = updates.next().await?;
            let bytes = updates.encode(text)?;
            Some((Ok(Frame::data(bytes)), updates))
        })
    }

    /// Returns the next part; `None` when the process stops.
    async fn next(&mut self) -> Option<String> {
        if !self.is_open {
            self.is_open = true;
            return Some(OPENING.to_owned());
        }
        tokio::select! {
            answer = self.answers.next() => {
                let (index, answer) = answer?;
                Some(message(index, &answer))
            }
            _ = self.heartbeat.tick() => Some(": alive\n\n".to_owned()),
            () = self.drain.draining() => None,
        }
    }

    fn encode(&mut self, text: String) -> Option<Bytes> {
        let Some(compressor) = &mut self.compressor else {
            return Some(text.into());
        };
        // Writing to a vector does not fail.
        compressor.write_all(text.as_bytes()).ok()?;
        compressor.flush().ok()?;
        Some(std::mem::take(compressor.get_mut()).into())
    }
}

/// Returns the current response, and each different one.
fn changes(index: usize, mut answers: AnswerRx) -> impl Stream<Item = (usize, Arc<Answer>)> + Send {
    answers.mark_changed();
    unfold(answers, move |mut answers| async move {
        loop {
            answers.changed().await.ok()?;
            let answer = answers.borrow_and_update().clone();
            if let Some(answer) = answer {
                return Some(((index, answer), answers));
            }
        }
    })
}

fn message(index: usize, answer: &Answer) -> String {
    // JSON in one line, so that it is one line of data.
    let body = String::from_utf8_lossy(&answer.body);
    let status = answer.status.as_u16();
    format!("event: update\ndata: {{\"query\":{index},\"status\":{status},\"body\":{body}}}\n\n")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::MultiGzDecoder;
    use tokio::sync::{Semaphore, watch};

    use super::*;

    async fn updates(receivers: Vec<AnswerRx>, compresses: Compresses) -> (Updates, drain::Drain) {
        let (drain, watch) = drain::channel();
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        (Updates::new(receivers, watch, permit, compresses), drain)
    }

    fn answer(number: u64) -> Option<Arc<Answer>> {
        Some(Arc::new(Answer::ok(&number.into())))
    }

    #[tokio::test]
    async fn slow_viewer_gets_the_last_responses_only() {
        let (first, first_rx) = watch::channel(answer(1));
        let (second, second_rx) = watch::channel(None);
        let (updates, _drain) = updates(vec![first_rx, second_rx], Compresses::Nothing).await;
        let mut frames = Box::pin(updates.frames());
        let mut next = async || {
            let frame = frames.next().await.unwrap().unwrap();
            String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
        };
        assert_eq!(next().await, OPENING);
        assert_eq!(
            next().await,
            "event: update\ndata: {\"query\":0,\"status\":200,\"body\":1}\n\n"
        );
        for number in 2..100 {
            first.send_replace(answer(number));
        }
        assert!(
            next()
                .await
                .contains("\"query\":0,\"status\":200,\"body\":99")
        );
        second.send_replace(answer(7));
        assert!(
            next()
                .await
                .contains("\"query\":1,\"status\":200,\"body\":7")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn idle_stream_has_heartbeats_and_ends_on_shutdown() {
        let (_sender, receiver) = watch::channel(None);
        let (mut updates, drain) = updates(vec![receiver], Compresses::Nothing).await;
        assert_eq!(updates.next().await.as_deref(), Some(OPENING));
        assert_eq!(updates.next().await.as_deref(), Some(": alive\n\n"));
        assert_eq!(updates.next().await.as_deref(), Some(": alive\n\n"));
        tokio::spawn(drain.drain(Duration::ZERO));
        assert_eq!(updates.next().await, None);
    }

    #[tokio::test]
    async fn compressed_parts_can_be_read_one_by_one() {
        let (_sender, receiver) = watch::channel(answer(5));
        let (updates, _drain) = updates(vec![receiver], Compresses::Gzip).await;
        let mut frames = Box::pin(updates.frames());
        let mut sent = Vec::new();
        for expected in [OPENING, "\"body\":5"] {
            let frame = frames.next().await.unwrap().unwrap();
            sent.extend_from_slice(&frame.into_data().unwrap());
            let mut text = vec![0; 1_000];
            let mut decoder = MultiGzDecoder::new(&sent[..]);
            let mut read = 0;
            // The end of the compressed data is missing, which is an error after the text.
            while let Ok(n @ 1..) = decoder.read(&mut text[read..]) {
                read += n;
            }
            let text = String::from_utf8_lossy(&text[..read]).into_owned();
            assert!(text.contains(expected), "{text:?}");
        }
    }
}
