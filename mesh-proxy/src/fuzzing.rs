//! The interface of `mesh-fuzz`: parsers, connections in memory, and the engine of a data thread
//! without listeners and control plane. Only with the feature of this name.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::{Endpoint, Http2Params};
use mesh_core::resilience::{Backoff, PeakEwma};
use mesh_runtime::drain::{self, Drain};
use mesh_runtime::metrics::{Exemplars, Labels, Registry};
use tokio::runtime::Runtime;
use tokio::time::Instant;

pub use self::tls::{HandshakeDriver, MAX_BUFFERED, MAX_HANDSHAKE, RecordConnection};
use crate::balance::Balancer;
use crate::config::Config;
use crate::context::{ProcessState, ProxyContext};
use crate::control::dns::Resolver;
use crate::control::{self, Trust};
use crate::discovery::Discovery;
pub use crate::error::DialError;
use crate::http::client::ClientConfig;
pub use crate::http::client::{Client, Dial};
pub use crate::http::headers::strip_connection_headers;
pub use crate::http::synthetic_response::{ErrorDetail, RequestContext};
pub use crate::http::{
    Body, HttpHandler, Protocol, Request, Reset, Response, orig_proto, synthetic_response, uri,
};
pub use crate::inbound::Inbound;
use crate::tap::Tap;
use crate::telemetry::Families;
use crate::telemetry::http::ResponseDurations;
use crate::telemetry::labels::Direction;
pub use crate::transport::io::MAX_REPLAY;
pub use crate::transport::listen::AcceptedConnection;
pub use crate::transport::socket::Socket;
pub use crate::transport::{Io, Scratch, detect, header};
use crate::watch;

mod tls;

/// What connections of a data thread need.
pub struct DataThread {
    context: Rc<ProxyContext>,
    _drain: Drain,
    /// Runtime of the discovery tasks, which never run: the first connection waits a second for a
    /// policy, the default policy applies, and the proxy does not connect to a control plane.
    _control: Runtime,
}

impl DataThread {
    /// # Errors
    ///
    /// Fails if the machine has no DNS configuration.
    pub fn new(config: Config, control: Runtime) -> Result<Self, Box<dyn std::error::Error>> {
        let entered = control.enter();
        let config = Arc::new(config);
        let registry = Registry::new();
        let (_publish, credentials) = watch::channel(None);
        let resolver = Resolver::from_system(&config.control, &registry)?;
        let client = |name, addr| {
            let trust = Trust::Certified(credentials.clone());
            control::Client::new(name, addr, &config.control, trust, &resolver, &registry)
        };
        let discovery = Discovery::new(
            &config,
            client("destination", &config.discovery.destination),
            client("policy", &config.discovery.policy),
            control.handle().clone(),
        );
        let (drain, watch) = drain::channel();
        let shared = Arc::new(ProcessState::new(&config, Arc::new(Tap::new(&registry))));
        let context = ProxyContext {
            families: Arc::new(Families::new(
                &registry,
                Exemplars::Off,
                ResponseDurations::Off,
            )),
            tasks: shared.tasks.clone(),
            shared,
            scratch: Rc::default(),
            probe_listener: None,
            drain: watch,
            config,
            discovery,
            credentials,
        };
        drop(entered);
        Ok(Self {
            context: Rc::new(context),
            _drain: drain,
            _control: control,
        })
    }

    /// Returns the inbound side, with empty connection pools.
    pub fn inbound(&self) -> Rc<Inbound> {
        Rc::new(Inbound::new(self.context.clone()))
    }

    /// Serves HTTP on an inbound connection until it ends.
    pub fn serve_http<H: HttpHandler + 'static>(
        &self,
        io: Io,
        protocol: Protocol,
        handler: Rc<H>,
    ) -> impl Future<Output = ()> + use<H> {
        let server = self.context.http_server(Direction::Inbound);
        async move {
            let _closed = server.serve(io, protocol, handler).await;
        }
    }

    /// Returns a client with the settings of connections to the application.
    pub fn client<D: Dial + 'static>(&self, dial: D) -> Client<D> {
        let pool = &self.context.config.inbound.http1_pool;
        Client::new(dial, &ClientConfig::new(pool, Http2Params::default()))
    }

    pub fn scratch(&self) -> Rc<Scratch> {
        self.context.scratch.clone()
    }
}

/// A balancer whose choices depend on its use only.
pub struct Endpoints(Balancer<()>);

impl Endpoints {
    pub fn new(endpoints: &[Arc<Endpoint>]) -> Self {
        let metrics = Families::new(&Registry::new(), Exemplars::Off, ResponseDurations::Off)
            .http_balancer
            .balancer(&Labels::new());
        let backoff = Backoff {
            min: Duration::from_millis(100),
            max: Duration::from_secs(10),
            jitter: 0.0,
        };
        let balancer = Balancer::new(PeakEwma::default(), backoff, None, metrics, 7, |_| ());
        balancer.update(endpoints);
        Self(balancer)
    }

    /// Chooses an endpoint and measures a request to it. Returns false if none is available.
    pub fn choose(&self) -> bool {
        let picked = self.0.pick(Instant::now(), None);
        picked.is_some_and(|picked| {
            picked.record_send();
            picked.record_latency();
            true
        })
    }
}
