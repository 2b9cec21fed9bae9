//! Follows the trust anchors that the identity service sends (`mesh.identity.TrustAnchors`).
//!
//! Runs on the control thread. The connection authenticates the service by the anchors that the
//! proxy trusts already, so that no other server can add one. A bundle replaces the one before only
//! if its number is higher: a replica with an earlier bundle, or a service that is restored from a
//! backup, cannot bring back an anchor that was withdrawn. The number is not kept across a restart
//! of the proxy. The identity service of Linkerd sends no anchors; the environment's then stay in
//! use.
//!
//! A bundle has the anchors of foreign trust domains besides, which are valid for their names only
//! (docs/adr/0228). A domain that it no longer has is not trusted from then on, and its connections
//! end.
//!
//! The list of denied identities comes with it, and is in effect from then on (docs/adr/0231). A
//! service without such a list leaves the last one in effect.

use std::sync::Arc;
use std::time::Duration;

use mesh_api::mesh::identity::{self as wire, WatchRequest};
use mesh_core::deny_list::DenyList;
use mesh_core::identity::Identity;
use mesh_core::resilience::Backoff;
use mesh_core::trust_bundle::{BundleRefusal, TrustBundle};
use mesh_runtime::metrics::{Counter, Gauge, Labels, Registry};
use tokio::sync::Notify;
use tonic::{Code, Status};

use crate::config::StreamLimits;
use crate::control::follow::{Event, RetryDecision, follow};
use crate::control::{self, Client, stream};
use crate::tls::{Credentials, Peers, TrustAnchors};
use crate::transport::revocation::Reason;
use crate::watch;

/// Publishes the bundles that the identity service sends.
#[derive(Debug)]
pub(super) struct BundleFollower {
    client: Client,
    backoff: Backoff,
    credentials: watch::Receiver<Option<Arc<Credentials>>>,
    bundles: Bundles,
}

/// The bundle in use, and where it is published.
#[derive(Debug)]
pub(super) struct Bundles {
    own: Own,
    /// `None` if the anchors come from a file.
    anchors: Option<watch::Sender<TrustAnchors>>,
    peers: Peers,
    /// `None` while the environment's anchors are in use.
    current: Option<TrustBundle>,
    /// Whether the service has no trust anchors. Only changes are logged.
    is_unsupported: bool,
    number: Gauge,
    foreign: Gauge,
    refused: Counter,
    is_denied: bool,
    own_is_denied: Gauge,
}

/// What a bundle must not contradict.
#[derive(Debug)]
pub(super) struct Own {
    /// The identity of this proxy.
    pub(super) id: Identity,
    /// The trust domain of the mesh, which no foreign one may overlap; `None` if it is unknown.
    pub(super) domain: Option<String>,
}

/// Why a bundle is not used.
#[derive(Debug, thiserror::Error)]
enum BundleError {
    #[error(transparent)]
    Field(#[from] mesh_api::InvalidField),
    #[error(transparent)]
    Anchors(#[from] crate::tls::TrustAnchorsError),
    #[error(transparent)]
    Refused(#[from] BundleRefusal),
}

const WATCH: &str = "/mesh.identity.TrustAnchors/Watch";

/// A service that responds sends the current bundle at once.
const FIRST_MESSAGE: Duration = Duration::from_secs(15);

/// After this time the service must authenticate itself again, by the anchors that are in use then.
const LIFETIME: Duration = Duration::from_secs(3600);

/// How often an identity service without trust anchors is asked again, because it may be replaced
/// by one that has them.
const RETRY_UNSUPPORTED: Duration = Duration::from_secs(300);

impl BundleFollower {
    pub(super) fn new(
        client: Client,
        backoff: Backoff,
        credentials: watch::Receiver<Option<Arc<Credentials>>>,
        bundles: Bundles,
    ) -> Self {
        Self {
            client,
            backoff,
            credentials,
            bundles,
        }
    }

    /// Runs for the life of the process, from the first certificate on.
    pub(super) async fn run(mut self) {
        if self.credentials.wait_for(Option::is_some).await.is_err() {
            // The process exits.
            return;
        }
        let limits = StreamLimits {
            initial: Some(FIRST_MESSAGE),
            idle: None,
            lifetime: Some(LIFETIME),
        };
        let changed = Notify::new();
        loop {
            let client = &self.client;
            let bundles = &mut self.bundles;
            let open = || stream::open(client.clone(), WATCH, WatchRequest {});
            let following = follow(limits, self.backoff, open, |event| {
                if bundles.apply(event) {
                    changed.notify_one();
                }
                bundles.decide()
            });
            // The service that sent new anchors must authenticate itself by them too, so that one
            // whose anchor was withdrawn is not followed any longer.
            tokio::select! {
                biased;
                () = following => {}
                () = changed.notified() => {}
            }
        }
    }
}

impl Bundles {
    pub(super) fn new(
        own: Own,
        anchors: Option<watch::Sender<TrustAnchors>>,
        peers: Peers,
        registry: &Registry,
    ) -> Self {
        let none = Labels::new();
        Self {
            own,
            anchors,
            peers,
            current: None,
            is_unsupported: false,
            is_denied: false,
            number: registry
                .gauge_family(
                    "mesh_trust_bundle_number",
                    "Number of the trust anchors that this proxy got from the identity service; 0 while it uses those of its environment",
                )
                .with(&none),
            foreign: registry
                .gauge_family(
                    "mesh_foreign_trust_domains",
                    "Foreign trust domains that this proxy trusts for their own names, by the anchors that the identity service sends",
                )
                .with(&none),
            refused: registry
                .counter_family(
                    "mesh_trust_bundles_refused_total",
                    "Trust anchors that the identity service sent and this proxy did not use, because they are invalid or have a lower number",
                )
                .with(&none),
            own_is_denied: registry
                .gauge_family(
                    "mesh_own_identity_denied",
                    "1 while the identity of this proxy is denied: peers of the mesh refuse it, and it gets no certificate",
                )
                .with(&none),
        }
    }

    /// Returns whether the anchors changed.
    fn apply(&mut self, event: Event<wire::TrustBundle>) -> bool {
        match event {
            Event::Message { message, .. } => {
                self.is_unsupported = false;
                match self.adopt(message) {
                    Ok(is_changed) => is_changed,
                    Err(error) => {
                        self.refused.inc();
                        tracing::error!(%error, "Trust anchors of the identity service refused; the current ones stay in use");
                        false
                    }
                }
            }
            Event::Failed(status) => {
                self.report(&status);
                false
            }
        }
    }

    fn adopt(&mut self, message: wire::TrustBundle) -> Result<bool, BundleError> {
        let new = mesh_api::identity::trust_bundle(message)?;
        if !new.replaces(self.current.as_ref())? {
            return Ok(false);
        }
        let mesh = TrustAnchors::from_pem(&new.anchors)?;
        if let Some(list) = &new.denied {
            self.deny(list);
        }
        let Some(anchors_in_use) = &self.anchors else {
            self.current = Some(new);
            return Ok(false);
        };
        let mut foreign = anchors_in_use.borrow().foreign().clone();
        let removed = foreign.retain(|domain| new.foreign.contains_key(domain));
        for (domain, pem) in &new.foreign {
            if let Err(error) = foreign.insert(domain, pem, self.own.domain.as_deref()) {
                self.refused.inc();
                tracing::error!(%error, domain, "Anchors of a foreign trust domain refused");
            }
        }
        let number = new.number;
        self.number.set(i64::try_from(number).unwrap_or(i64::MAX));
        self.current = Some(new);
        let (count, domains) = (mesh.len(), foreign.len());
        self.foreign.set(i64::try_from(domains).unwrap_or(i64::MAX));
        let anchors = mesh.with_foreign(foreign);
        let is_changed = anchors_in_use.send_if_modified(|current| {
            let is_changed = *current != anchors;
            if is_changed {
                *current = anchors;
            }
            is_changed
        });
        // A handshake by the anchors before would be admitted by them, and ends too.
        let ended = removed.end_connections();
        self.peers.count_ended(Reason::TrustDomain, ended);
        tracing::info!(
            anchors = count,
            number,
            foreign_domains = domains,
            "Received trust anchors"
        );
        Ok(is_changed)
    }

    fn deny(&mut self, list: &DenyList) {
        let is_own = list.denies(&self.own.id);
        self.own_is_denied.set(i64::from(is_own));
        match (std::mem::replace(&mut self.is_denied, is_own), is_own) {
            (false, true) => tracing::warn!(
                id = %self.own.id,
                "The identity of this proxy is denied: peers of the mesh refuse it, and it gets no certificate"
            ),
            (true, false) => {
                tracing::info!(id = %self.own.id, "The identity of this proxy is no longer denied");
            }
            _ => {}
        }
        self.peers.deny(list);
    }

    fn report(&mut self, status: &Status) {
        let is_unsupported = status.code() == Code::Unimplemented;
        let was_unsupported = std::mem::replace(&mut self.is_unsupported, is_unsupported);
        if !is_unsupported {
            let reason = control::reason(status);
            tracing::debug!(reason, "Stream of trust anchors failed");
        } else if !was_unsupported {
            tracing::info!(
                "The identity service does not send trust anchors; those of the environment stay in use"
            );
        }
    }

    fn decide(&self) -> RetryDecision {
        if self.is_unsupported {
            RetryDecision::RetryAfter(RETRY_UNSUPPORTED)
        } else {
            RetryDecision::Retry
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::tests::TestCa;

    fn message(number: u64, anchors: &str) -> Event<wire::TrustBundle> {
        with_foreign(number, anchors, &[])
    }

    fn with_foreign(
        number: u64,
        anchors: &str,
        foreign: &[(&str, &str)],
    ) -> Event<wire::TrustBundle> {
        let foreign = foreign
            .iter()
            .map(|(domain, anchors)| wire::ForeignAnchors {
                trust_domain: (*domain).to_owned(),
                anchors: (*anchors).to_owned(),
            });
        Event::Message {
            first: true,
            message: wire::TrustBundle {
                number,
                anchors: anchors.to_owned(),
                foreign: foreign.collect(),
                denied: None,
            },
        }
    }

    fn own(domain: Option<&str>) -> Own {
        Own {
            id: Identity::parse("own.test").unwrap(),
            domain: domain.map(str::to_owned),
        }
    }

    fn bundles(anchors: &TestCa, registry: &Registry) -> (Bundles, watch::Receiver<TrustAnchors>) {
        let (publish, published) = watch::channel(anchors.anchors());
        let own = own(Some("cluster.local"));
        let peers = Peers::new(registry);
        (Bundles::new(own, Some(publish), peers, registry), published)
    }

    #[test]
    fn only_a_higher_number_replaces_the_anchors() {
        let (old, new) = (TestCa::new(), TestCa::new());
        let both = format!("{}{}", old.pem, new.pem);
        let registry = Registry::new();
        let (mut bundles, anchors) = bundles(&old, &registry);
        for (number, pem, is_used) in [
            // The environment's anchors: nothing changes.
            (5, &old.pem, false),
            (5, &both, false),
            (4, &both, false),
            (6, &both, true),
            (6, &both, false),
            (5, &old.pem, false),
            (7, &"no certificate".to_owned(), false),
            (7, &new.pem, true),
            (0, &old.pem, false),
            (6, &both, false),
        ] {
            assert_eq!(bundles.apply(message(number, pem)), is_used, "{number}");
        }
        assert_eq!(*anchors.borrow(), new.anchors());
        let text = String::from_utf8(registry.encode()).unwrap();
        for line in [
            "mesh_trust_bundle_number 7\n",
            "mesh_trust_bundles_refused_total 6\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn foreign_domains_are_those_of_the_bundle_except_for_invalid_ones() {
        let (own, foreign, other) = (TestCa::new(), TestCa::new(), TestCa::new());
        let registry = Registry::new();
        let (mut bundles, anchors) = bundles(&own, &registry);
        let mut apply = |number, domains: &[(&str, &str)]| {
            bundles.apply(with_foreign(number, &own.pem, domains));
            anchors.borrow().clone()
        };
        let with = |domains: &[(&str, &TestCa)], from: &TrustAnchors| {
            // A clone has the same revocation for each domain.
            let mut expected = from.foreign().clone();
            let _removed = expected.retain(|domain| domains.iter().any(|it| it.0 == domain));
            for (domain, ca) in domains {
                let own = Some("cluster.local");
                expected.insert(domain, &ca.pem, own).unwrap();
            }
            own.anchors().with_foreign(expected)
        };
        let first = apply(1, &[("west.example", &foreign.pem)]);
        assert_eq!(first, with(&[("west.example", &foreign)], &first));
        // Invalid anchors change nothing; other domains are not affected.
        let second = apply(
            2,
            &[
                ("cluster.local", &other.pem),
                ("local", &other.pem),
                ("a.west.example", &other.pem),
                ("south.example", &other.pem),
                ("west.example", "no certificate"),
            ],
        );
        let both = [("south.example", &other), ("west.example", &foreign)];
        // `a.west.example` comes first in the order of names, but `west.example` is in use.
        assert_eq!(second, with(&both, &second));
        assert_eq!(apply(3, &[("south.example", &own.pem)]).foreign().len(), 1);
        assert_eq!(apply(4, &[]), own.anchors());
        let text = String::from_utf8(registry.encode()).unwrap();
        for line in [
            "mesh_foreign_trust_domains 0\n",
            "mesh_trust_bundles_refused_total 4\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn list_of_denied_identities_is_that_of_the_last_bundle_with_one() {
        let ca = TestCa::new();
        let registry = Registry::new();
        let (mut bundles, anchors) = bundles(&ca, &registry);
        let mut apply = |number, entries: Option<&[&str]>| {
            let Event::Message { first, mut message } = message(number, &ca.pem) else {
                panic!("not a message");
            };
            message.denied = entries.map(|entries| wire::DeniedIdentities {
                entries: entries.iter().map(|&entry| entry.to_owned()).collect(),
            });
            bundles.apply(Event::Message { first, message });
            let text = String::from_utf8(registry.encode()).unwrap();
            let value = |name: &str| {
                let line = text.lines().find(|line| line.starts_with(name)).unwrap();
                line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
            };
            ["mesh_denied_identities ", "mesh_own_identity_denied "].map(value)
        };
        for (number, entries, expected) in [
            (1, None, [0, 0]),
            // A replica of this version sends the same bundle with its list.
            (1, Some(&["web.test", "own.test"][..]), [2, 1]),
            (2, None, [2, 1]),
            // An invalid list is refused with its bundle.
            (3, Some(&["*"]), [2, 1]),
            (1, Some(&[]), [2, 1]),
            (3, Some(&["web.test"]), [1, 0]),
            (4, Some(&[]), [0, 0]),
        ] {
            assert_eq!(apply(number, entries), expected, "{number} {entries:?}");
        }
        assert_eq!(*anchors.borrow(), ca.anchors());
    }

    #[test]
    fn anchors_of_a_file_stay_and_the_list_of_denied_identities_is_followed() {
        let ca = TestCa::new();
        let registry = Registry::new();
        let mut bundles = Bundles::new(own(None), None, Peers::default(), &registry);
        let Event::Message { first, mut message } = message(1, &ca.pem) else {
            panic!("not a message");
        };
        let entries = vec!["own.test".to_owned()];
        message.denied = Some(wire::DeniedIdentities { entries });
        assert!(!bundles.apply(Event::Message { first, message }));
        let text = String::from_utf8(registry.encode()).unwrap();
        for line in [
            "mesh_own_identity_denied 1\n",
            "mesh_trust_bundle_number 0\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn mesh_without_a_known_trust_domain_trusts_no_foreign_one() {
        let ca = TestCa::new();
        let (publish, anchors) = watch::channel(ca.anchors());
        let peers = Peers::default();
        let mut bundles = Bundles::new(own(None), Some(publish), peers, &Registry::new());
        bundles.apply(with_foreign(1, &ca.pem, &[("west.example", &ca.pem)]));
        assert_eq!(*anchors.borrow(), ca.anchors());
    }

    #[test]
    fn identity_service_without_anchors_is_asked_again_later() {
        let ca = TestCa::new();
        let (mut bundles, anchors) = bundles(&ca, &Registry::new());
        assert!(!bundles.apply(Event::Failed(Status::unimplemented("unknown service"))));
        let decision = bundles.decide();
        assert_eq!(decision, RetryDecision::RetryAfter(RETRY_UNSUPPORTED));
        assert_eq!(*anchors.borrow(), ca.anchors());
        bundles.apply(Event::Failed(Status::unavailable("restarting")));
        assert_eq!(bundles.decide(), RetryDecision::Retry);
    }
}
