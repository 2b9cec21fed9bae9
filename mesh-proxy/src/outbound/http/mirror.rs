//! Mirrors: copies of requests that a rule sends to other backends, and whose responses are ignored
//! (docs/adr/0150).
//!
//! A mirror is a task of its own with its own balancer and its own part of the body. It ends when
//! its response has been read, or is given up: the request does not wait for it, and shares neither
//! its errors nor its queue.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt as _;
use mesh_core::route::filter::{Filter, Ratio};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_local;

use super::backend::{BackendResponse, Delivery, EarlierAttempts, RuleBackend, Sent};
use super::observe::ResponseObserver;
use crate::context::ProxyContext;
use crate::filter::{self, Applied};
use crate::http::Request;
use crate::http::body::{GivenUp, MirrorBody};
use crate::http::request_head::{RequestHeadCopy, opens_tunnel};
use crate::random;
use crate::telemetry::http::{Exchange, ExchangeMetrics};
use crate::telemetry::mirror::{MirrorMetrics, MirrorResult};

/// A `RequestMirror` filter of a rule.
pub(super) struct Mirror {
    /// Its place among the filters of the rule. The copy has the changes of those before it.
    pub(super) at: usize,
    pub(super) ratio: Ratio,
    pub(super) backend: Rc<RuleBackend>,
    pub(super) metrics: Rc<MirrorMetrics>,
}

/// How long a mirror may take after the client has sent the whole request: the default time limit
/// of Envoy's routes, which its mirrors have too.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);

/// A request that is sent to a mirror.
struct MirroredRequest {
    head: RequestHeadCopy,
    backend: Rc<RuleBackend>,
    metrics: Rc<MirrorMetrics>,
    client: SocketAddr,
    /// The application's demand on the identity of endpoints holds for copies too.
    required_id: Option<HeaderValue>,
}

/// Applies the filters of a rule with mirrors, and sends the copies of the request. A request that
/// a filter responds to is not mirrored.
pub(super) fn apply(
    context: &ProxyContext,
    filters: &[Filter],
    mirrors: &[Mirror],
    request: &mut Request,
    delivery: &mut Delivery,
) -> Applied {
    let is_mirrored = !opens_tunnel(request);
    let mut copies = Vec::new();
    let mut refused = Vec::new();
    let mut next = 0;
    for mirror in mirrors {
        let before = &filters[next..mirror.at];
        let applied = filter::apply(before, request, &mut delivery.filters, random::random)?;
        if applied.is_break() {
            return Ok(applied);
        }
        next = mirror.at;
        if !is_mirrored || !mirror.ratio.includes(random::random()) {
            continue;
        }
        // Asked for before the head is copied: under overload, most copies get no permit.
        match context
            .shared
            .limits
            .mirrors_in_flight
            .clone()
            .try_acquire_owned()
        {
            Ok(permit) => {
                let copy = MirroredRequest {
                    head: RequestHeadCopy::of(request),
                    backend: mirror.backend.clone(),
                    metrics: mirror.metrics.clone(),
                    client: delivery.client,
                    required_id: delivery.required_id.clone(),
                };
                copies.push((permit, copy));
            }
            Err(_full) => refused.push(&mirror.metrics),
        }
    }
    let applied = filter::apply(
        &filters[next..],
        request,
        &mut delivery.filters,
        random::random,
    )?;
    if applied.is_break() {
        return Ok(applied);
    }
    for metrics in refused {
        metrics.count(MirrorResult::TooMany);
    }
    send(request, copies);
    Ok(ControlFlow::Continue(()))
}

/// Sends copies of a request, each with its permit to be in flight.
fn send(request: &mut Request, copies: Vec<(OwnedSemaphorePermit, MirroredRequest)>) {
    let (permits, copies): (Vec<_>, Vec<_>) = copies.into_iter().unzip();
    let bodies = request.body_mut().share(permits);
    for (copy, (body, progress)) in copies.into_iter().zip(bodies) {
        spawn_local(async move {
            let MirroredRequest {
                head,
                backend,
                metrics,
                client,
                required_id,
            } = copy;
            let request = head.into_request(body);
            let delivery = Delivery::new(client, None, required_id, None);
            metrics.count(exchange(&backend, request, &delivery, &progress).await);
        });
    }
}

/// Sends the copy, and reads its response. Dropping either cancels it.
async fn exchange(
    backend: &Rc<RuleBackend>,
    mut request: Request,
    delivery: &Delivery,
    progress: &MirrorBody,
) -> MirrorResult {
    let exchange = async {
        let mut earlier = EarlierAttempts::default();
        let sending = backend.send(&mut request, delivery, &mut earlier, None);
        match sending.await {
            Ok(Sent::Response(sent)) => discard(sent).await,
            // The backend of a mirror has no filters.
            Ok(Sent::Reply(_)) => MirrorResult::Failed,
            Err(error) => {
                tracing::debug!(%error, "Mirrored request failed");
                MirrorResult::Failed
            }
        }
    };
    tokio::select! {
        biased;
        reason = progress.given_up(RESPONSE_TIMEOUT) => match reason {
            GivenUp::TooSlow => MirrorResult::TooSlow,
            GivenUp::TimedOut => MirrorResult::TimedOut,
            GivenUp::Cancelled => MirrorResult::Cancelled,
        },
        result = exchange => {
            progress.finish();
            result
        }
    }
}

/// Reads a response to its end, because the application may stop when its client does.
async fn discard(sent: BackendResponse) -> MirrorResult {
    let no_route = Exchange::start(ExchangeMetrics::default(), &HeaderMap::new(), false);
    let observer = ResponseObserver::new(no_route, sent.attempt, sent.picked);
    let mut body = sent.response.into_body().observed(Box::new(observer));
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return MirrorResult::Failed;
        }
    }
    MirrorResult::Completed
}

/// Returns the mirrors of a rule's filters.
pub(super) fn compile(
    filters: &[Filter],
    mut backend: impl FnMut(&mesh_core::backend::Backend) -> (Rc<RuleBackend>, Rc<MirrorMetrics>),
) -> Vec<Mirror> {
    let filters = filters.iter().enumerate();
    let mirrors = filters.filter_map(|(at, filter)| match filter {
        Filter::RequestMirror(mirror) => {
            let (backend, metrics) = backend(&mirror.backend);
            Some(Mirror {
                at,
                ratio: mirror.ratio,
                backend,
                metrics,
            })
        }
        _ => None,
    });
    mirrors.collect()
}
