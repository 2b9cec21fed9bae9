//! One server stream, kept alive.
//!
//! A stream ends for many reasons, some of them silent. Whoever follows one keeps what it told last
//! and asks again: at once when the stream simply ended or reached one of its limits, after a
//! growing pause when it failed, and after the first pause when it ended as soon as it had begun,
//! as those of a service that is stopping do. So a reader of the followed value never sees a gap,
//! only age.

use std::time::Duration;

use mesh_core::resilience::Backoff;
use prost::Message;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::backoff::Retries;
use super::stream::Answers;
use crate::config::StreamLimits;

/// What a stream tells its follower.
#[derive(Debug)]
pub enum Event<T> {
    Message {
        /// Whether it is the first of its stream, and therefore replaces all that was told before.
        first: bool,
        message: T,
    },
    /// The stream failed or could not be opened. Ends that are expected are not told.
    Failed(Status),
}

/// What the follower wants next. Only looked at after [`Event::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Ask again after a growing pause.
    Retry,
    /// Ask again after this long: the answer was definite, but may change.
    RetryAfter(Duration),
    /// The answer is final.
    Stop,
}

/// How one stream ended.
enum End {
    /// By itself or by one of its limits, after at least one message.
    Expected,
    Failed(Status),
}

/// Follows the stream that `open` opens until `on` says that the answer is final.
pub async fn follow<T, F>(
    limits: StreamLimits,
    backoff: Backoff,
    mut open: impl FnMut() -> F,
    mut on: impl FnMut(Event<T>) -> Then,
) where
    T: Message + Default,
    F: Future<Output = Result<Answers<T>, Status>>,
{
    let mut retries = Retries::new(backoff);
    loop {
        let opened = Instant::now();
        match run_once(&limits, &mut open, &mut on, &mut retries).await {
            End::Expected if opened.elapsed() < backoff.min => {
                tokio::time::sleep(backoff.min).await;
            }
            End::Expected => {}
            End::Failed(status) => match on(Event::Failed(status)) {
                Then::Retry => tokio::time::sleep(retries.next_wait()).await,
                Then::RetryAfter(pause) => tokio::time::sleep(pause).await,
                Then::Stop => return,
            },
        }
    }
}

async fn run_once<T, F>(
    limits: &StreamLimits,
    open: &mut impl FnMut() -> F,
    on: &mut impl FnMut(Event<T>) -> Then,
    retries: &mut Retries,
) -> End
where
    T: Message + Default,
    F: Future<Output = Result<Answers<T>, Status>>,
{
    let opened = Instant::now();
    let first_by = deadline(opened, limits.initial);
    // Boxed, because it is large and soon over, and what is left of this task lives on.
    let mut answers = match timeout_at(first_by, Box::pin(open())).await {
        Ok(Ok(answers)) => answers,
        Ok(Err(status)) => return End::Failed(status),
        Err(_elapsed) => return End::Failed(no_answer(limits.initial)),
    };
    let end_by = deadline(opened, limits.lifetime);
    let mut next_by = first_by;
    let mut first = true;
    loop {
        match timeout_at(next_by.min(end_by), answers.message()).await {
            Ok(Ok(Some(message))) => {
                on(Event::Message { first, message });
                retries.reset();
                first = false;
                next_by = deadline(Instant::now(), limits.idle);
            }
            Ok(Ok(None)) if first => {
                return End::Failed(Status::unavailable("the stream ended without an answer"));
            }
            Err(_elapsed) if first => return End::Failed(no_answer(limits.initial)),
            Ok(Ok(None)) | Err(_) => return End::Expected,
            Ok(Err(status)) => return End::Failed(status),
        }
    }
}

fn no_answer(limit: Option<Duration>) -> Status {
    let limit = limit.unwrap_or_default();
    Status::deadline_exceeded(format!("no answer within {limit:?}"))
}

/// A deadline that `None` puts out of reach.
fn deadline(from: Instant, limit: Option<Duration>) -> Instant {
    const NEVER: Duration = Duration::from_secs(365 * 86_400);
    from + limit.unwrap_or(NEVER)
}
