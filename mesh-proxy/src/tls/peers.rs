//! The peers of this proxy: which identities are denied, and what ends the connections with each
//! (docs/adr/0231).
//!
//! All generations of credentials share them. A handshake asks once, and a change of the list looks
//! at each connected identity once; requests do not ask.

use std::collections::HashMap;
use std::sync::Arc;

use mesh_core::deny_list::DenyList;
use mesh_core::identity::Identity;
use mesh_runtime::metrics::{Counter, Gauge, Labels, Registry};
use parking_lot::Mutex;

use crate::transport::revocation::{Admission, Reason, Revocation};

/// The peers of this proxy. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Peers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    // One lock for both: a connection is admitted by the list before a change, and ends, or it is
    // refused by the list after it. Locked once per handshake, which costs a thousand times more.
    state: Mutex<State>,
    size: Gauge,
    trust_domain: Ended,
    denied: Ended,
}

#[derive(Debug, Default)]
struct State {
    denied: DenyList,
    // Identities without connections are removed whenever the map would grow.
    connected: HashMap<Identity, Revocation>,
}

/// The connections that ended for a reason.
#[derive(Debug)]
struct Ended {
    handshakes: Counter,
    connections: Counter,
}

impl Peers {
    pub(crate) fn new(registry: &Registry) -> Self {
        let ended = registry.counter_family(
            "mesh_revoked_connections_total",
            "Connections with peers that are denied or whose trust domain is no longer trusted, by whether the handshake failed or the established connection ended",
        );
        let ended = |reason: &'static str| {
            let stage = |stage: &'static str| {
                let labels = Labels::new().with("reason", reason);
                ended.with(&labels.with("stage", stage))
            };
            Ended {
                handshakes: stage("handshake"),
                connections: stage("established"),
            }
        };
        let size = registry.gauge_family(
            "mesh_denied_identities",
            "Entries of the list of denied identities that this proxy got from the identity service",
        );
        Self(Arc::new(Shared {
            state: Mutex::default(),
            size: size.with(&Labels::new()),
            trust_domain: ended("trust_domain"),
            denied: ended("denied_identity"),
        }))
    }

    /// Admits a connection with a verified peer. It ends when the identity is denied, or with the
    /// trust in its `domain`, if that is a foreign one.
    pub(super) fn admit(
        &self,
        id: &Identity,
        domain: Option<&Revocation>,
    ) -> Result<Arc<Admission>, Reason> {
        let admission = Arc::default();
        let admitted = self.try_admit(id, domain, &admission);
        if let Err(reason) = admitted {
            self.ended(reason).handshakes.inc();
        }
        admitted.map(|()| admission)
    }

    fn try_admit(
        &self,
        id: &Identity,
        domain: Option<&Revocation>,
        admission: &Arc<Admission>,
    ) -> Result<(), Reason> {
        if domain.is_some_and(|domain| !domain.admit(admission)) {
            return Err(Reason::TrustDomain);
        }
        let mut state = self.0.state.lock();
        let State { denied, connected } = &mut *state;
        if denied.denies(id) {
            return Err(Reason::Denied);
        }
        if connected.len() == connected.capacity() {
            connected.retain(|_, revocation| revocation.is_used());
            // So that a full map is not searched for each connection.
            connected.reserve(connected.len() + 1);
        }
        // Revocations of the map are not revoked: a denied identity is removed.
        connected.entry(id.clone()).or_default().admit(admission);
        Ok(())
    }

    /// Denies these identities and no others. Their connections end.
    pub(crate) fn deny(&self, list: &DenyList) {
        let mut state = self.0.state.lock();
        let State { denied, connected } = &mut *state;
        if denied == list {
            return;
        }
        let entries = list.len();
        tracing::info!(entries, "The list of denied identities changed");
        self.0.size.set(i64::try_from(entries).unwrap_or(i64::MAX));
        denied.clone_from(list);
        let revoked: Vec<_> = connected.extract_if(|id, _| list.denies(id)).collect();
        drop(state);
        for (id, revocation) in revoked {
            let ended = revocation.revoke(Reason::Denied);
            self.count_ended(Reason::Denied, ended);
            if ended > 0 {
                tracing::info!(%id, connections = ended, "Identity is denied; its connections end");
            }
        }
    }

    /// Counts established connections that have ended.
    pub(crate) fn count_ended(&self, reason: Reason, connections: u64) {
        self.ended(reason).connections.inc_by(connections);
    }

    fn ended(&self, reason: Reason) -> &Ended {
        match reason {
            Reason::TrustDomain => &self.0.trust_domain,
            Reason::Denied => &self.0.denied,
        }
    }
}

impl Default for Peers {
    /// Returns peers of credentials that no follower of the list has.
    fn default() -> Self {
        Self::new(&Registry::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> Identity {
        Identity::parse(name).unwrap()
    }

    fn list(entries: &[&str]) -> DenyList {
        DenyList::parse(entries.iter().copied()).unwrap()
    }

    #[test]
    fn denied_identity_loses_its_connections_and_gets_none_until_it_is_allowed() {
        let registry = Registry::new();
        let peers = Peers::new(&registry);
        let web = peers.admit(&id("web.shop.test"), None).unwrap();
        let bank = peers.admit(&id("a.bank.test"), None).unwrap();
        let db = peers.admit(&id("db.shop.test"), None).unwrap();
        peers.deny(&list(&["web.shop.test", "*.bank.test"]));
        assert!(web.is_revoked() && bank.is_revoked() && !db.is_revoked());
        for denied in ["web.shop.test", "b.bank.test"] {
            assert_eq!(peers.admit(&id(denied), None).unwrap_err(), Reason::Denied);
        }
        peers.admit(&id("db.shop.test"), None).unwrap();
        peers.deny(&list(&["a.bank.test"]));
        let again = peers.admit(&id("web.shop.test"), None).unwrap();
        assert!(!again.is_revoked() && web.is_revoked());
        let text = String::from_utf8(registry.encode()).unwrap();
        for line in [
            "mesh_denied_identities 1",
            r#"mesh_revoked_connections_total{reason="denied_identity",stage="established"} 2"#,
            r#"mesh_revoked_connections_total{reason="denied_identity",stage="handshake"} 2"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{text}");
        }
    }

    #[test]
    fn foreign_peer_ends_with_its_domain_and_with_its_identity() {
        let (peers, domain) = (Peers::default(), Revocation::default());
        let denied = peers.admit(&id("web.west.test"), Some(&domain)).unwrap();
        let other = peers.admit(&id("db.west.test"), Some(&domain)).unwrap();
        peers.deny(&list(&["web.west.test"]));
        assert!(denied.is_revoked() && !other.is_revoked());
        domain.revoke(Reason::TrustDomain);
        assert!(other.is_revoked());
        let refused = peers.admit(&id("db.west.test"), Some(&domain));
        assert_eq!(refused.unwrap_err(), Reason::TrustDomain);
    }

    #[test]
    fn identities_without_connections_are_forgotten() {
        let peers = Peers::default();
        let kept = peers.admit(&id("kept.test"), None).unwrap();
        for at in 0..10_000 {
            drop(peers.admit(&id(&format!("a{at}.test")), None).unwrap());
        }
        let known = peers.0.state.lock().connected.capacity();
        assert!(known < 100, "{known}");
        peers.deny(&list(&["kept.test"]));
        assert!(kept.is_revoked());
    }
}
