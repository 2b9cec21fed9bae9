//! Sends a request as often as its retry policy allows, each time to a backend of its rule.
//!
//! Only requests with a policy come here. [`RetryPolicy::decide`] decides; this module makes each
//! attempt from the [`Original`], and examines responses before the client sees anything of them.

use std::sync::Arc;

use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use tokio::time::{Instant, sleep};

use super::backend::{BackendResponse, Delivery, EarlierAttempts};
use super::outcome;
use super::routes::Rule;
use crate::error::Error;
use crate::http::body::{BodyEnd, ReplayBody};
use crate::http::request_head::RequestHeadCopy;
use crate::http::{Request, Response, grpc};
use crate::limits::replay_memory::ReplayMemory;
use crate::retry::{AttemptEnd, AttemptLimit, PolicyAction, RetryBudget, RetryPolicy};
use crate::telemetry::http::grpc_status;

/// Most of a response that is read in order to keep its connection, if it is not forwarded.
const MAX_DISCARDED: usize = 64 * 1024;

/// The request as its rule has left it. Nothing changes it: an attempt gets a copy of its head, and
/// a body that reads the client's.
struct Original {
    head: RequestHeadCopy,
    body: ReplayBody,
}

/// Sends `request` until `policy` returns a result.
pub(super) async fn send(
    rule: &Rule,
    policy: &RetryPolicy,
    memory: &Arc<ReplayMemory>,
    request: &mut Request,
    delivery: &Delivery,
) -> Result<BackendResponse, Error> {
    let original = Original::of(request, policy, memory);
    let body = &original.body;
    let mut earlier = EarlierAttempts::default();
    let reads_trailers =
        policy.conditions.depend_on_grpc() && grpc::is_grpc(request.version(), request.headers());
    if let Some(budget) = &policy.budget {
        budget.deposit(Instant::now());
    }
    let mut retries = 0;
    let mut last_error = None;
    loop {
        let backend = match rule.backends.choose() {
            Ok(backend) => backend,
            // The reason why the rule has no backend left.
            Err(error) => return Err(last_error.unwrap_or(error)),
        };
        let limit = policy
            .timeout
            .filter(|_| retries < policy.max_retries)
            .map(|limit| AttemptLimit::new(limit, body.clone()));
        let sending = backend.send(request, delivery, &mut earlier, limit.as_ref());
        let mut sent = sending.await;
        let end = match &mut sent {
            Ok(sent) => examine(&mut sent.response, reads_trailers, body.is_complete()).await,
            Err(error) => AttemptEnd::from(&error.kind),
        };
        let withdraw = |budget: &RetryBudget| budget.withdraw(Instant::now());
        let action = policy.decide(end, retries, body.is_kept(), withdraw);
        if let Some(metrics) = &rule.retry_metrics {
            let counter = match action {
                PolicyAction::Return if retries > 0 && sent.is_ok() => metrics.successes.as_ref(),
                PolicyAction::Return => None,
                PolicyAction::Retry => Some(&metrics.requests),
                PolicyAction::LimitExceeded => metrics.limit_exceeded.as_ref(),
                PolicyAction::NotKept => metrics.overflow.as_ref(),
                PolicyAction::OverBudget => metrics.no_budget.as_ref(),
            };
            if let Some(counter) = counter {
                counter.inc();
            }
        }
        // Before the pause: the rest that the attempt would still read could exceed the limit on
        // kept bytes.
        if action != PolicyAction::Retry || !original.begin_attempt(request) {
            return sent;
        }
        match sent {
            Ok(sent) => discard(sent),
            Err(error) => last_error = Some(error),
        }
        if let Some(backoff) = &policy.backoff {
            sleep(backoff.pause(retries.into(), rand::random())).await;
        }
        retries += 1;
    }
}

impl Original {
    /// Makes the first attempt of `request`, and keeps what others need.
    fn of(request: &mut Request, policy: &RetryPolicy, memory: &Arc<ReplayMemory>) -> Self {
        let body = std::mem::take(request.body_mut());
        let body = ReplayBody::new(body, policy.max_request_bytes, memory);
        *request.body_mut() = body.next_attempt().unwrap_or_default();
        Self {
            head: RequestHeadCopy::of(request),
            body,
        }
    }

    /// Supersedes the attempt before, and makes `request` another one. Returns false if the body
    /// cannot be sent again.
    fn begin_attempt(&self, request: &mut Request) -> bool {
        let Some(body) = self.body.next_attempt() else {
            return false;
        };
        *request = self.head.request(body);
        true
    }
}

/// Returns how an attempt ended that has a response. With `reads_trailers`, the response is read
/// ahead; a client that is still sending may be waiting for the headers, so that nothing is waited
/// for unless the request `is_complete`.
async fn examine(response: &mut Response, reads_trailers: bool, is_complete: bool) -> AttemptEnd {
    let mut grpc_code = None;
    if reads_trailers {
        grpc_code = grpc_status(response.headers());
        if grpc_code.is_none() {
            let trailers = response.body_mut().peek_trailers(is_complete).await;
            grpc_code = trailers.as_ref().and_then(grpc_status);
        }
    }
    AttemptEnd::Response {
        status: response.status(),
        grpc_code,
    }
}

/// Ends a response that is not forwarded. Its arrived part is read, so that the connection is
/// reused or the stream needs no reset; nothing waits for the rest.
fn discard(sent: BackendResponse) {
    let BackendResponse {
        response,
        mut attempt,
        picked,
        ..
    } = sent;
    let mut body = response.into_body();
    let mut read = 0;
    let mut trailers = None;
    while read <= MAX_DISCARDED
        && let Some(Some(Ok(frame))) = body.frame().now_or_never()
    {
        match frame.into_data() {
            Ok(data) => {
                attempt.response_frame(data.len());
                read += data.len();
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    if let Some(picked) = &picked {
        outcome::record_end(picked, BodyEnd::Complete(trailers.as_ref()));
    }
    attempt.response_end(trailers.as_ref());
}
