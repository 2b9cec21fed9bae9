//! Proxies in a row, each nothing but its HTTP server, its HTTP client, and what carries HTTP/1
//! between two of them.

use std::rc::Rc;

use http::Version;
use mesh_core::endpoint::Http2Params;
use mesh_proxy::error::DialError;
use mesh_proxy::http::client::{Client, ClientConfig, Dial};
use mesh_proxy::http::orig_proto::{self, Downgraded};
use mesh_proxy::http::synthetic_response::{ErrorDetail, RequestContext};
use mesh_proxy::http::{HttpHandler, Protocol, Request, Reset, Response, synthetic_response, uri};
use mesh_proxy::transport::Io;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use crate::world::{self, sockets, worker};

/// Which proxy of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hop {
    Only,
    /// Carries HTTP/1 as HTTP/2.
    First,
    /// Makes it HTTP/1 again.
    Second,
}

/// Whom a connection is made to.
pub(crate) enum To {
    /// Takes the other end.
    App(Box<dyn Fn(TcpStream)>),
    Proxy(Rc<Forward>),
}

/// The first of these proxies, behind which the others are, and behind them an application.
pub(crate) fn chain(hops: &[Hop], app: impl Fn(TcpStream) + 'static) -> Rc<To> {
    let mut to = Rc::new(To::App(Box::new(app)));
    for hop in hops.iter().rev() {
        to = Rc::new(To::Proxy(Rc::new(Forward::new(*hop, to))));
    }
    to
}

impl To {
    /// A connection, on which the other end is served.
    pub(crate) fn connect(&self) -> TcpStream {
        let (here, there) = sockets();
        match self {
            Self::App(app) => app(there),
            Self::Proxy(proxy) => {
                let server = world::server();
                let proxy = proxy.clone();
                let protocol = match proxy.hop {
                    Hop::Second => Protocol::Http2,
                    Hop::Only | Hop::First => Protocol::Http1,
                };
                drop(spawn_local(async move {
                    let _ended = server.serve(Io::plain(there), protocol, proxy).await;
                }));
            }
        }
        here
    }
}

/// Makes the connections of one proxy.
pub(crate) struct Dialer(Rc<To>);

impl Dial for Dialer {
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        Ok(Io::plain(self.0.connect()))
    }
}

/// What both sides of a proxy do with a request, without what this is not about.
pub(crate) struct Forward {
    hop: Hop,
    client: Client<Dialer>,
}

impl Forward {
    fn new(hop: Hop, to: Rc<To>) -> Self {
        let pool = &worker().config.inbound.http1_pool;
        Self {
            hop,
            client: Client::new(Dialer(to), &ClientConfig::new(pool, Http2Params::default())),
        }
    }
}

impl HttpHandler for Forward {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        if self.hop == Hop::Second {
            assert!(orig_proto::downgrade(request), "it was not carried");
        }
        let request_context = RequestContext::of(request);
        let downgraded = request.extensions().get::<Downgraded>().copied();
        let fallback = "192.0.2.1:80".parse().expect("an address");
        uri::set_authority(request, Some(fallback));
        let is_carried = self.hop == Hop::First && orig_proto::is_upgradable(request);
        let carried: Option<Version> = is_carried.then(|| orig_proto::upgrade(request));
        match self.client.send(request).await {
            Ok(mut response) => {
                if let Some(version) = carried {
                    orig_proto::downgrade_response(&mut response, version);
                }
                if let Some(Downgraded(version)) = downgraded {
                    orig_proto::upgrade_response(&mut response, version);
                }
                Ok(response)
            }
            Err(error) => {
                let detail = ErrorDetail {
                    informational: false,
                };
                synthetic_response::error(request_context, &error.into(), detail)
            }
        }
    }
}
