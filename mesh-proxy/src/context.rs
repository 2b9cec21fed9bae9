//! What a connection needs and does not own: configuration, snapshots, metrics and limits.
//!
//! [`ProxyContext`] belongs to one thread and [`ProcessState`] to all of them. Both directions take
//! their parts from here; nothing here depends on them.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use mesh_runtime::drain;
use tokio_util::task::TaskTracker;

use crate::access_log::AccessLog;
use crate::balance::Breakers;
use crate::config::Config;
use crate::discovery::Discovery;
use crate::http::server::Server;
use crate::limits::Limits;
use crate::redirection::ProbeListener;
use crate::tap::Tap;
use crate::telemetry::Families;
use crate::telemetry::labels::Direction;
use crate::tls::{Credentials, CredentialsRx};
use crate::trace::Tracer;
use crate::transport::Scratch;

/// The context of the connections of one thread.
#[derive(Debug)]
pub(crate) struct ProxyContext {
    pub(crate) config: Arc<Config>,
    pub(crate) discovery: Discovery,
    pub(crate) credentials: CredentialsRx,
    pub(crate) families: Arc<Families>,
    pub(crate) shared: Arc<ProcessState>,
    pub(crate) scratch: Rc<Scratch>,
    /// Recognises the connections that verify the redirection.
    pub(crate) probe_listener: Option<ProbeListener>,
    /// Connections, and tasks that outlive them, of all data threads.
    pub(crate) tasks: TaskTracker,
    pub(crate) drain: drain::Watch,
}

/// State that all data threads share.
#[derive(Debug)]
pub(crate) struct ProcessState {
    /// Connections, and tasks that outlive them. A draining proxy exits when there are none.
    pub(crate) tasks: TaskTracker,
    pub(crate) limits: Limits,
    pub(crate) breakers: Breakers,
    pub(crate) tap: Arc<Tap>,
    /// `None`: no access log.
    pub(crate) access_log: Option<AccessLog>,
    /// `None`: no distributed tracing.
    pub(crate) tracer: Option<Tracer>,
}

impl ProcessState {
    pub(crate) fn new(config: &Config, tap: Arc<Tap>) -> Self {
        Self {
            tasks: TaskTracker::new(),
            limits: Limits::new(config),
            breakers: Breakers::default(),
            tap,
            access_log: None,
            tracer: None,
        }
    }
}

impl ProxyContext {
    /// Returns the HTTP server of one direction.
    pub(crate) fn http_server(&self, direction: Direction) -> Server {
        let refused = self.families.refused.clone();
        let (scratch, drain) = (self.scratch.clone(), self.drain.clone());
        Server::new(direction, &self.config, refused, scratch, drain)
    }

    /// The current credentials. Present when connections are accepted.
    pub(crate) fn credentials(&self) -> Option<Arc<Credentials>> {
        self.credentials.borrow().clone()
    }

    /// Waits until the proxy drains and no connection is left.
    pub(crate) async fn wait_until_drained(&self) {
        self.drain.draining().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Waits for the first certificate. Returns false when the process exits before.
    pub(crate) async fn wait_for_certificate(&self) -> bool {
        let mut credentials = self.credentials.clone();
        credentials.wait_for(Option::is_some).await.is_ok()
    }

    /// Whether `ip` is an address of this pod.
    pub(crate) fn is_local(&self, ip: IpAddr) -> bool {
        self.config.inbound.ips.contains(&ip.to_canonical())
    }
}
