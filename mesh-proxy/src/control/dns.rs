//! Resolves the replicas of a control-plane service.
//!
//! Runs on the control thread. Uses its own resolver, because static binaries must not call the C
//! library's. SRV records are queried first: a headless Service's name each pod and its port.
//! Without SRV records, address records and the configured port are used.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::net::NetError;
use hickory_resolver::proto::rr::{RData, Record};
use mesh_runtime::metrics::{Counter, CounterFamily, Labels, Registry};

use crate::config::{Control, ControlAddr};

#[cfg(feature = "simulation")]
pub(crate) mod world;

/// Resolves names with the system's configuration, and caches responses for their time to live.
#[derive(Clone)]
pub(crate) struct Resolver {
    dns: Dns,
    resolutions: CounterFamily,
}

/// Who answers.
#[derive(Clone)]
enum Dns {
    // Boxed for its size.
    System(Box<TokioResolver>),
    #[cfg(feature = "simulation")]
    World(world::Names),
}

/// Counts the look-ups of one control-plane client.
#[derive(Clone, Debug)]
pub(crate) struct Lookups {
    srv_found: Counter,
    srv_not_found: Counter,
    ip_found: Counter,
    ip_not_found: Counter,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DnsError {
    #[error("invalid DNS configuration of the system")]
    Configuration(#[source] Box<NetError>),
    #[error("cannot resolve {name:?}")]
    Lookup {
        name: String,
        // Boxed for its size.
        source: Box<NetError>,
    },
    #[error("{name:?} has no addresses")]
    NoAddresses { name: String },
    #[error("{name:?} was not resolved within {limit:?}")]
    TimedOut { name: String, limit: Duration },
}

/// Minimum time to cache responses and failures, unless the cache is cleared; see
/// [`Resolver::clear_cache`].
const MIN_TTL: Duration = Duration::from_secs(5);

/// The most replicas of one service. A DNS message has room for thousands of records, and the name
/// in each SRV record costs a query. The control plane has three replicas or a few more.
const MAX_REPLICAS: usize = 64;

impl Resolver {
    pub(crate) fn from_system(config: &Control, registry: &Registry) -> Result<Self, DnsError> {
        let mut builder = TokioResolver::builder_tokio().map_err(configuration_error)?;
        let options = builder.options_mut();
        // The resolver panics if a minimum exceeds its maximum.
        let default = config.dns_max_ttl.map_or(MIN_TTL, |max| max.min(MIN_TTL));
        let min_ttl = config.dns_min_ttl.unwrap_or(default);
        options.positive_min_ttl = Some(min_ttl);
        options.negative_min_ttl = Some(min_ttl);
        options.positive_max_ttl = config.dns_max_ttl;
        options.negative_max_ttl = config.dns_max_ttl;
        let dns = builder.build().map_err(configuration_error)?;
        Ok(Self::new(Dns::System(Box::new(dns)), registry))
    }

    /// Resolves the names of a simulated world.
    #[cfg(feature = "simulation")]
    pub(crate) fn of_world(names: world::Names, registry: &Registry) -> Self {
        Self::new(Dns::World(names), registry)
    }

    fn new(dns: Dns, registry: &Registry) -> Self {
        Self {
            dns,
            resolutions: registry.counter_family(
                "control_dns_resolutions_total",
                "Counts the number of DNS records that have been resolved",
            ),
        }
    }

    /// Clears the cache, so that the next query is sent to the server. Called when no replica could
    /// be reached, since all may have new addresses.
    pub(crate) fn clear_cache(&self) {
        match &self.dns {
            Dns::System(dns) => dns.clear_cache(),
            #[cfg(feature = "simulation")]
            Dns::World(_) => {}
        }
    }

    /// Returns the metric handles for look-ups of `client` (`destination`, `policy`, `identity`).
    pub(crate) fn lookups(&self, client: &'static str) -> Lookups {
        let counter = |record_type: &'static str, result: &'static str| {
            let labels = Labels::new()
                .with("client", client)
                .with("record_type", record_type)
                .with("result", result);
            self.resolutions.with(&labels)
        };
        Lookups {
            srv_found: counter("SRV", "ok"),
            srv_not_found: counter("SRV", "not_found"),
            ip_found: counter("A/AAAA", "ok"),
            ip_not_found: counter("A/AAAA", "not_found"),
        }
    }

    /// Returns all replicas of a service, sorted by address. Never empty.
    pub(crate) async fn resolve(
        &self,
        addr: &ControlAddr,
        lookups: &Lookups,
    ) -> Result<Vec<SocketAddr>, DnsError> {
        if let Some(ip) = literal(&addr.host) {
            return Ok(vec![SocketAddr::new(ip, addr.port)]);
        }
        let by_srv = self.resolve_srv(addr).await;
        if !by_srv.is_empty() {
            lookups.srv_found.inc();
            return Ok(by_srv.into_iter().collect());
        }
        lookups.srv_not_found.inc();
        match self.resolve_ips(&addr.host).await {
            Ok(ips) => {
                lookups.ip_found.inc();
                let with_port = |ip| SocketAddr::new(ip, addr.port);
                Ok(ips.into_iter().map(with_port).collect())
            }
            Err(error) => {
                lookups.ip_not_found.inc();
                Err(error)
            }
        }
    }

    /// Resolves SRV records; returns an empty set if there are none, which is normal. A Service
    /// with several ports has records for each; only the configured port's are used. At most
    /// [`MAX_REPLICAS`] records are used, and at most this number of replicas is returned.
    async fn resolve_srv(&self, addr: &ControlAddr) -> BTreeSet<SocketAddr> {
        let response = match &self.dns {
            Dns::System(dns) => dns.srv_lookup(&*addr.host).await,
            // A world has no SRV records.
            #[cfg(feature = "simulation")]
            Dns::World(_) => return BTreeSet::new(),
        };
        let Ok(response) = response else {
            return BTreeSet::new();
        };
        let mut replicas = BTreeSet::new();
        for target in srv_targets(response.answers(), addr.port) {
            match ip_of_pod_name(&target) {
                Some(ip) => {
                    replicas.insert(SocketAddr::new(ip, addr.port));
                }
                None => {
                    let ips = self.resolve_ips(&target).await.unwrap_or_default();
                    let with_port = |ip| SocketAddr::new(ip, addr.port);
                    replicas.extend(ips.into_iter().map(with_port));
                }
            }
            if replicas.len() >= MAX_REPLICAS {
                break;
            }
        }
        replicas.into_iter().take(MAX_REPLICAS).collect()
    }

    async fn resolve_ips(&self, name: &str) -> Result<BTreeSet<IpAddr>, DnsError> {
        let ips: BTreeSet<IpAddr> = match &self.dns {
            Dns::System(dns) => {
                let response = dns.lookup_ip(name).await;
                let response = response.map_err(|source| DnsError::Lookup {
                    name: name.to_owned(),
                    source: Box::new(source),
                })?;
                response.iter().take(MAX_REPLICAS).collect()
            }
            #[cfg(feature = "simulation")]
            Dns::World(names) => names.addresses(name).await,
        };
        if ips.is_empty() {
            return Err(DnsError::NoAddresses {
                name: name.to_owned(),
            });
        }
        Ok(ips)
    }
}

fn configuration_error(error: NetError) -> DnsError {
    DnsError::Configuration(Box::new(error))
}

/// Returns the targets of the SRV records of one port, each once and at most [`MAX_REPLICAS`].
fn srv_targets(answers: &[Record], port: u16) -> BTreeSet<String> {
    let targets = answers.iter().filter_map(|record| match &record.data {
        RData::SRV(srv) if srv.port == port => Some(srv.target.to_string()),
        _ => None,
    });
    targets.take(MAX_REPLICAS).collect()
}

/// Returns the address of hosts that need no DNS: IP literals and `localhost`.
fn literal(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" | "localhost." => Some(Ipv4Addr::LOCALHOST.into()),
        _ => host.parse().ok(),
    }
}

/// Returns the address in a pod's name in SRV records, as Kubernetes forms it:
/// `10-0-0-7.web.shop.svc.cluster.local`.
fn ip_of_pod_name(name: &str) -> Option<IpAddr> {
    let label = name.split('.').next()?;
    let v4 = || label.replace('-', ".").parse::<Ipv4Addr>().ok();
    let v6 = || label.replace('-', ":").parse::<Ipv6Addr>().ok();
    v4().map(IpAddr::V4).or_else(|| v6().map(IpAddr::V6))
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::rr::Name;
    use hickory_resolver::proto::rr::rdata::SRV;

    use super::*;

    #[test]
    fn pod_name_in_srv_record_contains_address() {
        let check = |name: &str, expect: Option<&str>| {
            let expect = expect.map(|ip| ip.parse::<IpAddr>().unwrap());
            assert_eq!(ip_of_pod_name(name), expect, "{name}");
        };
        check("10-0-0-7.web.shop.svc.cluster.local.", Some("10.0.0.7"));
        check("fd00--1.web.shop.svc.cluster.local.", Some("fd00::1"));
        check("web-0.web.shop.svc.cluster.local.", None);
        check("10-0-0.web", None);
        check("", None);
    }

    #[test]
    fn srv_records_beyond_the_limit_are_ignored() {
        let record = |n: usize, port| {
            let target = Name::from_ascii(format!("web-{n}.web.shop.svc.cluster.local.")).unwrap();
            let srv = RData::SRV(SRV::new(0, 0, port, target.clone()));
            Record::from_rdata(target, 5, srv)
        };
        let mut answers = vec![record(0, 9999), record(1, 8086), record(1, 8086)];
        assert_eq!(srv_targets(&answers, 8086).len(), 1);
        answers.extend((2..10_000).map(|n| record(n, 8086)));
        let targets = srv_targets(&answers, 8086);
        assert!(targets.len() <= MAX_REPLICAS, "{}", targets.len());
        assert!(targets.contains("web-2.web.shop.svc.cluster.local."));
    }

    #[test]
    fn literal_hosts_need_no_dns() {
        assert_eq!(literal("localhost."), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(literal("::1"), Some(Ipv6Addr::LOCALHOST.into()));
        assert_eq!(literal("linkerd-policy.linkerd.svc."), None);
    }
}
