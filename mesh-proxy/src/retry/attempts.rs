//! Sends a request as often as its retry policy allows, each time to a backend of its rule, which
//! `outbound::http` chooses.
//!
//! Only requests with a policy come here. [`RetryPolicy::decide`] decides; this module makes each
//! attempt from the [`Original`], and examines responses before the client sees anything of them.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::attempt_limit::AttemptLimit;
use super::budget::RetryBudget;
use super::policy::{AttemptEnd, PolicyAction, RetryPolicy};
use crate::error::Error;
use crate::http::body::ReplayBody;
use crate::http::request_head::RequestHeadCopy;
use crate::http::{Request, Response, grpc};
use crate::limits::replay_memory::ReplayMemory;
use crate::random;
use crate::telemetry::http::grpc_status;
use crate::telemetry::retry::RetryMetrics;

/// The retries that a policy asks for.
pub(crate) struct PolicyRetries<'a> {
    pub(crate) policy: &'a RetryPolicy,
    pub(crate) memory: &'a Arc<ReplayMemory>,
    pub(crate) metrics: Option<&'a RetryMetrics>,
}

/// What an attempt returned. The client has seen nothing of it yet.
pub(crate) trait Answer {
    /// Returns the response; `None` for the reply of a filter, which no policy retries.
    fn response(&mut self) -> Option<&mut Response>;

    /// Ends a response that is not forwarded.
    fn discard(self);
}

/// The request as its rule has left it. Nothing changes it: an attempt gets a copy of its head, and
/// a body that reads the client's.
struct Original {
    head: RequestHeadCopy,
    body: ReplayBody,
}

impl PolicyRetries<'_> {
    /// Sends `request` until the policy returns a result. Each attempt goes to the backend that
    /// `choose` returns.
    pub(crate) async fn send<B, A: Answer>(
        &self,
        request: &mut Request,
        choose: impl Fn() -> Result<B, Error>,
        mut attempt: impl AsyncFnMut(B, &mut Request, Option<&AttemptLimit>) -> Result<A, Error>,
    ) -> Result<A, Error> {
        let policy = self.policy;
        let original = Original::of(request, policy, self.memory);
        let body = &original.body;
        let reads_trailers = policy.conditions.depend_on_grpc()
            && grpc::is_grpc(request.version(), request.headers());
        if let Some(budget) = &policy.budget {
            budget.deposit(Instant::now());
        }
        let mut retries = 0;
        let mut last_error = None;
        loop {
            let backend = match choose() {
                Ok(backend) => backend,
                // The reason why the rule has no backend left.
                Err(error) => return Err(last_error.unwrap_or(error)),
            };
            let limit = policy
                .timeout
                .filter(|_| retries < policy.max_retries)
                .map(|limit| AttemptLimit::new(limit, body.clone()));
            let mut sent = attempt(backend, request, limit.as_ref()).await;
            let end = match &mut sent {
                Ok(answer) => match answer.response() {
                    Some(response) => examine(response, reads_trailers, body.is_complete()).await,
                    None => return sent,
                },
                Err(error) => AttemptEnd::from(&error.kind),
            };
            let withdraw = |budget: &RetryBudget| budget.withdraw(Instant::now());
            let action = policy.decide(end, retries, body.repeat(), withdraw);
            if let Some(metrics) = self.metrics {
                let counter = match action {
                    PolicyAction::Return if retries > 0 && sent.is_ok() => {
                        metrics.successes.as_ref()
                    }
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
            // Before the pause: the rest that the attempt would still read could exceed the limit
            // on kept bytes.
            if action != PolicyAction::Retry || !original.begin_attempt(request) {
                return sent;
            }
            match sent {
                Ok(sent) => sent.discard(),
                Err(error) => last_error = Some(error),
            }
            if let Some(backoff) = &policy.backoff {
                sleep(backoff.pause(retries.into(), random::random())).await;
            }
            retries += 1;
        }
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
