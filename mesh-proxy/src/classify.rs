//! Classifies accepted connections as HTTP/1, HTTP/2 or opaque.
//!
//! `inbound` and `outbound` select the [`ProtocolPlan`] by policy, pass how to connect to the
//! server and label the metrics, and serve the connection by its [`Classification`]. Everything
//! between is here: [`crate::transport::detect`] reads the first bytes, and a [`Classifier`] limits
//! how long, counts the results and remembers servers that send first.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use ahash::AHashSet;
use mesh_runtime::drain::Watch;
use mesh_runtime::metrics::Labels;
use tokio::time::{Instant, sleep};

use crate::context::ProxyContext;
use crate::http::Protocol;
use crate::telemetry::detect::DetectFamilies;
use crate::telemetry::labels::Direction;
use crate::transport::detect::{self, FirstSpeaker, HttpDetected, TlsDetected};
use crate::transport::{Io, Scratch, Stage};

/// Classifies the connections of one direction on one data thread.
pub(crate) struct Classifier {
    direction: Direction,
    /// The time limit of each detection: `detect_timeout` of the configuration, except that the
    /// HTTP detection of an inbound port whose policy requires it has the policy's. As in Linkerd.
    pub(crate) timeout: Duration,
    families: DetectFamilies,
    scratch: Rc<Scratch>,
    drain: Watch,
    server_first: ServerFirst,
}

/// How the protocol of a connection is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolPlan {
    Opaque,
    Http(Protocol),
    /// The first bytes of either peer decide. Opaque if they do not within this time.
    Detect(Duration),
    /// HTTP, whose version the first bytes decide: HTTP/2 with its preface, otherwise HTTP/1, whose
    /// server refuses other bytes.
    DetectVersion,
}

/// The kind of a connection. `C` is a connection to the server, and `E` why there is none.
#[derive(Debug)]
pub(crate) enum Classification<C, E> {
    Http(Protocol),
    /// Contains the connection to the server if detection has tried to open it.
    Opaque(Option<Result<Box<C>, Box<E>>>),
    /// The client closed the connection during detection, or was silent while the proxy drains.
    Closed,
}

/// Addresses whose server has sent first. They are dialled without waiting for client data; the
/// first byte still decides.
#[derive(Debug, Default)]
struct ServerFirst(RefCell<AHashSet<SocketAddr>>);

/// Maximum number of remembered addresses. A connection to a forgotten one waits for client data
/// once more.
const MAX_SERVER_FIRST: usize = 4096;

/// How long detection continues while the proxy drains: bytes that were sent before the drain have
/// arrived by then.
const DRAINING_DETECTION_TIMEOUT: Duration = Duration::from_secs(1);

impl Classifier {
    pub(crate) fn new(direction: Direction, context: &ProxyContext) -> Self {
        Self {
            direction,
            timeout: match direction {
                Direction::Inbound => context.config.inbound.detect_timeout,
                Direction::Outbound => context.config.outbound.detect_timeout,
            },
            families: context.families.detect.clone(),
            scratch: context.scratch.clone(),
            drain: context.drain.clone(),
            server_first: ServerFirst::default(),
        }
    }

    /// Determines the protocol of a connection to `server` by `plan`. Detection is counted with
    /// `labels`. While the client is silent, `dial` connects to the server, or returns `None` if
    /// only the client's bytes can decide whether the proxy may. If earlier detection has `opened`
    /// a connection to the server, that one is used.
    pub(crate) async fn classify<C: AsMut<Io>, E>(
        &self,
        client: &mut Io,
        plan: ProtocolPlan,
        server: SocketAddr,
        labels: impl Fn() -> Labels,
        mut opened: Option<Box<C>>,
        dial: impl AsyncFnOnce() -> Option<Result<C, E>>,
    ) -> io::Result<Classification<C, E>> {
        let timeout = match plan {
            ProtocolPlan::Opaque => return Ok(Classification::Opaque(opened.map(Ok))),
            ProtocolPlan::Http(protocol) => return Ok(as_http(protocol, opened)),
            ProtocolPlan::DetectVersion => self.timeout,
            ProtocolPlan::Detect(timeout) => {
                let dial = async || match opened.take() {
                    Some(server) => Some(Ok(*server)),
                    None => dial().await,
                };
                let first = self.first_speaker(client, timeout, server, &labels, dial);
                match first.await? {
                    Some(FirstSpeaker::Client(server)) => {
                        opened = server.or(opened);
                        timeout
                    }
                    Some(FirstSpeaker::Server(server) | FirstSpeaker::ServerClosed(server)) => {
                        return Ok(Classification::Opaque(Some(Ok(server))));
                    }
                    Some(FirstSpeaker::Unreachable(error)) => {
                        return Ok(Classification::Opaque(Some(Err(error))));
                    }
                    Some(FirstSpeaker::ClientFinished(server) | FirstSpeaker::Neither(server)) => {
                        return Ok(Classification::Opaque(server.or(opened).map(Ok)));
                    }
                    None => return Ok(Classification::Closed),
                }
            }
        };
        let protocol = match self.detect_http(client, timeout, labels).await? {
            HttpDetected::Http1 => Protocol::Http1,
            HttpDetected::Http2 => Protocol::Http2,
            HttpDetected::TimedOut | HttpDetected::NotHttp
                if plan == ProtocolPlan::DetectVersion =>
            {
                Protocol::Http1
            }
            HttpDetected::NotHttp | HttpDetected::TimedOut => {
                return Ok(Classification::Opaque(opened.map(Ok)));
            }
            HttpDetected::Eof => return Ok(Classification::Closed),
        };
        Ok(as_http(protocol, opened))
    }

    /// Waits for the first bytes of either peer (docs/adr/0038). `None` if the proxy drains and
    /// both remain silent. The parameters are the same as in [`Classifier::classify`].
    pub(crate) async fn first_speaker<C: AsMut<Io>, E>(
        &self,
        client: &mut Io,
        timeout: Duration,
        server: SocketAddr,
        labels: impl Fn() -> Labels,
        dial: impl AsyncFnOnce() -> Option<Result<C, E>>,
    ) -> io::Result<Option<FirstSpeaker<C, E>>> {
        let start = Instant::now();
        let delay = self.server_first.dial_delay(server);
        let scratch = &self.scratch;
        let first = pin!(detect::first_speaker(client, scratch, delay, timeout, dial));
        let Some(first) = self.unless_draining(first).await else {
            return Ok(None);
        };
        let first = first?;
        let detected = match &first {
            FirstSpeaker::Client(_) => return Ok(Some(first)),
            FirstSpeaker::Server(_) => {
                self.server_first.insert(server);
                HttpDetected::NotHttp
            }
            FirstSpeaker::ServerClosed(_) | FirstSpeaker::Unreachable(_) => HttpDetected::NotHttp,
            FirstSpeaker::ClientFinished(_) => HttpDetected::Eof,
            FirstSpeaker::Neither(_) => HttpDetected::TimedOut,
        };
        self.record(&labels(), &Ok(detected), start);
        Ok(Some(first))
    }

    /// Detects TLS and its server name. A client that is silent while the proxy drains counts as
    /// closed.
    pub(crate) async fn detect_tls(&self, client: &mut Io) -> io::Result<TlsDetected> {
        let detected = {
            let detecting = pin!(detect::tls(client, &self.scratch, self.timeout));
            self.unless_draining(detecting).await
        };
        let Some(detected) = detected else {
            return Ok(TlsDetected::Eof);
        };
        if let Ok(TlsDetected::Eof) = detected {
            client.enter(Stage::ClientFinished);
        }
        detected
    }

    async fn detect_http(
        &self,
        client: &mut Io,
        timeout: Duration,
        labels: impl Fn() -> Labels,
    ) -> io::Result<HttpDetected> {
        let start = Instant::now();
        let detected = {
            let detecting = pin!(detect::http(client, &self.scratch, timeout));
            self.unless_draining(detecting).await
        };
        let Some(detected) = detected else {
            return Ok(HttpDetected::Eof);
        };
        if let Ok(HttpDetected::Eof) = detected {
            client.enter(Stage::ClientFinished);
        }
        self.record(&labels(), &detected, start);
        detected
    }

    fn record(&self, labels: &Labels, result: &io::Result<HttpDetected>, start: Instant) {
        let result = HttpDetected::label(result);
        self.families
            .detected(self.direction, labels, result, start.elapsed());
    }

    /// Completes `detection`. `None` when the proxy drains and the client remains silent.
    async fn unless_draining<T>(&self, detection: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let timeout = async {
            self.drain.draining().await;
            sleep(DRAINING_DETECTION_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            detected = detection => Some(detected),
            () = timeout => None,
        }
    }
}

/// Requests select their server: a connection that detection has opened remains unused.
fn as_http<C: AsMut<Io>, E>(protocol: Protocol, opened: Option<Box<C>>) -> Classification<C, E> {
    if let Some(mut unused) = opened {
        (*unused).as_mut().end_on_close();
    }
    Classification::Http(protocol)
}

impl ServerFirst {
    /// How long the client of a connection to `addr` may be silent before the server is dialled.
    fn dial_delay(&self, addr: SocketAddr) -> Duration {
        if self.0.borrow().contains(&addr) {
            Duration::ZERO
        } else {
            detect::SERVER_DIAL_DELAY
        }
    }

    fn insert(&self, addr: SocketAddr) {
        let mut addrs = self.0.borrow_mut();
        if addrs.len() >= MAX_SERVER_FIRST {
            addrs.clear();
        }
        addrs.insert(addr);
    }
}

#[cfg(test)]
mod tests;
