//! From a connection of the application to what is done with it: where it goes (discovery), and
//! what protocol it speaks (discovery, or its first bytes).

use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_core::policy::outbound::OutboundProtocol;
use tokio::time::Instant;

use super::Outbound;
use super::http::Target;
use super::opaque::{Connected, OpaqueError};
use crate::discovery::{DiscoveryError, OutboundTarget};
use crate::http::Protocol;
use crate::telemetry::detect::Protocol as ProtocolLabel;
use crate::telemetry::labels::{self, Direction};
use crate::transport::detect::{self, FirstWord, HttpDetected, TlsDetected};
use crate::transport::listen::Accepted;
use crate::transport::{Io, copy};

/// Why a connection is not served.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("{0} is this proxy's own outbound port: the connection would come back for ever")]
    Loop(SocketAddr),
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error(transparent)]
    Opaque(#[from] OpaqueError),
    #[error("the policy routes by TLS server name, but the connection begins with none")]
    NoServerName,
    #[error("the application's connection failed while its protocol was detected")]
    Detect(#[from] std::io::Error),
}

/// A connection of which everything is known.
enum Decided {
    Tunnel(Io, Box<Connected>),
    Http(Io, Rc<Target>, Protocol),
    /// The application left before it was known what it wanted.
    Gone,
}

/// How a conversation begins.
enum Greeting {
    /// The application has spoken, so its protocol can be detected.
    ClientSpoke,
    /// The server has spoken first, or neither side has in time: such a connection is not HTTP, and
    /// opaque to us.
    Open(Box<Connected>),
    /// Neither side has spoken in time, and no endpoint could be reached.
    Silence,
    Draining,
}

/// What a destination's snapshot says of connections to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Detect,
    Http(Protocol),
    Opaque,
    Tls,
}

impl ConnectionError {
    /// Value of the `error` label of `outbound_tcp_errors_total`.
    fn reason(&self) -> &'static str {
        match self {
            Self::Opaque(error) => error.reason(),
            Self::Detect(_) => "i/o",
            Self::Loop(_) | Self::Discovery(_) | Self::NoServerName => "unexpected",
        }
    }
}

/// Discovery has settled what the destination is.
fn plan(target: &OutboundTarget) -> Plan {
    match &target.policy.protocol {
        OutboundProtocol::Detect { .. } => Plan::Detect,
        OutboundProtocol::Http1(_) => Plan::Http(Protocol::Http1),
        OutboundProtocol::Http2(_) | OutboundProtocol::Grpc(_) => Plan::Http(Protocol::Http2),
        OutboundProtocol::Opaque(_) => Plan::Opaque,
        OutboundProtocol::Tls(_) => Plan::Tls,
    }
}

impl Plan {
    fn label(self) -> ProtocolLabel {
        match self {
            Self::Detect => ProtocolLabel::Detect,
            Self::Http(Protocol::Http1) => ProtocolLabel::Http1,
            Self::Http(Protocol::Http2) => ProtocolLabel::Http2,
            Self::Opaque => ProtocolLabel::Opaque,
            Self::Tls => ProtocolLabel::Tls,
        }
    }
}

impl Outbound {
    /// Serves one connection to its end. Whatever happens is logged and counted here.
    pub async fn serve(self: Rc<Self>, accepted: Accepted) {
        let witness = self.worker.witness.as_ref();
        if witness.is_some_and(|witness| witness.recognises(&accepted)) {
            return;
        }
        let (client, dst) = (accepted.peer, accepted.original_dst);
        // Each step is boxed when it begins, and freed when it ends.
        match Box::pin(self.decide(accepted)).await {
            Ok(Decided::Tunnel(io, server)) => Box::pin(self.copy(io, *server)).await,
            Ok(Decided::Http(io, target, protocol)) => {
                let served = Box::pin(self.server.serve(io, protocol, target)).await;
                if let Err(error) = served {
                    tracing::debug!(%dst, error = &error as &dyn std::error::Error, "HTTP connection ended with an error");
                }
            }
            Ok(Decided::Gone) => {}
            Err(error) => {
                let errors = &self.worker.families.errors;
                errors.tcp(Direction::Outbound, dst.into(), error.reason());
                tracing::info!(%client, %dst, error = &error as &dyn std::error::Error, "Connection closed");
            }
        }
    }

    async fn decide(&self, accepted: Accepted) -> Result<Decided, ConnectionError> {
        let dst = accepted.original_dst;
        if self.is_own_port(&accepted) {
            return Err(ConnectionError::Loop(dst));
        }
        let families = &self.worker.families;
        let transport = families.tcp.transport(labels::outbound_accept(dst));
        let mut io = Io::plain(accepted.tcp).measured(transport.open());
        let updates = Box::pin(self.worker.discovery.outbound(dst)).await?;
        let target = updates.borrow().clone();
        let parent = labels::parent(&target.policy.parent);
        let plan = plan(&target);
        families.detect.outbound_connection(&parent, plan.label());
        let protocol = match plan {
            Plan::Http(protocol) => Some(protocol),
            Plan::Opaque => None,
            Plan::Tls => return Box::pin(self.decide_tls(io, &target)).await,
            Plan::Detect => match self.greeting(&mut io, &target).await? {
                Greeting::ClientSpoke => match self.detect_http(&mut io, &target).await? {
                    HttpDetected::Http1 => Some(Protocol::Http1),
                    HttpDetected::Http2 => Some(Protocol::Http2),
                    HttpDetected::NotHttp | HttpDetected::TimedOut => None,
                    HttpDetected::Eof => return Ok(Decided::Gone),
                },
                Greeting::Open(server) => return Ok(Decided::Tunnel(io, server)),
                Greeting::Silence => None,
                Greeting::Draining => return Ok(Decided::Gone),
            },
        };
        Ok(match protocol {
            Some(protocol) => Decided::Http(io, self.http.target(dst, updates), protocol),
            None => {
                let server = Box::pin(self.opaque.connect(&target)).await?;
                Decided::Tunnel(io, Box::new(server))
            }
        })
    }

    /// Whether somebody dialled the outbound port itself: nobody redirected the connection, or it
    /// asks for that port of this very pod.
    fn is_own_port(&self, accepted: &Accepted) -> bool {
        let dst = accepted.original_dst;
        let listens = &self.worker.config.outbound.listen;
        listens.iter().any(|listen| listen.port() == dst.port())
            && (dst == accepted.local || dst.ip().is_loopback() || self.worker.is_local(dst.ip()))
    }

    /// Waits for the first word.
    async fn greeting(&self, io: &mut Io, target: &OutboundTarget) -> std::io::Result<Greeting> {
        let start = Instant::now();
        let mut held = None;
        let held_here = &mut held;
        let dial = move || {
            let dialling = async move {
                // What goes wrong is said when the connection is forwarded, should it come to that.
                let Connected { io, guard } = self.opaque.connect(target).await.ok()?;
                *held_here = Some(guard);
                Some(io)
            };
            dialling.boxed_local()
        };
        let limit = self.worker.config.outbound.detect_timeout;
        let patience = match self.greets(target.addr) {
            true => Duration::ZERO,
            false => detect::PATIENCE,
        };
        let word = {
            let scratch = &self.worker.scratch;
            let word = pin!(detect::first_word(io, scratch, patience, limit, dial));
            self.worker.unless_draining(word).await
        };
        let Some(word) = word else {
            return Ok(Greeting::Draining);
        };
        let (server, detected) = match word? {
            FirstWord::Client => return Ok(Greeting::ClientSpoke),
            FirstWord::Server(server) => {
                self.remember_greeter(target.addr);
                (Some(server), HttpDetected::NotHttp)
            }
            FirstWord::Nobody(server) => (server, HttpDetected::TimedOut),
        };
        self.count_detected(target, &Ok(detected), start.elapsed());
        Ok(match server.zip(held) {
            Some((io, guard)) => Greeting::Open(Box::new(Connected { io, guard })),
            None => Greeting::Silence,
        })
    }

    fn count_detected(
        &self,
        target: &OutboundTarget,
        detected: &std::io::Result<HttpDetected>,
        took: Duration,
    ) {
        let labels = labels::parent(&target.policy.parent);
        let families = &self.worker.families.detect;
        families.detected(Direction::Outbound, &labels, detected, took);
    }

    async fn detect_http(
        &self,
        io: &mut Io,
        target: &OutboundTarget,
    ) -> std::io::Result<HttpDetected> {
        let start = Instant::now();
        let limit = self.worker.config.outbound.detect_timeout;
        let detecting = pin!(detect::http(io, &self.worker.scratch, limit));
        let Some(detected) = self.worker.unless_draining(detecting).await else {
            return Ok(HttpDetected::Eof);
        };
        self.count_detected(target, &detected, start.elapsed());
        detected
    }

    /// TLS that the application has begun: the server name chooses the route, the bytes are passed
    /// on.
    async fn decide_tls(
        &self,
        mut io: Io,
        target: &OutboundTarget,
    ) -> Result<Decided, ConnectionError> {
        let limit = self.worker.config.outbound.detect_timeout;
        let detected = detect::tls(&mut io, &self.worker.scratch, limit).await?;
        let TlsDetected::ClientHello { sni: Some(name) } = detected else {
            return Err(ConnectionError::NoServerName);
        };
        let server = self.opaque.connect_tls(target, &name).await?;
        Ok(Decided::Tunnel(io, Box::new(server)))
    }

    async fn copy(&self, client: Io, server: Connected) {
        let Connected { io, mut guard } = server;
        let copied = copy::duplex(client, io, &self.worker.scratch, &self.worker.drain).await;
        if let Err(error) = copied {
            // One of the two ends broke off. That is theirs to explain, and the close is counted
            // with its reason.
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "Connection broke off"
            );
            guard.broke_off();
        }
    }
}
