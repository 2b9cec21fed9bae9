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
use crate::transport::{Io, Scratch};

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

/// The kind of a connection. `C` is a connection to the server.
#[derive(Debug)]
pub(crate) enum Classification<C> {
    Http(Protocol),
    /// Contains the connection to the server if detection has opened it.
    Opaque(Option<Box<C>>),
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
    /// the proxy must not or cannot.
    pub(crate) async fn classify<C: AsMut<Io>>(
        &self,
        client: &mut Io,
        plan: ProtocolPlan,
        server: SocketAddr,
        labels: impl Fn() -> Labels,
        dial: impl AsyncFnOnce() -> Option<C>,
    ) -> io::Result<Classification<C>> {
        let timeout = match plan {
            ProtocolPlan::Opaque => return Ok(Classification::Opaque(None)),
            ProtocolPlan::Http(protocol) => return Ok(Classification::Http(protocol)),
            ProtocolPlan::DetectVersion => self.timeout,
            ProtocolPlan::Detect(timeout) => {
                let first = self.first_speaker(client, timeout, server, &labels, dial);
                match first.await? {
                    Some(FirstSpeaker::Client) => timeout,
                    Some(FirstSpeaker::Server(server) | FirstSpeaker::ServerClosed(server)) => {
                        return Ok(Classification::Opaque(Some(server)));
                    }
                    Some(FirstSpeaker::ClientFinished(server) | FirstSpeaker::Neither(server)) => {
                        return Ok(Classification::Opaque(server));
                    }
                    None => return Ok(Classification::Closed),
                }
            }
        };
        Ok(match self.detect_http(client, timeout, labels).await? {
            HttpDetected::Http1 => Classification::Http(Protocol::Http1),
            HttpDetected::Http2 => Classification::Http(Protocol::Http2),
            HttpDetected::TimedOut | HttpDetected::NotHttp
                if plan == ProtocolPlan::DetectVersion =>
            {
                Classification::Http(Protocol::Http1)
            }
            HttpDetected::NotHttp | HttpDetected::TimedOut => Classification::Opaque(None),
            HttpDetected::Eof => Classification::Closed,
        })
    }

    /// Waits for the first bytes of either peer (docs/adr/0038). `None` if the proxy drains and
    /// both remain silent. The parameters are the same as in [`Classifier::classify`].
    pub(crate) async fn first_speaker<C: AsMut<Io>>(
        &self,
        client: &mut Io,
        timeout: Duration,
        server: SocketAddr,
        labels: impl Fn() -> Labels,
        dial: impl AsyncFnOnce() -> Option<C>,
    ) -> io::Result<Option<FirstSpeaker<C>>> {
        let start = Instant::now();
        let delay = self.server_first.dial_delay(server);
        let scratch = &self.scratch;
        let first = pin!(detect::first_speaker(client, scratch, delay, timeout, dial));
        let Some(first) = self.unless_draining(first).await else {
            return Ok(None);
        };
        let first = first?;
        let detected = match &first {
            FirstSpeaker::Client => return Ok(Some(first)),
            FirstSpeaker::Server(_) => {
                self.server_first.insert(server);
                HttpDetected::NotHttp
            }
            FirstSpeaker::ServerClosed(_) => HttpDetected::NotHttp,
            FirstSpeaker::ClientFinished(_) => HttpDetected::Eof,
            FirstSpeaker::Neither(_) => HttpDetected::TimedOut,
        };
        self.record(&labels(), &Ok(detected), start);
        Ok(Some(first))
    }

    /// Detects TLS and its server name. A client that is silent while the proxy drains counts as
    /// closed.
    pub(crate) async fn detect_tls(&self, client: &mut Io) -> io::Result<TlsDetected> {
        let detecting = pin!(detect::tls(client, &self.scratch, self.timeout));
        let detected = self.unless_draining(detecting).await;
        detected.unwrap_or(Ok(TlsDetected::Eof))
    }

    async fn detect_http(
        &self,
        client: &mut Io,
        timeout: Duration,
        labels: impl Fn() -> Labels,
    ) -> io::Result<HttpDetected> {
        let start = Instant::now();
        let detecting = pin!(detect::http(client, &self.scratch, timeout));
        let Some(detected) = self.unless_draining(detecting).await else {
            return Ok(HttpDetected::Eof);
        };
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
