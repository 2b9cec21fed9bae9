//! The way to the application: one HTTP client per address it listens on, and plain connections for everything else.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use crate::config::Config;
use crate::error::DialError;
use crate::http::Protocol;
use crate::http::client::{Client, Dial, Params};
use crate::idle::IdleCache;
use crate::telemetry::tcp::Transport;
use crate::transport::Io;
use crate::transport::connect::{self, ConnectError, ConnectOptions};
use crate::worker::Worker;

/// The HTTP clients of one data thread.
pub(super) struct Apps {
    config: Arc<Config>,
    transport: Arc<Transport>,
    params: Params,
    clients: IdleCache<SocketAddr, Client<AppDial>>,
}

/// Connects to one address of the application.
pub(super) struct AppDial {
    addr: SocketAddr,
    options: ConnectOptions,
    transport: Arc<Transport>,
}

impl Apps {
    pub(super) fn new(worker: &Worker, transport: Arc<Transport>) -> Self {
        let inbound = &worker.config.inbound;
        Self {
            config: worker.config.clone(),
            transport,
            params: Params::new(&inbound.http1_pool, inbound.http2_client),
            clients: IdleCache::new(worker.config.discovery.inbound_idle),
        }
    }

    /// The client of one address. It lives while connections use it and is kept a while for the next.
    pub(super) fn client(&self, addr: SocketAddr) -> Rc<Client<AppDial>> {
        self.clients.find_or(addr, |addr| {
            let dial = AppDial {
                addr: *addr,
                options: self.options(),
                transport: self.transport.clone(),
            };
            Client::new(dial, &self.params)
        })
    }

    /// A connection for bytes that nobody interprets.
    pub(super) async fn connect(&self, addr: SocketAddr) -> Result<Io, ConnectError> {
        let io = connect::dial(addr, &self.options()).await?;
        Ok(io.measured(self.transport.open()))
    }

    fn options(&self) -> ConnectOptions {
        ConnectOptions {
            timeout: self.config.inbound.connect_timeout,
            socket: self.config.inbound.connect,
        }
    }
}

impl Dial for AppDial {
    /// Applications are spoken to in the protocol of the request, without TLS.
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        let io = connect::dial(self.addr, &self.options).await?;
        Ok(io.measured(self.transport.open()))
    }
}
