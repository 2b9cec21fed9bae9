//! Chains of proxies that consist of an HTTP server, an HTTP client and the transport of HTTP/1
//! over HTTP/2 between them.

use std::rc::Rc;

use http::Version;
use mesh_proxy::fuzzing::{
    Client, Dial, DialError, ErrorDetail, HttpHandler, Io, Protocol, Request, RequestContext,
    Reset, Response, orig_proto, synthetic_response, uri,
};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use crate::test_env::{self, sockets};

/// The position of a proxy in a chain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainPosition {
    Only,
    /// Converts HTTP/1 to HTTP/2.
    First,
    /// Restores HTTP/1.
    Second,
}

/// The destination of a connection.
pub(crate) enum Destination {
    /// Receives the server's socket.
    App(Box<dyn Fn(TcpStream)>),
    Proxy(Rc<Forward>),
}

/// Creates a chain of proxies in front of an application. Returns its first proxy.
pub(crate) fn chain(
    positions: &[ChainPosition],
    app: impl Fn(TcpStream) + 'static,
) -> Rc<Destination> {
    let mut to = Rc::new(Destination::App(Box::new(app)));
    for position in positions.iter().rev() {
        to = Rc::new(Destination::Proxy(Rc::new(Forward::new(*position, to))));
    }
    to
}

impl Destination {
    /// Opens a connection, which the destination serves.
    pub(crate) fn connect(&self) -> TcpStream {
        let (client, server_socket) = sockets();
        match self {
            Self::App(app) => app(server_socket),
            Self::Proxy(proxy) => {
                let proxy = proxy.clone();
                let protocol = match proxy.position {
                    ChainPosition::Second => Protocol::Http2,
                    ChainPosition::Only | ChainPosition::First => Protocol::Http1,
                };
                drop(spawn_local(async move {
                    let io = Io::plain(server_socket);
                    test_env::serve_http(io, protocol, proxy).await;
                }));
            }
        }
        client
    }
}

/// Opens the connections of a proxy.
pub(crate) struct Dialer(Rc<Destination>);

impl Dial for Dialer {
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        Ok(Io::plain(self.0.connect()))
    }
}

/// Forwards requests as both directions of a proxy do, without policies, balancing and metrics.
pub(crate) struct Forward {
    position: ChainPosition,
    client: Client<Dialer>,
}

impl Forward {
    fn new(position: ChainPosition, to: Rc<Destination>) -> Self {
        Self {
            position,
            client: test_env::client(Dialer(to)),
        }
    }
}

impl HttpHandler for Forward {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        let downgraded = (self.position == ChainPosition::Second)
            .then(|| orig_proto::downgrade(request).expect("an upgraded request"));
        let request_context = RequestContext::new(request, downgraded);
        let fallback = "192.0.2.1:80".parse().expect("an address");
        uri::set_authority(request, Some(fallback));
        let is_carried =
            self.position == ChainPosition::First && orig_proto::is_upgradable(request);
        let carried: Option<Version> = is_carried.then(|| orig_proto::upgrade(request));
        match self.client.send(request).await {
            Ok(mut response) => {
                if let Some(version) = carried {
                    orig_proto::downgrade_response(&mut response, version);
                }
                if let Some(version) = downgraded {
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
