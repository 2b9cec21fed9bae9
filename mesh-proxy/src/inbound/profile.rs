//! The routes of ServiceProfiles that inbound requests have, for metrics and the classification of
//! responses. A request has the route of the Service that its client names, as in Linkerd: by
//! `l5d-dst-canonical`, which the client's proxy sets, or else by its authority.
//!
//! No request waits for a profile (docs/adr/0149).

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use mesh_core::profile::ProfileRoute;
use tokio::time::Instant;

use crate::context::ProxyContext;
use crate::discovery::{NameAddr, ProfileUpdates, ServiceRoutes};
use crate::http::Request;
use crate::http::headers::DST_CANONICAL;
use crate::limits::idle::IdleCache;
use crate::telemetry::http::EndpointMetrics;
use crate::telemetry::labels::{self, Direction};

/// The profiles of one data thread.
pub(super) struct Profiles {
    context: Rc<ProxyContext>,
    names: IdleCache<NameAddr, NamedProfile>,
    /// When the limit of names was found reached.
    full_since: Cell<Option<Instant>>,
}

/// The name of a connection's last request, which the next one usually has too.
#[derive(Default)]
pub(super) struct LastName(RefCell<Option<FoundName>>);

/// The result of a lookup.
struct FoundName {
    text: Box<str>,
    /// `None` if the name is outside of the suffixes.
    profile: Option<Rc<NamedProfile>>,
}

/// The profile of one name.
struct NamedProfile {
    port: u16,
    updates: RefCell<ProfileUpdates>,
    service: RefCell<Option<CompiledService>>,
}

/// The routes of a Service with their metric handles, which are resolved by the first request.
struct CompiledService {
    source: ServiceRoutes,
    metrics: Vec<OnceCell<Rc<EndpointMetrics>>>,
}

/// How long a data thread looks up no further names once there are too many. Each lookup takes a
/// lock that all threads share.
const RETRY_FULL: Duration = Duration::from_secs(5);

impl Profiles {
    pub(super) fn new(context: Rc<ProxyContext>) -> Self {
        Self {
            names: IdleCache::new(context.config.discovery.inbound_idle),
            full_since: Cell::new(None),
            context,
        }
    }

    /// Returns the metrics of the route that a request of a connection has.
    pub(super) fn route(&self, last: &LastName, request: &Request) -> Option<Rc<EndpointMetrics>> {
        let canonical = request.headers().get(DST_CANONICAL);
        let canonical = canonical.and_then(|value| value.to_str().ok());
        let authority = request.uri().authority().map(http::uri::Authority::as_str);
        let mut names = [canonical, authority].into_iter().flatten();
        // An invalid header does not hide the authority.
        let named = names.find_map(|text| self.named(last, text))?;
        named?.route(&self.context, request)
    }

    /// Returns the profile of a name, if it has one. `None` if the text is not a name.
    fn named(&self, last: &LastName, text: &str) -> Option<Option<Rc<NamedProfile>>> {
        if let Some(found) = &*last.0.borrow()
            && *found.text == *text
        {
            return Some(found.profile.clone());
        }
        let name: NameAddr = text.parse().ok()?;
        let profile = if self.has_profile(&name) {
            let Some(profile) = self.find(&name) else {
                // The next request tries again.
                return Some(None);
            };
            Some(profile)
        } else {
            None
        };
        last.0.replace(Some(FoundName {
            text: text.into(),
            profile: profile.clone(),
        }));
        Some(profile)
    }

    /// The names, for evictions.
    pub(in crate::inbound) fn names(&self) -> &IdleCache<NameAddr, impl Sized> {
        &self.names
    }

    /// The number of names that this thread follows.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.names.count()
    }

    fn has_profile(&self, name: &NameAddr) -> bool {
        let settings = &self.context.config.discovery;
        settings.has_profile_suffix(name.host())
    }

    /// `None` if there are too many names.
    fn find(&self, name: &NameAddr) -> Option<Rc<NamedProfile>> {
        if let Some(profile) = self.names.get(name) {
            return Some(profile);
        }
        let is_full = |since: Instant| since.elapsed() < RETRY_FULL;
        if self.full_since.get().is_some_and(is_full) {
            return None;
        }
        let Some(updates) = self.context.discovery.inbound_profile(name) else {
            tracing::warn!(%name, "Too many names of inbound requests: routes of ServiceProfiles are not counted");
            self.full_since.set(Some(Instant::now()));
            return None;
        };
        let profile = NamedProfile {
            port: name.port(),
            updates: RefCell::new(updates),
            service: RefCell::new(None),
        };
        Some(self.names.insert(name.clone(), profile))
    }
}

impl NamedProfile {
    fn route(&self, context: &ProxyContext, request: &Request) -> Option<Rc<EndpointMetrics>> {
        if let Some(source) = self.updates.borrow_mut().changed() {
            self.update(source);
        }
        let service = self.service.borrow();
        let CompiledService { source, metrics } = service.as_ref()?;
        let path = request.uri().path();
        let matches = |route: &ProfileRoute| route.condition.is_match(request.method(), path);
        let found = source.routes.iter().position(matches)?;
        let metrics = metrics[found].get_or_init(|| {
            let route = &source.routes[found];
            let dst = format!("{}:{}", source.service, self.port);
            let labels = labels::profile_route(Direction::Inbound, &dst, &route.labels);
            Rc::new(
                context
                    .families
                    .profile
                    .route(labels, &route.response_classes),
            )
        });
        Some(metrics.clone())
    }

    fn update(&self, source: Option<ServiceRoutes>) {
        let mut service = self.service.borrow_mut();
        if service.as_ref().map(|service| &service.source) != source.as_ref() {
            *service = source.map(|source| CompiledService {
                metrics: vec![OnceCell::new(); source.routes.len()],
                source,
            });
        }
    }
}
