//! The addresses of the target cluster's gateway: resolves its names periodically.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::net::NetError;
use mesh_k8s::crd::link::{Gateway, MAX_GATEWAY_ADDRESSES};
use mesh_runtime::metrics::{CounterFamily, Labels, Registry};
use tokio::sync::watch;
use tokio::time::timeout;

use super::publisher::Publisher;
use super::target::Target;
use crate::external_slices::is_accepted;

/// Resolves the names of a gateway.
pub(crate) trait Resolve: Clone + Send + Sync + 'static {
    /// Returns the addresses of a name; an address is its own one.
    fn resolve(&self, name: &str)
    -> impl Future<Output = Result<Vec<IpAddr>, ResolveError>> + Send;
}

/// The resolver of the system. Static programs must not call the C library's.
#[derive(Clone)]
// Boxed for its size.
pub(crate) struct SystemResolver(Box<TokioResolver>);

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("invalid DNS configuration of the system")]
    Configuration(#[source] Box<NetError>),
    #[error("cannot be resolved")]
    Lookup(#[source] Box<NetError>),
    #[error("was not resolved within {} s", TIMEOUT.as_secs())]
    TimedOut,
}

/// Keeps the addresses of the gateway up to date.
pub(crate) struct GatewayTask<R> {
    targets: watch::Receiver<Option<Arc<Target>>>,
    publisher: Publisher,
    resolver: R,
    period: Duration,
    repairs: CounterFamily,
    /// The last addresses of each name.
    known: HashMap<String, Vec<IpAddr>>,
}

const TIMEOUT: Duration = Duration::from_secs(10);

impl SystemResolver {
    /// # Errors
    ///
    /// The system's configuration cannot be read.
    pub(crate) fn new() -> Result<Self, ResolveError> {
        let error = |source| ResolveError::Configuration(Box::new(source));
        let builder = TokioResolver::builder_tokio().map_err(error)?;
        Ok(Self(Box::new(builder.build().map_err(error)?)))
    }
}

impl Resolve for SystemResolver {
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if let Ok(ip) = name.parse() {
            return Ok(vec![ip]);
        }
        let found = timeout(TIMEOUT, self.0.lookup_ip(name)).await;
        let found = found.map_err(|_elapsed| ResolveError::TimedOut)?;
        let found = found.map_err(|source| ResolveError::Lookup(Box::new(source)))?;
        Ok(found.iter().take(MAX_GATEWAY_ADDRESSES).collect())
    }
}

impl<R: Resolve> GatewayTask<R> {
    pub(crate) fn new(
        targets: watch::Receiver<Option<Arc<Target>>>,
        publisher: Publisher,
        resolver: R,
        period: Duration,
        registry: &Registry,
    ) -> Self {
        Self {
            targets,
            publisher,
            resolver,
            period,
            repairs: registry.counter_family(
                "service_mirror_endpoint_repairs",
                "How often the addresses of the gateway were resolved, after which Endpoints that differ are written",
            ),
            known: HashMap::new(),
        }
    }

    /// Runs until the sender of targets is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let target = self.targets.borrow_and_update().clone();
            let gateway = target.as_ref().and_then(|target| target.gateway.clone());
            match (&target, &gateway) {
                (Some(target), Some(gateway)) => {
                    let cluster = target.cluster.clone().unwrap_or_default();
                    let labels = Labels::new().with("target_cluster_name", cluster);
                    self.repairs.with(&labels).inc();
                    let addresses = self.resolve(gateway).await;
                    self.publish(addresses);
                }
                _ => self.publish(None),
            }
            let period = self.period;
            let changed = async {
                while self.targets.changed().await.is_ok() {
                    let target = self.targets.borrow_and_update().clone();
                    if target.and_then(|target| target.gateway.clone()) != gateway {
                        return true;
                    }
                }
                false
            };
            tokio::select! {
                biased;
                goes_on = changed => if !goes_on {
                    return;
                },
                () = tokio::time::sleep(period), if gateway.is_some() => {}
            }
        }
    }

    /// Returns the addresses of all names. A name that cannot be resolved has its last ones.
    async fn resolve(&mut self, gateway: &Gateway) -> Option<Arc<[IpAddr]>> {
        self.known
            .retain(|name, _| gateway.addresses.contains(name));
        for name in &gateway.addresses {
            match self.resolver.resolve(name).await {
                Ok(addresses) => {
                    self.known.insert(name.clone(), addresses);
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        name,
                        error,
                        "Cannot resolve an address of the gateway; its last ones stay in effect"
                    );
                }
            }
        }
        let all: BTreeSet<IpAddr> = self.known.values().flatten().copied().collect();
        for ip in all.iter().filter(|ip| !is_accepted(**ip)) {
            tracing::warn!(%ip, "An address of the gateway is of one machine or link only, which Endpoints cannot have");
        }
        let usable = all.into_iter().filter(|ip| is_accepted(*ip));
        // Linkerd sorts texts. Another order would be another version of each object.
        let sorted: BTreeMap<String, IpAddr> = usable.map(|ip| (ip.to_string(), ip)).collect();
        let addresses: Arc<[IpAddr]> = sorted.into_values().take(MAX_GATEWAY_ADDRESSES).collect();
        (!addresses.is_empty()).then_some(addresses)
    }

    fn publish(&self, addresses: Option<Arc<[IpAddr]>>) {
        self.publisher.change(|mirrors| {
            let before = mirrors.gateway.addresses.take();
            let differs = before != addresses;
            if before.is_some() != addresses.is_some() {
                mirrors.forget_plan();
            }
            mirrors.gateway.addresses = addresses;
            differs
        });
    }
}
