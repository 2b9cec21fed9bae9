//! Policy compiled for the request path: the backends, timeouts and metric handles of each rule.
//!
//! Compiled when discovery publishes a change. Unchanged backends are kept with their connections.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode, Version};
use mesh_core::endpoint::AddressFamily;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Backend as BackendSource, BackendTarget, Distribution, GrpcRoutes, HttpRoutes, OutboundPolicy,
    OutboundProtocol, OutboundRule, RouteBackend, TcpRoute, TcpVerdict,
};
use mesh_core::profile::Profile;
use mesh_core::resilience::{FailureAccrual, Retry, Timeouts};
use mesh_core::route::filter::{Filter, Ratio};
use mesh_core::route::http::RequestHead;
use mesh_core::route::{self, HostMatch};
use mesh_runtime::metrics::Labels;

use super::backend::{Backend, RuleBackend};
use super::mirror::{self, Mirror};
use super::profile;
use super::route_metrics::MetricsByHost;
use super::route_protocol::RouteProtocol;
use crate::context::ProxyContext;
use crate::discovery::OutboundTarget;
use crate::error::{Error, Kind};
use crate::http::Request;
use crate::random;
use crate::retry::RetryPolicy;
use crate::telemetry::http::{EndpointMetrics, ExchangeMetrics};
use crate::telemetry::labels::Direction;
use crate::telemetry::retry::RetryMetrics;
use crate::telemetry::{RouteFamilies, RouteMetrics, labels};

/// The compiled routes of one target.
pub(super) struct Routes {
    source: Arc<OutboundTarget>,
    http1: Rc<Table>,
    /// The same table if the policy has the same routes for both versions, as it usually does.
    http2: Rc<Table>,
    backends: Vec<CompiledBackend>,
}

/// A backend, shared by all rules of a target that refer to it. A fixed address is shared only by
/// the routes of the same hosts: what one host's server reads on a connection must not depend on
/// requests for another host.
#[derive(Clone)]
struct CompiledBackend {
    backend: Rc<Backend>,
    /// The hosts of the route, if it is a fixed address.
    hosts: Vec<HostMatch>,
    usage: Usage,
}

/// The use of a backend. Mirrors have backends of their own, so that their requests neither wait in
/// the queues of others nor open their circuit breakers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Usage {
    Requests,
    Mirrors,
}

/// Rules by route and position in the policy.
enum Table {
    Http(Vec<Vec<Rc<Rule>>>),
    Grpc(Vec<Vec<Rc<Rule>>>),
    /// The routes of a ServiceProfile, followed by the default rule.
    Profile(Vec<Rc<Rule>>),
    /// The opaque route. Requests reach it in ingress mode, and on connections that were accepted
    /// before the policy became opaque.
    Opaque(Rc<Rule>),
    /// The policy has no routes for requests.
    None,
}

/// A compiled rule.
pub(super) struct Rule {
    pub(super) name: String,
    metrics: Option<Rc<MetricsByHost>>,
    /// The metrics of a ServiceProfile's route.
    pub(super) profile_metrics: Option<Rc<EndpointMetrics>>,
    pub(super) backends: Backends,
    /// `l5d-dst-canonical` header for the endpoints of a service with a ServiceProfile.
    pub(super) canonical: Option<HeaderValue>,
    filters: Vec<Filter>,
    /// The mirrors among the filters, in their order.
    pub(super) mirrors: Vec<Mirror>,
    pub(super) timeouts: Timeouts,
    /// `None`: failed requests are not retried.
    pub(super) retry: Option<Rc<RetryPolicy>>,
    /// Present if requests may be retried.
    pub(super) retry_metrics: Option<Rc<RetryMetrics>>,
    /// A ServiceProfile's timeout, which ends with the response headers.
    pub(super) head_timeout: Option<Duration>,
    pub(super) allows_request_headers: bool,
}

/// The backends of a rule, and how one is chosen.
pub(super) enum Backends {
    FirstAvailable(Vec<Rc<RuleBackend>>),
    RandomAvailable(Vec<(Rc<RuleBackend>, u32)>),
}

/// Compiles one target.
struct Compiler<'a> {
    context: &'a Rc<ProxyContext>,
    parent: &'a Meta,
    /// The family of the address of the destination.
    family: Option<AddressFamily>,
    /// The accrual of the routes that are being compiled.
    accrual: Option<FailureAccrual>,
    old: &'a [CompiledBackend],
    backends: Vec<CompiledBackend>,
}

impl Routes {
    /// Compiles `source`. `old` are the routes that the result replaces.
    pub(super) fn compile(
        context: &Rc<ProxyContext>,
        source: Arc<OutboundTarget>,
        old: Option<&Rc<Self>>,
    ) -> Self {
        let mut compiler = Compiler {
            context,
            parent: &source.policy.parent,
            family: source.destination.family(),
            accrual: None,
            old: old.map_or(&[], |old| &old.backends),
            backends: Vec::new(),
        };
        let profile = effective_profile(&source);
        let http1 = Rc::new(match profile {
            Some(profile) => compiler.profile(profile, &source),
            None => compiler.policy(&source.policy, Version::HTTP_11),
        });
        let http2 = if profile.is_some() || is_same_for_versions(&source.policy) {
            http1.clone()
        } else {
            Rc::new(compiler.policy(&source.policy, Version::HTTP_2))
        };
        let backends = compiler.backends;
        Self {
            http1,
            http2,
            backends,
            source,
        }
    }

    /// Returns the rule that matches `request`, and the length of the path prefix that it matched.
    pub(super) fn find(&self, request: &Request) -> Result<(Rc<Rule>, Option<usize>), Error> {
        let version = request.version();
        let table = if version == Version::HTTP_2 {
            &self.http2
        } else {
            &self.http1
        };
        let head = RequestHead::from(request);
        let found = match (&**table, policy_routes(&self.source.policy, version)) {
            (Table::Http(rules), Some(PolicyRoutes::Http(routes))) => {
                route::http::find(&routes.routes, &head)
                    .map(|found| (&rules[found.route][found.rule], found.prefix))
            }
            (Table::Grpc(rules), Some(PolicyRoutes::Grpc(routes))) => {
                route::grpc::find(&routes.routes, &head)
                    .map(|found| (&rules[found.route][found.rule], found.prefix))
            }
            (Table::Opaque(rule), _) => Some((rule, None)),
            (Table::Profile(rules), _) => self.find_in_profile(rules, &head).map(|r| (r, None)),
            _ => None,
        };
        let (rule, prefix) =
            found.ok_or_else(|| Error::new(Kind::RouteNotFound, "no route found for request"))?;
        Ok((rule.clone(), prefix))
    }

    fn find_in_profile<'a>(
        &self,
        rules: &'a [Rc<Rule>],
        head: &RequestHead<'_>,
    ) -> Option<&'a Rc<Rule>> {
        let routes = &self.source.profile.as_ref()?.routes;
        let matched = routes
            .iter()
            .position(|route| route.condition.is_match(head.method, head.path));
        rules.get(matched.unwrap_or(routes.len()))
    }
}

/// Returns the profile if it replaces the policy's routes.
fn effective_profile(target: &OutboundTarget) -> Option<&Profile> {
    let profile = target.profile.as_ref();
    profile.filter(|profile| profile.replaces_routes())
}

enum PolicyRoutes<'a> {
    Http(&'a HttpRoutes),
    Grpc(&'a GrpcRoutes),
}

/// Returns the routes of a policy for requests of one version.
fn policy_routes(policy: &OutboundPolicy, version: Version) -> Option<PolicyRoutes<'_>> {
    match &policy.protocol {
        OutboundProtocol::Detect { http1, http2, .. } => {
            let routes = if version == Version::HTTP_2 {
                http2
            } else {
                http1
            };
            Some(PolicyRoutes::Http(routes))
        }
        OutboundProtocol::Http1(routes) | OutboundProtocol::Http2(routes) => {
            Some(PolicyRoutes::Http(routes))
        }
        OutboundProtocol::Grpc(routes) => Some(PolicyRoutes::Grpc(routes)),
        OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_) => None,
    }
}

impl PolicyRoutes<'_> {
    fn failure_accrual(&self) -> Option<FailureAccrual> {
        match self {
            Self::Http(routes) => routes.failure_accrual,
            Self::Grpc(routes) => routes.failure_accrual,
        }
    }
}

fn is_same_for_versions(policy: &OutboundPolicy) -> bool {
    match &policy.protocol {
        OutboundProtocol::Detect { http1, http2, .. } => http1 == http2,
        _ => true,
    }
}

impl Compiler<'_> {
    fn policy(&mut self, policy: &OutboundPolicy, version: Version) -> Table {
        let routes = policy_routes(policy, version);
        self.accrual = routes.as_ref().and_then(PolicyRoutes::failure_accrual);
        match routes {
            None => match &policy.protocol {
                OutboundProtocol::Opaque(Some(route)) => Table::Opaque(self.opaque(route)),
                _ => Table::None,
            },
            Some(PolicyRoutes::Http(routes)) => Table::Http(self.routes(&routes.routes)),
            Some(PolicyRoutes::Grpc(routes)) => Table::Grpc(self.routes(&routes.routes)),
        }
    }

    fn routes<M, C: RouteProtocol>(
        &mut self,
        routes: &[route::Route<M, OutboundRule<Retry<C>>>],
    ) -> Vec<Vec<Rc<Rule>>> {
        let mut compiled = Vec::with_capacity(routes.len());
        for route in routes {
            let (parent, families) = (self.parent, self.context.families.clone());
            let labels = labels::outbound_route(parent, &route.meta, None);
            let may_retry = route
                .rules
                .iter()
                .any(|rule| rule.action.retry.is_some() || rule.action.allow_request_headers);
            let retry_metrics =
                may_retry.then(|| Rc::new(C::retry_metrics(&families.outbound_retry, &labels)));
            let metrics = Rc::new(self.route_metrics(&route.meta, C::metrics));
            let mut rules = Vec::with_capacity(route.rules.len());
            for rule in &route.rules {
                let backends = self.distribution(&rule.action.backends, &route.hosts, |backend| {
                    let labels = labels::outbound_backend(parent, &route.meta, backend);
                    ExchangeMetrics {
                        backend: Some(Rc::new(C::metrics(&families.outbound_backend, labels))),
                        ..ExchangeMetrics::default()
                    }
                });
                let mirrors = mirror::compile(&rule.action.filters, |backend| {
                    let labels = labels::outbound_backend(parent, &route.meta, &backend.meta);
                    let metrics = Rc::new(families.mirror.backend(&labels));
                    let exchange = ExchangeMetrics {
                        backend: Some(Rc::new(C::metrics(&families.outbound_backend, labels))),
                        ..ExchangeMetrics::default()
                    };
                    (
                        self.mirror_backend(backend, &route.hosts, exchange),
                        metrics,
                    )
                });
                rules.push(Rc::new(Rule {
                    name: route.meta.to_string(),
                    metrics: Some(metrics.clone()),
                    profile_metrics: None,
                    backends,
                    canonical: None,
                    filters: rule.action.filters.clone(),
                    mirrors,
                    timeouts: rule.action.timeouts,
                    retry: rule.action.retry.as_ref().and_then(RetryPolicy::of_rule),
                    retry_metrics: retry_metrics.clone(),
                    head_timeout: None,
                    allows_request_headers: rule.action.allow_request_headers,
                }));
            }
            compiled.push(rules);
        }
        compiled
    }

    /// Compiles a rule that sends requests by an opaque route.
    fn opaque(&mut self, route: &TcpRoute) -> Rc<Rule> {
        let meta = &route.meta;
        let families = self.context.families.clone();
        let parent = self.parent;
        let backends = self.distribution(&route.backends, &[], |backend| {
            let labels = labels::outbound_backend(parent, meta, backend);
            ExchangeMetrics {
                backend: Some(Rc::new(families.outbound_backend.http(labels))),
                ..ExchangeMetrics::default()
            }
        });
        Rc::new(Rule {
            name: meta.to_string(),
            metrics: Some(Rc::new(self.route_metrics(meta, RouteFamilies::http))),
            profile_metrics: None,
            backends,
            canonical: None,
            filters: verdict_filter(&route.verdict).into_iter().collect(),
            mirrors: Vec::new(),
            timeouts: Timeouts::default(),
            retry: None,
            retry_metrics: None,
            head_timeout: None,
            allows_request_headers: false,
        })
    }

    fn route_metrics(
        &self,
        route: &Meta,
        resolve: fn(&RouteFamilies, Labels) -> RouteMetrics,
    ) -> MetricsByHost {
        let (parent, route) = (self.parent.clone(), route.clone());
        let families = self.context.families.clone();
        let of_host = move |host: Option<&str>| {
            let labels = labels::outbound_route(&parent, &route, host);
            resolve(&families.outbound_route, labels)
        };
        if self.context.config.outbound.hostname_labels {
            MetricsByHost::labelled(of_host)
        } else {
            MetricsByHost::unlabelled(&of_host)
        }
    }

    fn distribution(
        &mut self,
        distribution: &Distribution,
        hosts: &[HostMatch],
        metrics: impl Fn(&Meta) -> ExchangeMetrics,
    ) -> Backends {
        let mut rule_backend = |source: &Arc<RouteBackend>| {
            let metrics = metrics(&source.backend.meta);
            let backend = self.backend(&source.backend, hosts, Usage::Requests);
            let source = match verdict_filter(&source.verdict) {
                None => source.clone(),
                Some(filter) => Arc::new(RouteBackend {
                    filters: vec![filter],
                    ..RouteBackend::clone(source)
                }),
            };
            Rc::new(RuleBackend::new(backend, source, metrics))
        };
        match distribution {
            Distribution::Empty => Backends::FirstAvailable(Vec::new()),
            Distribution::FirstAvailable(sources) => {
                Backends::FirstAvailable(sources.iter().map(rule_backend).collect())
            }
            Distribution::RandomAvailable(sources) => Backends::RandomAvailable(
                sources
                    .iter()
                    .map(|(source, weight)| (rule_backend(source), *weight))
                    .collect(),
            ),
        }
    }

    /// Returns the backend of a mirror.
    fn mirror_backend(
        &mut self,
        source: &BackendSource,
        hosts: &[HostMatch],
        metrics: ExchangeMetrics,
    ) -> Rc<RuleBackend> {
        let backend = self.backend(source, hosts, Usage::Mirrors);
        let source = Arc::new(RouteBackend {
            backend: source.clone(),
            filters: Vec::new(),
            verdict: TcpVerdict::Forward,
        });
        Rc::new(RuleBackend::new(backend, source, metrics))
    }

    /// Returns the backend compiled from `source` for a route of these hosts: from these routes,
    /// from the replaced ones, or new.
    fn backend(
        &mut self,
        source: &BackendSource,
        hosts: &[HostMatch],
        usage: Usage,
    ) -> Rc<Backend> {
        let hosts = match &source.target {
            BackendTarget::Forward(_) => hosts,
            BackendTarget::Balance { .. } | BackendTarget::None => &[],
        };
        let accrual = self.accrual.filter(|_| usage == Usage::Requests);
        let is_same = |compiled: &&CompiledBackend| {
            compiled.usage == usage
                && compiled.hosts == hosts
                && compiled.backend.is_compiled_from(source, accrual)
        };
        if let Some(compiled) = self.backends.iter().find(is_same) {
            return compiled.backend.clone();
        }
        let compiled = match self.old.iter().find(is_same) {
            Some(compiled) => compiled.clone(),
            None => CompiledBackend {
                backend: Rc::new(Backend::new(
                    self.context,
                    self.parent,
                    self.family,
                    source,
                    accrual,
                )),
                hosts: hosts.to_vec(),
                usage,
            },
        };
        self.backends.push(compiled.clone());
        compiled.backend
    }

    fn profile(&mut self, profile: &Profile, target: &OutboundTarget) -> Table {
        let port = target.destination.port();
        let name = profile.fqn.as_ref().map(|fqn| format!("{fqn}:{port}"));
        let distribution = profile::backends(profile, name.as_deref(), self.parent);
        let dst = name
            .clone()
            .unwrap_or_else(|| target.destination.to_string());
        let canonical = name.and_then(|name| HeaderValue::try_from(name).ok());
        let families = self.context.families.clone();
        let default = profile::default_route();
        let rules = profile.routes.iter().chain([&default]).map(|route| {
            let labels = labels::profile_route(Direction::Outbound, &dst, &route.labels);
            let attempts = families
                .profile
                .attempts(labels.clone(), &route.response_classes);
            let attempts = ExchangeMetrics {
                profile: Some(Rc::new(attempts)),
                ..ExchangeMetrics::default()
            };
            let retry = RetryPolicy::of_profile(route, target.retry_budget.as_ref());
            let retries = || Rc::new(families.profile.retries(&labels));
            Rc::new(Rule {
                name: "profile".to_owned(),
                metrics: None,
                retry_metrics: retry.is_some().then(retries),
                profile_metrics: Some(Rc::new(
                    families.profile.route(labels, &route.response_classes),
                )),
                backends: self.distribution(&distribution, &[], |_| attempts.clone()),
                canonical: canonical.clone(),
                filters: Vec::new(),
                mirrors: Vec::new(),
                timeouts: Timeouts::default(),
                retry,
                head_timeout: route.timeout,
                allows_request_headers: false,
            })
        });
        Table::Profile(rules.collect())
    }
}

/// Returns the filter that rejects requests as the decision of an opaque route rejects
/// connections.
fn verdict_filter(verdict: &TcpVerdict) -> Option<Filter> {
    match verdict {
        TcpVerdict::Forward => None,
        TcpVerdict::Forbidden => Some(Filter::InjectHttpFailure {
            status: StatusCode::FORBIDDEN,
            message: "traffic not allowed".into(),
            ratio: Ratio::ALL,
        }),
        TcpVerdict::Invalid(message) => Some(Filter::InternalError(message.clone())),
    }
}

impl Backends {
    /// Chooses the backend for one request, among those that are available. If none is, the request
    /// may be the one that finds out whether an endpoint can be reached again.
    pub(super) fn choose(&self) -> Result<Rc<RuleBackend>, Error> {
        self.find(RuleBackend::is_available)
            .or_else(|| self.find(RuleBackend::is_trial_due))
            .cloned()
            .ok_or_else(|| Error::new(Kind::LoadShed, "service unavailable"))
    }

    fn find(&self, is_suitable: impl Fn(&RuleBackend) -> bool) -> Option<&Rc<RuleBackend>> {
        match self {
            Self::FirstAvailable(backends) => backends.iter().find(|it| is_suitable(it)),
            Self::RandomAvailable(backends) => choose_by_weight(backends, |it| is_suitable(it)),
        }
    }
}

/// Chooses randomly among the available items, in proportion to their weights.
fn choose_by_weight<T>(weighted: &[(T, u32)], is_available: impl Fn(&T) -> bool) -> Option<&T> {
    let available = || weighted.iter().filter(|(item, _)| is_available(item));
    let total: u64 = available().map(|(_, weight)| u64::from(*weight)).sum();
    if total == 0 {
        return None;
    }
    let mut left = random::below(total);
    available()
        .find(|(_, weight)| match left.checked_sub(u64::from(*weight)) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        })
        .map(|(item, _)| item)
}

impl Rule {
    /// Returns the metrics of the route for a request.
    pub(super) fn metrics(&self, request: &Request) -> Option<Rc<RouteMetrics>> {
        Some(self.metrics.as_ref()?.of_request(request))
    }

    pub(super) fn filters(&self) -> &[Filter] {
        &self.filters
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn available_backends_are_chosen_by_weight() {
        let weighted = [("a", 1), ("b", 0), ("c", 3), ("d", 100)];
        let mut counts = BTreeMap::new();
        for _ in 0..4_000 {
            let chosen = choose_by_weight(&weighted, |item| *item != "d");
            *counts.entry(*chosen.unwrap()).or_insert(0) += 1;
        }
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), ["a", "c"]);
        assert!((800..1_200).contains(&counts["a"]), "{counts:?}");
        assert_eq!(choose_by_weight(&weighted, |_| false), None);
        assert_eq!(choose_by_weight(&weighted, |item| *item == "b"), None);
    }
}
