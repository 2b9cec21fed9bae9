//! One inbound request: restore, judge, filter, limit, send to the application, record.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use http::{HeaderName, HeaderValue};
use mesh_core::route::http::RequestHead;
use mesh_runtime::admin::Admin;
use mesh_runtime::drain::Watch;

use self::observe::{RequestObserver, ResponseObserver};
use super::Inbound;
use super::app::AppPort;
use super::judge::{ActiveJudge, Granted};
use super::peer::Peer;
use crate::error::{Error, Kind, Side};
use crate::http::client::{Client, SendError, is_replayable};
use crate::http::headers::{CLIENT_ID, ORIG_PROTO, PROXY_CONNECTION, PROXY_ERROR};
use crate::http::orig_proto::Downgraded;
use crate::http::respond::{Asker, Disclosure};
use crate::http::undelivered::{UNDELIVERED, Undelivered};
use crate::http::{
    Handle, Protocol, Reason, Request, Reset, Response, filter, headers, orig_proto, respond, uri,
};
use crate::telemetry::http::Exchange;
use crate::telemetry::labels;
use crate::transport::Io;
use crate::worker::Worker;

mod observe;

/// Proxies act upon these in responses. They are not the application's to send.
static OF_PROXIES: [HeaderName; 4] = [ORIG_PROTO, PROXY_CONNECTION, PROXY_ERROR, UNDELIVERED];

/// Answers the requests of one connection.
struct Handler {
    inbound: Rc<Inbound>,
    peer: Peer,
    judge: ActiveJudge,
    to: Destination,
    /// `l5d-client-id` for the application.
    client_id: Option<HeaderValue>,
    /// A request of this connection has been answered by the one that answers them.
    has_answered: Cell<bool>,
}

/// Who answers requests that may pass.
pub(super) enum Destination {
    App(Rc<Client<AppPort>>),
    Admin(Admin, Rc<Worker>),
}

impl Inbound {
    /// Serves the application's HTTP on a connection until it ends.
    pub(super) async fn serve_http(
        self: &Rc<Self>,
        io: Io,
        peer: Peer,
        judge: ActiveJudge,
        protocol: Protocol,
    ) {
        let app = self.apps.client(peer.target);
        let open = app.dial().connection();
        let to = Destination::App(app);
        self.serve_requests(io, peer, judge, protocol, to, open.drain())
            .await;
    }

    pub(super) async fn serve_requests(
        self: &Rc<Self>,
        io: Io,
        peer: Peer,
        judge: ActiveJudge,
        protocol: Protocol,
        to: Destination,
        drain: Watch,
    ) {
        let client = peer.client;
        let identity = peer.identity();
        let handler = Handler {
            client_id: identity.and_then(|id| HeaderValue::from_str(id.as_str()).ok()),
            to,
            inbound: self.clone(),
            peer,
            judge,
            has_answered: Cell::new(false),
        };
        let served = self
            .server
            .serve_within(io, protocol, Rc::new(handler), drain);
        if let Err(error) = served.await {
            tracing::debug!(%client, error = &error as &dyn std::error::Error, "HTTP connection ended with an error");
        }
    }
}

impl Handle for Handler {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        // Only peers of the mesh may say what a request was before: for others it would be a way to
        // choose how the application parses it.
        if self.peer.identity().is_some() {
            orig_proto::downgrade(request);
        } else {
            orig_proto::strip(request.headers_mut());
        }
        let asker = Asker::of(request);
        let downgraded = request.extensions().get::<Downgraded>().copied();
        match self.answer(request).await {
            Ok(mut response) => {
                if let Some(Downgraded(version)) = downgraded {
                    orig_proto::mark(&mut response, version);
                }
                Ok(response)
            }
            Err(failure) => self.refuse(asker, &failure),
        }
    }
}

impl Destination {
    async fn send(&self, request: &mut Request, client: SocketAddr) -> Result<Response, SendError> {
        match self {
            Self::App(app) => send_to_app(app, request).await,
            Self::Admin(admin, worker) => {
                let memory = &worker.shared.memory;
                Ok(super::admin::answer(admin, memory, request, client).await)
            }
        }
    }
}

/// An application that leaves says which requests it has not begun with, or closes the connection
/// without a word. A request that may be sent twice, or that it has not begun with and that has no
/// body, is sent once more: there may be another connection. When there is none, the client is told
/// as the application would have told it.
async fn send_to_app(app: &Client<AppPort>, request: &mut Request) -> Result<Response, SendError> {
    let has_no_body = request.body().is_empty();
    let may_repeat = is_replayable(request);
    let mut sent = app.send(request).await;
    let is_repeated = match &sent {
        Ok(_) => false,
        Err(error @ SendError::Http2(_)) if error.is_server_gone() => has_no_body,
        Err(error) => may_repeat && error.is_connection_lost(),
    };
    if is_repeated {
        sent = app.send(request).await;
    }
    if app.dial().is_checking() {
        // A client that may not go on with its connection has to learn it with the response.
        Box::pin(app.dial().checked()).await;
    }
    sent
}

/// An answer that the application did not give.
struct Failure {
    error: Error,
    /// The application has gone, and has not begun with the request.
    is_app_gone: bool,
    /// What the peer's balancer may know of it.
    undelivered: Option<Undelivered>,
}

impl Handler {
    async fn answer(&self, request: &mut Request) -> Result<Response, Failure> {
        // Held until the response's head has arrived.
        let _in_flight = self
            .inbound
            .worker
            .shared
            .inbound_in_flight
            .try_acquire()
            .map_err(|_full| {
                Error::new(
                    Kind::LoadShed,
                    "service unavailable: too many requests in flight",
                )
            })?;
        self.prepare(request)?;
        let head = RequestHead::from(&*request);
        let granted = self.judge.request(&self.peer, &head)?;
        let admission = self.judge.admit(&self.peer, &head);
        filter::apply(granted.filters(), request, granted.prefix())?;
        self.judge.limit(&self.peer, &granted)?;
        let mut response = tokio::select! {
            biased;
            sent = self.send(request, &granted) => sent?,
            () = admission.revoked() => {
                let message = "the policy no longer allows the request";
                return Err(Error::new(Kind::Unauthorized, message).into());
            }
        };
        filter::apply_to_response(granted.filters(), response.headers_mut());
        Ok(response.map(|body| body.admitted(admission)))
    }

    /// Gives a request the form in which it is judged and forwarded.
    fn prepare(&self, request: &mut Request) -> Result<(), Error> {
        let headers = request.headers_mut();
        headers::strip_for_application(headers);
        match &self.client_id {
            Some(id) => drop(headers.insert(CLIENT_ID, id.clone())),
            None => drop(headers.remove(CLIENT_ID)),
        }
        uri::replace_untold_authority(request, self.peer.target);
        // A peer that names the target in a transport header names the authority too.
        let fallback = (!self.peer.is_direct()).then_some(self.peer.target);
        match uri::set_authority(request, fallback) {
            true => Ok(()),
            false => Err(Error::new(
                Kind::Unexpected,
                "the request names no authority",
            )),
        }
    }

    async fn send(&self, request: &mut Request, granted: &Granted) -> Result<Response, Failure> {
        let mut exchange = Exchange::start(
            granted.observers(),
            request.headers(),
            !request.body().is_empty(),
        );
        if let Some(observer) = exchange.request_body() {
            let observer = Box::new(RequestObserver(observer));
            request.body_mut().observe(observer);
        }
        match self.to.send(request, self.peer.client).await {
            Ok(mut response) => {
                self.has_answered.set(true);
                headers::remove_all(response.headers_mut(), &OF_PROXIES);
                exchange.response_head(response.status(), response.headers());
                Ok(response.map(|body| body.observed(Box::new(ResponseObserver(exchange)))))
            }
            Err(error) => {
                exchange.failed((&error).into());
                Err(Failure {
                    undelivered: Undelivered::of(&error),
                    is_app_gone: error.is_server_gone(),
                    error: error.into(),
                })
            }
        }
    }

    fn refuse(&self, asker: Asker, failure: &Failure) -> Result<Response, Reset> {
        let Failure {
            error,
            undelivered,
            is_app_gone,
        } = failure;
        let meshed = self.peer.identity().is_some();
        if let Some(reason) = error.kind.reason(Side::Inbound) {
            let law = self.judge.law();
            let server = labels::server(&law.policy.meta, self.inbound.labelled(self.peer.target));
            let errors = &self.inbound.worker.families.errors;
            errors.inbound_http(self.inbound.labelled(self.peer.dialled), &server, reason);
        }
        match error.kind {
            Kind::Unauthorized | Kind::RouteNotFound | Kind::RateLimited => {
                tracing::info!(client = %self.peer.client, tls = self.peer.identity().map(tracing::field::display), %error, "Request denied");
            }
            _ => tracing::debug!(client = %self.peer.client, %error, "Request failed"),
        }
        if *is_app_gone && !meshed && self.has_answered.get() {
            // The application would have closed the connection. Clients repeat what they sent on
            // one that was closed before an answer (RFC 9112, section 9.3.1), but take a 502 for
            // the answer. It is one when the application has never answered here. The proxies of
            // the mesh are told more than either says.
            return Err(Reset(Reason::REFUSED_STREAM));
        }
        let disclosure = Disclosure {
            informational: meshed,
        };
        let mut response = respond::error(asker, error, disclosure)?;
        if let (Some(undelivered), true) = (undelivered, meshed) {
            // The peer's balancer may try another endpoint.
            undelivered.tell(response.headers_mut());
        }
        Ok(response)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            error,
            is_app_gone: false,
            undelivered: None,
        }
    }
}
