//! Reopens a server stream whenever it ends.
//!
//! The receiver keeps the last message while the stream is reopened: immediately if the stream
//! ended normally or reached a limit, after a growing back-off if it failed, and after the minimum
//! back-off if it ended right after it was opened, as streams of a terminating service do. The
//! received value may thus be stale, but is never absent.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use mesh_core::resilience::Backoff;
use mesh_planted::Bug;
use prost::Message;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::backoff::Retries;
use super::stream::ResponseStream;
use crate::config::StreamLimits;

/// An event of a followed stream.
#[derive(Debug)]
pub(crate) enum Event<T> {
    Message {
        /// Whether it is the first message of its stream, and therefore replaces all earlier
        /// messages.
        first: bool,
        message: T,
    },
    /// The stream failed or could not be opened. Not reported for streams that end as expected.
    Failed(Status),
}

/// Whether to reopen a stream. Applies only after [`Event::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    /// Reopen after a growing back-off.
    Retry,
    /// Reopen after this time: the status is definite, but may change.
    RetryAfter(Duration),
}

/// How one stream ended.
enum StreamEnd {
    /// The stream ended normally or reached a limit, after at least one message.
    Expected,
    Failed(Status),
}

/// Passes the events of the stream that `open` opens to `on_event`, and reopens the stream whenever
/// it ends. Never returns.
pub(crate) async fn follow<T, B, F>(
    limits: StreamLimits,
    backoff: Backoff,
    mut open: impl FnMut() -> F,
    mut on_event: impl FnMut(Event<T>) -> RetryDecision,
) where
    T: Message + Default,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Error + Send + Sync + 'static,
    F: Future<Output = Result<ResponseStream<T, B>, Status>>,
{
    let mut retries = Retries::new(backoff);
    loop {
        let opened = Instant::now();
        match run_once(&limits, &mut open, &mut on_event, &mut retries).await {
            StreamEnd::Expected if opened.elapsed() < backoff.min => {
                tokio::time::sleep(backoff.min).await;
            }
            StreamEnd::Expected => {}
            StreamEnd::Failed(status) => match on_event(Event::Failed(status)) {
                RetryDecision::Retry => tokio::time::sleep(retries.next_wait()).await,
                RetryDecision::RetryAfter(pause) => tokio::time::sleep(pause).await,
            },
        }
    }
}

async fn run_once<T, B, F>(
    limits: &StreamLimits,
    open: &mut impl FnMut() -> F,
    on_event: &mut impl FnMut(Event<T>) -> RetryDecision,
    retries: &mut Retries,
) -> StreamEnd
where
    T: Message + Default,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Error + Send + Sync + 'static,
    F: Future<Output = Result<ResponseStream<T, B>, Status>>,
{
    let opened = Instant::now();
    let first_by = deadline(opened, limits.initial);
    // Boxed, because the future is large and short-lived, while this task is long-lived.
    let mut responses = match timeout_at(first_by, Box::pin(open())).await {
        Ok(Ok(responses)) => responses,
        Ok(Err(status)) => return StreamEnd::Failed(status),
        Err(_elapsed) => return StreamEnd::Failed(no_response(limits.initial)),
    };
    let end_by = deadline(opened, limits.lifetime);
    let mut next_by = first_by;
    let mut first = true;
    loop {
        match timeout_at(next_by.min(end_by), responses.message()).await {
            Ok(Ok(Some(_))) if !first && Bug::MissedEvent.strikes_once() => {}
            Ok(Ok(Some(message))) => {
                on_event(Event::Message { first, message });
                retries.reset();
                first = false;
                next_by = deadline(Instant::now(), limits.idle);
            }
            Ok(Ok(None)) if first => {
                return StreamEnd::Failed(Status::unavailable(
                    "the stream ended without a message",
                ));
            }
            Err(_elapsed) if first => return StreamEnd::Failed(no_response(limits.initial)),
            Ok(Ok(None)) | Err(_) => return StreamEnd::Expected,
            Ok(Err(status)) => return StreamEnd::Failed(status),
        }
    }
}

fn no_response(limit: Option<Duration>) -> Status {
    let limit = limit.unwrap_or_default();
    Status::deadline_exceeded(format!("no response within {limit:?}"))
}

/// Returns the deadline of a limit; without a limit, one that is never reached.
fn deadline(from: Instant, limit: Option<Duration>) -> Instant {
    const NEVER: Duration = Duration::from_secs(365 * 86_400);
    from + limit.unwrap_or(NEVER)
}
