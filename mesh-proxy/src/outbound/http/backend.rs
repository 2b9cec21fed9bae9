//! Sending to one backend: an endpoint is chosen, tried, and exchanged for another when the request
//! has certainly not been acted upon.
//!
//! What is sent again although no policy asks for it: a request that no connection could be made
//! for, always; one that the other side says it has not begun with, if it has no body; one that was
//! lost with its connection before any response, once, if it is idempotent and has no body. See
//! docs/adr/0030.

use std::rc::Rc;
use std::sync::Arc;

use mesh_core::policy::outbound::{Backend as Source, BackendTarget, RouteBackend};
use mesh_core::route::filter::Filter;
use tokio::time::Instant;

use super::endpoint::{Endpoint, Received};
use super::observe::RequestObserver;
use crate::balance::{Picked, Refusal, Service, Settings};
use crate::error::{DialError, Error, Kind, chain};
use crate::http::client::{MAX_DEAD_CONNECTIONS, SendError};
use crate::http::undelivered::Undelivered;
use crate::http::{Request, Response, filter, upgrade};
use crate::telemetry::RouteHttp;
use crate::telemetry::http::{Exchange, Observers, StreamError};
use crate::telemetry::labels;
use crate::worker::Worker;

/// A backend, shared by all rules of a target that name it.
pub(super) struct Backend {
    source: Source,
    reach: Reach,
}

/// How a backend is reached.
enum Reach {
    Balance(Box<Service<Endpoint>>),
    Forward(Box<Endpoint>),
    Nowhere,
}

/// A backend as one rule uses it.
pub(super) struct Leg {
    backend: Rc<Backend>,
    source: Arc<RouteBackend>,
    metrics: Option<Rc<RouteHttp>>,
}

/// A response, and what must live as long as its body.
pub(super) struct Answer {
    pub(super) response: Response,
    pub(super) leg: Rc<Leg>,
    pub(super) attempt: Exchange,
    pub(super) picked: Option<Picked<Endpoint>>,
}

/// The result of one attempt at one endpoint.
enum Tried {
    Answered {
        response: Response,
        attempt: Exchange,
    },
    /// No connection can be made; the request is as it was.
    Unreachable(DialError),
    /// The peer's proxy cannot reach the application. The request can be sent again, or this be the
    /// answer.
    Undelivered {
        response: Response,
        attempt: Exchange,
    },
    /// The connection ended under the request, which may be sent again.
    Lost {
        was_begun: bool,
    },
    Failed(Error),
}

/// What has happened to a request so far; bounds how often it is sent again.
#[derive(Default)]
struct History {
    dead_connections: usize,
    lost: bool,
}

impl History {
    /// Whether a request without a body that the peer's proxy could not deliver may be sent to
    /// another endpoint.
    fn may_go_elsewhere(&mut self, request: &Request, how: Undelivered) -> bool {
        match how {
            Undelivered::Unsent => true,
            Undelivered::Lost => request.method().is_idempotent() && self.is_first_loss(),
        }
    }

    /// Whether a request without a body may be sent once more after its connection failed.
    fn may_repeat(&mut self, request: &Request, error: &SendError) -> bool {
        let is_harmless = error.reset().is_none() && request.method().is_idempotent();
        (error.is_unprocessed() || is_harmless) && self.is_first_loss()
    }

    fn is_first_loss(&mut self) -> bool {
        !std::mem::replace(&mut self.lost, true)
    }
}

impl Backend {
    pub(super) fn new(
        worker: &Rc<Worker>,
        parent: &mesh_core::meta::Meta,
        source: &Source,
    ) -> Self {
        let reach = match &source.target {
            BackendTarget::None => Reach::Nowhere,
            BackendTarget::Forward(endpoint) => {
                let endpoint = Arc::new((**endpoint).clone());
                Reach::Forward(Box::new(Endpoint::new(worker, &endpoint, None)))
            }
            BackendTarget::Balance { authority, load } => {
                let outbound = &worker.config.outbound;
                let settings = Settings {
                    queue_capacity: outbound.http_queue.capacity,
                    failfast: outbound.http_queue.failfast,
                    backoff: outbound.connect_backoff,
                };
                let labels = labels::balancer(parent, &source.meta);
                let metrics = worker.families.http_balancer.balancer(&labels);
                let name = authority_label(authority).to_owned();
                let make = {
                    let worker = worker.clone();
                    move |known: &Arc<_>| Endpoint::new(&worker, known, Some(&name))
                };
                let sets = worker.discovery.endpoints(authority);
                Reach::Balance(Box::new(Service::new(
                    sets, *load, &settings, metrics, make,
                )))
            }
        };
        Self {
            source: source.clone(),
            reach,
        }
    }

    pub(super) fn is_made_from(&self, source: &Source) -> bool {
        self.source == *source
    }

    fn is_available(&self) -> bool {
        match &self.reach {
            Reach::Balance(service) => service.is_available(),
            Reach::Forward(_) | Reach::Nowhere => true,
        }
    }
}

/// Linkerd leaves HTTP's own port out of the `authority` label.
fn authority_label(authority: &str) -> &str {
    authority.strip_suffix(":80").unwrap_or(authority)
}

impl Leg {
    pub(super) fn new(
        backend: Rc<Backend>,
        source: Arc<RouteBackend>,
        metrics: Option<Rc<RouteHttp>>,
    ) -> Self {
        Self {
            backend,
            source,
            metrics,
        }
    }

    pub(super) fn filters(&self) -> &[Filter] {
        &self.source.filters
    }

    pub(super) fn is_available(&self) -> bool {
        self.backend.is_available()
    }

    /// Sends to an endpoint of the backend. `required` is the identity that the application demands
    /// of it.
    pub(super) async fn send(
        self: &Rc<Self>,
        request: &mut Request,
        prefix: Option<usize>,
        required: Option<&http::HeaderValue>,
    ) -> Result<Answer, Error> {
        filter::apply(self.filters(), request, prefix)?;
        let sent = match &self.backend.reach {
            Reach::Balance(service) => self.balance(service, request, required).await,
            Reach::Forward(endpoint) => return self.forward(endpoint, request, required).await,
            Reach::Nowhere => Err(Error::new(Kind::NoDispatcher, "has no dispatcher")),
        };
        sent.map_err(|error| error.within(format_args!("backend {}", self.source.backend.meta)))
    }

    async fn balance(
        self: &Rc<Self>,
        service: &Service<Endpoint>,
        request: &mut Request,
        required: Option<&http::HeaderValue>,
    ) -> Result<Answer, Error> {
        let mut began = Instant::now();
        let mut history = History::default();
        let mut avoid = None;
        loop {
            let picked = service.acquire_other(began, avoid).await.map_err(refused)?;
            picked.value.check_identity(required)?;
            avoid = Some(picked.endpoint.addr);
            match self
                .attempt(&picked.value, Some(&picked), request, &mut history)
                .await
            {
                Tried::Answered { response, attempt } => {
                    service.reached(&picked);
                    return Ok(self.answer(response, attempt, Some(picked)));
                }
                Tried::Undelivered { response, attempt } => {
                    service.failed(&picked);
                    if !service.has_available() {
                        return Ok(self.answer(response, attempt, Some(picked)));
                    }
                }
                Tried::Unreachable(error) => {
                    service.failed(&picked);
                    tracing::info!(addr = %picked.endpoint.addr, error = %chain(&error), "Failed to connect");
                }
                Tried::Lost { was_begun } => {
                    if was_begun {
                        service.failed(&picked);
                        // The time that the lost endpoint took was not spent looking for one. A pod
                        // that vanishes without a word is noticed only after seconds, and the
                        // request must not fail for that. It happens once, so the wait stays
                        // bounded.
                        began = Instant::now();
                    }
                }
                Tried::Failed(error) => return Err(error),
            }
        }
    }

    async fn forward(
        self: &Rc<Self>,
        endpoint: &Endpoint,
        request: &mut Request,
        required: Option<&http::HeaderValue>,
    ) -> Result<Answer, Error> {
        endpoint.check_identity(required)?;
        let mut history = History::default();
        loop {
            match self.attempt(endpoint, None, request, &mut history).await {
                Tried::Answered { response, attempt }
                | Tried::Undelivered { response, attempt } => {
                    return Ok(self.answer(response, attempt, None));
                }
                Tried::Lost { .. } => {}
                Tried::Unreachable(error) => {
                    let kind = if error.is_timeout() {
                        Kind::ConnectTimeout
                    } else {
                        Kind::Io
                    };
                    let error = Error::new(kind, chain(&error));
                    return Err(error.within(format_args!("endpoint {}", endpoint.addr())));
                }
                Tried::Failed(error) => return Err(error),
            }
        }
    }

    fn answer(
        self: &Rc<Self>,
        response: Response,
        attempt: Exchange,
        picked: Option<Picked<Endpoint>>,
    ) -> Answer {
        Answer {
            response,
            leg: self.clone(),
            attempt,
            picked,
        }
    }

    /// Tries one endpoint. Whatever is not its answer leaves the request fit for another one: only
    /// what concerned the client's connection has gone from its headers.
    async fn attempt(
        &self,
        endpoint: &Endpoint,
        picked: Option<&Picked<Endpoint>>,
        request: &mut Request,
        history: &mut History,
    ) -> Tried {
        let is_repeatable = request.body().is_empty() && !upgrade::is_requested(request);
        let shape = endpoint.shape(request);
        let connection = match endpoint.connect(request).await {
            Ok(connection) => connection,
            Err(error) => {
                shape.undo(request);
                return Tried::Unreachable(error);
            }
        };
        if let Some(picked) = picked {
            picked.sends();
        }
        let mut attempt = self.start(endpoint, request);
        let observer = RequestObserver::new(attempt.request_body(), None);
        observer.attach(request.body_mut());
        let received = endpoint.send(connection, request, &shape).await;
        if !matches!(received, Ok(Received::Response(_))) {
            shape.undo(request);
        }
        match received {
            Ok(Received::Response(response)) => {
                attempt.response_head(response.status(), response.headers());
                Tried::Answered { response, attempt }
            }
            Ok(Received::Undelivered(response, how)) => {
                attempt.response_head(response.status(), response.headers());
                if is_repeatable && history.may_go_elsewhere(request, how) {
                    Tried::Undelivered { response, attempt }
                } else {
                    Tried::Answered { response, attempt }
                }
            }
            Err(SendError::Dial(error)) => {
                attempt.failed(StreamError::GoAway);
                history.dead_connections += 1;
                if history.dead_connections > MAX_DEAD_CONNECTIONS {
                    Tried::Unreachable(error)
                } else {
                    Tried::Lost { was_begun: false }
                }
            }
            Err(error) => {
                attempt.failed(StreamError::from(&error));
                let is_unprocessed = error.is_unprocessed();
                if is_repeatable && history.may_repeat(request, &error) {
                    Tried::Lost {
                        was_begun: !is_unprocessed,
                    }
                } else {
                    let kind = error.reset().map_or(Kind::Io, Kind::Reset);
                    Tried::Failed(Error::new(kind, chain(&error)))
                }
            }
        }
    }

    fn start(&self, endpoint: &Endpoint, request: &Request) -> Exchange {
        let observers = Observers {
            endpoint: Some(endpoint.metrics.clone()),
            route: None,
            backend: self.metrics.clone(),
        };
        Exchange::start(observers, request.headers(), !request.body().is_empty())
    }
}

fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::FailFast => Error::new(Kind::FailFast, "service in fail-fast"),
        Refusal::Shed => Error::new(Kind::LoadShed, "service unavailable"),
    }
}
