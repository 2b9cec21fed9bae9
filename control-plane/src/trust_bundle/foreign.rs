//! Follows the trust domains of linked clusters: their ConfigMaps, the Links that these name, and
//! the bundles of their servers (docs/adr/0228).
//!
//! Failed requests and refused bundles change nothing. An invalid ConfigMap is not in effect. The
//! trust ends with the next look after the ConfigMap or its Link was deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, Client};
use mesh_cluster::api_server::explain;
use mesh_cluster::trust_bundle::client::{FetchError, fetch};
use mesh_cluster::trust_bundle::document::{self, DocumentError};
use mesh_core::annotation::TRUST_BUNDLE_OF;
use mesh_core::rights::{self, Right};
use mesh_core::trust_domain::{ForeignBundle, SequenceRefusal, refresh_after};
use mesh_k8s::crd::Link;
use mesh_k8s::foreign_domain::recorded::{Recorded, RecordedDomain};
use mesh_k8s::foreign_domain::{
    DOMAIN_LABEL, FAILING_METRIC, FETCHED_METRIC, ForeignDomain, LinkName, select,
};
use mesh_k8s::trust::fingerprint;
use mesh_runtime::log::chain;
use mesh_runtime::metrics::{Labels, Registry};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The trust domains of linked clusters.
pub(crate) struct ForeignDomains {
    config_maps: Api<ConfigMap>,
    client: Client,
    /// The trust domain of this mesh.
    own: String,
    /// The domains in effect, with the time of the next request.
    domains: BTreeMap<String, Followed>,
    /// The last problems, by object or domain. Only changes are logged.
    problems: BTreeMap<String, String>,
    states: States,
}

/// A domain in effect.
struct Followed {
    domain: ForeignDomain,
    due: Instant,
}

/// The state of each domain for metrics; scrapes read it.
type States = Arc<Mutex<BTreeMap<String, FetchState>>>;

#[derive(Clone, Copy, Default)]
struct FetchState {
    /// The last response that was not refused.
    fetched: Option<SystemTime>,
    is_failing: bool,
}

/// Why the bundle of a server is not used.
#[derive(Debug, thiserror::Error)]
enum BundleError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Sequence(#[from] SequenceRefusal),
}

/// Why a ConfigMap is not in effect although its fields are valid.
#[derive(Debug, thiserror::Error)]
enum DomainError {
    #[error("data[bundle.json] is refused")]
    Bundle(#[from] DocumentError),
    #[error("Link {}/{} does not exist", .0.namespace, .0.name)]
    NoLink(LinkName),
    #[error("cannot read Link {}/{}: {problem}", .link.namespace, .link.name)]
    Link { link: LinkName, problem: String },
}

/// After a failure, and as long as nothing else is known.
const RETRY: Duration = Duration::from_secs(15);

const PROGRAM: &str = "mesh-controller identity";

/// The rights of the follower.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    rights::all("", "configmaps", &["list"]).chain(rights::all(
        "multicluster.linkerd.io",
        "links",
        &["get"],
    ))
}

impl ForeignDomains {
    pub(crate) fn new(
        client: Client,
        control_namespace: &str,
        own: &str,
        registry: &Registry,
    ) -> Self {
        let states = States::default();
        export(registry, states.clone());
        Self {
            config_maps: Api::namespaced(client.clone(), control_namespace),
            client,
            own: own.to_owned(),
            domains: BTreeMap::new(),
            problems: BTreeMap::new(),
            states,
        }
    }

    /// Returns the domains that are trusted now, with the recorded bundles or, where there are
    /// none, the first ones.
    pub(super) async fn observe(&mut self, recorded: &Recorded) -> Recorded {
        let labelled = ListParams::default().labels(TRUST_BUNDLE_OF);
        let objects = match self.config_maps.list(&labelled).await {
            Ok(objects) => objects.items,
            Err(error) => {
                let problem = format!("cannot list them: {}", explain(&error));
                self.report("ConfigMaps of trust domains", Some(problem));
                return recorded.clone();
            }
        };
        self.report("ConfigMaps of trust domains", None);
        let (selected, refused) = select(&self.own, objects);
        let mut problems = BTreeMap::new();
        for refused in refused {
            let subject = format!("ConfigMap {}", refused.name);
            problems.insert(subject, chain(&refused.problem));
        }
        let mut trusted = Recorded::default();
        let mut in_effect = BTreeMap::new();
        for domain in selected {
            let known = recorded.get(&domain.trust_domain);
            match self.trust(&domain, known).await {
                Ok(current) => trusted.set(&domain.trust_domain, current),
                Err(error) => {
                    let subject = format!("trust domain {}", domain.trust_domain);
                    problems.insert(subject, chain(&error));
                    // Whether the Link exists is unknown: nothing changes.
                    match (error, known) {
                        (DomainError::Link { .. }, Some(known)) => {
                            trusted.set(&domain.trust_domain, known.clone());
                        }
                        _ => continue,
                    }
                }
            }
            in_effect.insert(domain.trust_domain.clone(), domain);
        }
        self.report_all(problems);
        self.follow(in_effect);
        trusted
    }

    /// Returns the bundle of a domain, unless its Link has gone.
    async fn trust(
        &self,
        domain: &ForeignDomain,
        known: Option<&RecordedDomain>,
    ) -> Result<RecordedDomain, DomainError> {
        if let Some(link) = &domain.link
            && !self.exists(link).await?
        {
            return Err(DomainError::NoLink(link.clone()));
        }
        let first = domain.bundle.as_deref().unwrap_or_default();
        let origin = fingerprint(first.as_bytes());
        if let Some(known) = known.filter(|known| known.is_from(&origin)) {
            return Ok(known.clone());
        }
        let bundle = if first.is_empty() {
            // It is fetched before anything is trusted.
            ForeignBundle {
                sequence: None,
                anchors: String::new(),
            }
        } else {
            document::read(first.as_bytes())?.bundle
        };
        Ok(RecordedDomain::new(&origin, bundle))
    }

    /// Returns whether a Link exists; not either if the API server does not know Links.
    async fn exists(&self, link: &LinkName) -> Result<bool, DomainError> {
        let links: Api<Link> = Api::namespaced(self.client.clone(), &link.namespace);
        match links.get_metadata(&link.name).await {
            Ok(found) => Ok(found.metadata.deletion_timestamp.is_none()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(DomainError::Link {
                link: link.clone(),
                problem: explain(&error),
            }),
        }
    }

    /// Keeps the times of known domains, and fetches the bundles of others at once.
    fn follow(&mut self, in_effect: BTreeMap<String, ForeignDomain>) {
        let mut before = std::mem::take(&mut self.domains);
        for (name, domain) in in_effect {
            let due = match before.remove(&name) {
                Some(followed) if followed.domain == domain => followed.due,
                _ => {
                    let cluster = &domain.cluster;
                    tracing::info!(
                        trust_domain = name,
                        cluster,
                        "Following a foreign trust domain"
                    );
                    Instant::now()
                }
            };
            self.domains.insert(name, Followed { domain, due });
        }
        for name in before.keys() {
            tracing::info!(
                trust_domain = name,
                "A foreign trust domain is not trusted any longer"
            );
        }
        let domains = &self.domains;
        let mut states = self.states.lock();
        states.retain(|name, _| domains.contains_key(name));
        for name in domains.keys() {
            states.entry(name.clone()).or_default();
        }
    }

    /// Fetches the bundles that are due, and returns the domains with those that replace others;
    /// `None` if there are none.
    pub(super) async fn refresh(&mut self, trusted: &Recorded) -> Option<Recorded> {
        let now = Instant::now();
        let due = self.domains.iter().filter(|(_, it)| it.due <= now);
        let fetched = due.filter_map(|(name, followed)| {
            let current = trusted.get(name)?.clone();
            let endpoint = &followed.domain.endpoint;
            Some(async move {
                let bundle = current.bundle();
                let fetched = fetch(endpoint, &bundle.anchors, PROGRAM).await;
                (name.clone(), current, fetched)
            })
        });
        let mut next = trusted.clone();
        for (name, current, fetched) in join_all(fetched).await {
            let (due, outcome) = match fetched {
                Ok(document) => {
                    let replaces = document.bundle.replaces(&current.bundle());
                    if replaces == Ok(true) {
                        let sequence = document.bundle.sequence;
                        tracing::info!(
                            trust_domain = name,
                            sequence,
                            "Received the bundle of a foreign trust domain"
                        );
                        next.set(&name, current.with(document.bundle));
                    }
                    let due = refresh_after(document.refresh_hint);
                    (due, replaces.map(drop).map_err(BundleError::from))
                }
                Err(error) => (RETRY, Err(error.into())),
            };
            self.finish(&name, due, outcome);
        }
        (next != *trusted).then_some(next)
    }

    /// Returns when a bundle is due next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.domains.values().map(|followed| followed.due).min()
    }

    /// Has bundles fetched again that were not recorded.
    pub(super) fn fetch_again(&mut self) {
        let soon = Instant::now() + RETRY;
        for followed in self.domains.values_mut() {
            followed.due = followed.due.min(soon);
        }
    }

    fn finish(&mut self, name: &str, after: Duration, outcome: Result<(), BundleError>) {
        if let Some(followed) = self.domains.get_mut(name) {
            followed.due = Instant::now() + after;
        }
        if let Some(state) = self.states.lock().get_mut(name) {
            state.is_failing = outcome.is_err();
            if outcome.is_ok() {
                state.fetched = Some(SystemTime::now());
            }
        }
        let problem = outcome.err().map(|error| chain(&error));
        self.report(&format!("bundle of {name}"), problem);
    }

    /// Logs new problems of objects.
    fn report_all(&mut self, problems: BTreeMap<String, String>) {
        let is_of_object = |subject: &str| {
            subject.starts_with("ConfigMap ") || subject.starts_with("trust domain ")
        };
        let before = self.problems.keys().filter(|subject| is_of_object(subject));
        let solved: Vec<String> = before
            .filter(|subject| !problems.contains_key(*subject))
            .cloned()
            .collect();
        for subject in solved {
            self.report(&subject, None);
        }
        for (subject, problem) in problems {
            self.report(&subject, Some(problem));
        }
    }

    /// Logs a problem that differs from the one before.
    fn report(&mut self, subject: &str, problem: Option<String>) {
        match problem {
            Some(problem) => {
                if self.problems.get(subject) != Some(&problem) {
                    tracing::warn!(subject, problem, "Foreign trust is not as configured");
                    self.problems.insert(subject.to_owned(), problem);
                }
            }
            None => {
                if self.problems.remove(subject).is_some() {
                    tracing::info!(subject, "A problem of foreign trust is solved");
                }
            }
        }
    }
}

fn export(registry: &Registry, states: States) {
    registry.on_scrape(move |scrape| {
        for (name, state) in states.lock().iter() {
            let labels = Labels::new().with(DOMAIN_LABEL, name.clone());
            let since = state.fetched.unwrap_or(UNIX_EPOCH).duration_since(UNIX_EPOCH);
            let help = "Unix time of the last bundle of a foreign trust domain that this replica fetched; 0 before the first";
            let seconds = since.unwrap_or_default().as_secs_f64().floor();
            scrape.gauge(FETCHED_METRIC, help, &labels, seconds);
            let help = "1 while the bundle of a foreign trust domain cannot be fetched or is refused, so that the last one stays in use, else 0";
            let failing = f64::from(u8::from(state.is_failing));
            scrape.gauge(FAILING_METRIC, help, &labels, failing);
        }
    });
}
