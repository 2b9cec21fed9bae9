//! [`Mesh`]: a trust domain, its control plane and the names of its services.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use mesh_core::identity::Identity;
use mesh_simnet::{Network, Redirection};
use mesh_test_support::control_plane::Script;
use tokio::time::sleep;

use super::control_plane::{self, ControlPlane};
use super::proxy::Proxy;
use crate::config::Config;
use crate::control::dns::world::Names;
use crate::tls::simulated::{SimulatedCa, SimulatedCaError};

/// A control plane, and the settings that the proxies of its mesh share. Dropping it ends the
/// control plane; its proxies go on.
pub struct Mesh {
    network: Network,
    ca: SimulatedCa,
    names: Names,
    host: IpAddr,
    start: Box<dyn Fn() -> io::Result<ControlPlane>>,
    control_plane: RefCell<Option<ControlPlane>>,
    proxies: RefCell<Vec<Weak<Proxy>>>,
}

mesh_core::names! {
    /// What happens to the control plane or the proxies while the mesh runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Fault, ALL {
        /// The control plane ends, as by SIGKILL.
        Ends = "control-plane-ends",
        /// It ends, and another one starts after some seconds.
        Restarts = "control-plane-restarts",
        /// Nothing reaches it any more, and no proxy is told.
        Vanishes = "control-plane-vanishes",
        /// The proxies end as by SIGTERM, as when their pods are deleted.
        Drain = "proxies-drain",
    }
}

/// How long there is no control plane when it restarts.
const RESTART_TIME: Duration = Duration::from_secs(5);

/// How long proxies drain at most: longer than any connection of a world.
const DRAIN_GRACE: Duration = Duration::from_hours(1);

/// A pod, whose address no other host has.
#[derive(Clone, Debug)]
pub struct Pod {
    pub ip: IpAddr,
    /// The identity of its proxy.
    pub identity: String,
    /// Environment variables of the proxy, beside the ones that [`Mesh::proxy`] sets.
    pub variables: Vec<(String, String)>,
}

/// Why a mesh or a proxy could not be started: the world is wrong.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    #[error("{0:?} is not an identity")]
    Identity(String),
    #[error("cannot make certificates: {0}")]
    Certificates(String),
    #[error("invalid variables: {0}")]
    Configuration(String),
    #[error("cannot listen")]
    Listen(#[from] io::Error),
}

/// The names of the services, as the chart has them.
const DESTINATION_NAME: &str = "linkerd-dst-headless.linkerd.svc.cluster.local.";
const POLICY_NAME: &str = "linkerd-policy.linkerd.svc.cluster.local.";
const CONTROL_PLANE_ID: &str =
    "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local";

impl From<SimulatedCaError> for SetUpError {
    fn from(error: SimulatedCaError) -> Self {
        Self::Certificates(mesh_runtime::log::chain(&error))
    }
}

impl Mesh {
    /// Starts a control plane on a host, which answers by a script.
    ///
    /// # Errors
    ///
    /// The ports of the host are in use.
    pub fn start(
        network: &Network,
        host: IpAddr,
        script: &impl Script,
    ) -> Result<Self, SetUpError> {
        let ca = SimulatedCa::new()?;
        let credentials = ca.credentials(&identity(CONTROL_PLANE_ID)?)?;
        let names = Names::default();
        for name in [DESTINATION_NAME, POLICY_NAME] {
            names.add(name, host);
        }
        let (its_network, script) = (network.clone(), script.clone());
        let start = move || ControlPlane::start(&its_network, host, &credentials, &script);
        Ok(Self {
            control_plane: RefCell::new(Some(start()?)),
            start: Box::new(start),
            proxies: RefCell::default(),
            network: network.clone(),
            host,
            names,
            ca,
        })
    }

    /// Plants a fault. Returns when nothing changes any more.
    pub async fn strike(&self, fault: Fault) {
        match fault {
            Fault::Ends => drop(self.control_plane.take()),
            Fault::Restarts => {
                drop(self.control_plane.take());
                sleep(RESTART_TIME).await;
                // Fails only if something else listens on its ports.
                self.control_plane.replace((self.start)().ok());
            }
            Fault::Vanishes => {
                let fault = mesh_simnet::Fault::Vanished;
                self.network.set_fault(self.host, Some(fault));
            }
            Fault::Drain => self.drain_proxies(),
        }
    }

    /// Lets the proxies end as by SIGTERM, and does not wait.
    pub(super) fn drain_proxies(&self) {
        for proxy in self.proxies.borrow().iter().filter_map(Weak::upgrade) {
            proxy.begin_drain(DRAIN_GRACE);
        }
    }

    /// Starts the proxy of a pod, and redirects the pod's connections to it.
    ///
    /// # Errors
    ///
    /// The identity or a variable is invalid, or a port of the proxy is in use.
    pub fn proxy(&self, pod: &Pod) -> Result<Rc<Proxy>, SetUpError> {
        let credentials = self.ca.credentials(&identity(&pod.identity)?)?;
        let config = Arc::new(self.config(pod)?);
        let proxy = Proxy::start(&self.network, pod.ip, config, credentials, &self.names)?;
        let redirection = Redirection {
            outbound: Some(proxy.outbound()),
            inbound: Some(proxy.inbound()),
        };
        self.network.redirect(pod.ip, redirection);
        let proxy = Rc::new(proxy);
        self.proxies.borrow_mut().push(Rc::downgrade(&proxy));
        Ok(proxy)
    }

    fn config(&self, pod: &Pod) -> Result<Config, SetUpError> {
        let ip = pod.ip.to_string();
        let [destination, policy] = control_plane::PORTS;
        let destination = format!("{DESTINATION_NAME}:{destination}");
        let policy = format!("{POLICY_NAME}:{policy}");
        let set = [
            (
                "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS",
                self.ca.anchor_pem(),
            ),
            ("LINKERD2_PROXY_IDENTITY_LOCAL_NAME", pod.identity.as_str()),
            // The world issues certificates.
            ("LINKERD2_PROXY_IDENTITY_SVC_ADDR", "localhost.:8080"),
            (
                "LINKERD2_PROXY_IDENTITY_TOKEN_FILE",
                "/var/run/secrets/tokens/linkerd-identity-token",
            ),
            ("LINKERD2_PROXY_DESTINATION_SVC_ADDR", &destination),
            ("LINKERD2_PROXY_DESTINATION_SVC_NAME", CONTROL_PLANE_ID),
            ("LINKERD2_PROXY_DESTINATION_CONTEXT", "context"),
            (
                "LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS",
                "0.0.0.0/0,::/0",
            ),
            ("LINKERD2_PROXY_POLICY_SVC_ADDR", &policy),
            ("LINKERD2_PROXY_POLICY_SVC_NAME", CONTROL_PLANE_ID),
            ("LINKERD2_PROXY_POLICY_WORKLOAD", "workload"),
            (
                "LINKERD2_PROXY_INBOUND_DEFAULT_POLICY",
                "all-unauthenticated",
            ),
            ("LINKERD2_PROXY_INBOUND_IPS", &ip),
            // The machine limits no proxy of a world.
            ("MESH_PROXY_MAX_MEMORY", "0"),
            ("MESH_PROXY_INBOUND_MAX_CONNECTIONS", "1000"),
            ("MESH_PROXY_OUTBOUND_MAX_CONNECTIONS", "1000"),
        ];
        let read = |name: &str| {
            let mut own = pod.variables.iter().rev();
            let own = own.find(|(variable, _)| variable == name);
            let own = own.map(|(_, value)| value.clone());
            own.or_else(|| {
                let mut set = set.iter();
                set.find(|(variable, _)| *variable == name)
                    .map(|(_, value)| (*value).to_owned())
            })
        };
        Config::from_env(read).map_err(|errors| {
            let errors: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            SetUpError::Configuration(errors.join("; "))
        })
    }
}

pub(super) fn identity(name: &str) -> Result<Identity, SetUpError> {
    Identity::parse(name).map_err(|_invalid| SetUpError::Identity(name.to_owned()))
}
