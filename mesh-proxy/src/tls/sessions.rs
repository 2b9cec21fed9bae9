//! TLS sessions that can be resumed, per endpoint.
//!
//! A session may only be resumed with the very peer it was made with, and tickets of one pod are
//! worthless to another pod of the same identity. So each (peer, address, ALPN) has a client
//! configuration of its own, holding its tickets.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use mesh_core::endpoint::TlsPeer;
use parking_lot::Mutex;
use rustls::NamedGroup;
use rustls::client::{
    ClientConfig, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls_pki_types::ServerName;

/// Whom a connection goes to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Target {
    pub(super) peer: TlsPeer,
    pub(super) addr: SocketAddr,
    pub(super) alpn: bool,
}

/// Client configurations of the endpoints that were dialled lately: those since the last turn, and
/// those of the turn before. Dropping the older half at once keeps it bounded without an order to
/// maintain.
#[derive(Default)]
pub(super) struct ClientConfigs {
    // Taken once per handshake, which costs a thousand times more.
    halves: Mutex<(Half, Half)>,
}

/// The tickets of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    tickets: Mutex<VecDeque<Tls13ClientSessionValue>>,
    kx_hint: Mutex<Option<NamedGroup>>,
}

type Half = HashMap<Target, Arc<ClientConfig>>;

/// A configuration with its tickets is about 4 KiB; two halves of this many are a few megabytes at
/// most.
const HALF: usize = 512;

/// Each is used once; a server sends one per connection, so more than this many are only spare.
const TICKETS_PER_ENDPOINT: usize = 4;

impl ClientConfigs {
    /// The endpoint's configuration, made by `make` when there is none.
    pub(super) fn of<E>(
        &self,
        target: &Target,
        make: impl FnOnce() -> Result<Arc<ClientConfig>, E>,
    ) -> Result<Arc<ClientConfig>, E> {
        let mut halves = self.halves.lock();
        let (young, old) = &mut *halves;
        if let Some(config) = young.get(target) {
            return Ok(config.clone());
        }
        let config = match old.remove(target) {
            Some(config) => config,
            None => make()?,
        };
        if young.len() >= HALF {
            *old = std::mem::take(young);
        }
        young.insert(target.clone(), config.clone());
        Ok(config)
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _server_name: ServerName<'static>, group: NamedGroup) {
        *self.kx_hint.lock() = Some(group);
    }

    fn kx_hint(&self, _server_name: &ServerName<'_>) -> Option<NamedGroup> {
        *self.kx_hint.lock()
    }

    fn set_tls12_session(
        &self,
        _server_name: ServerName<'static>,
        _value: Tls12ClientSessionValue,
    ) {
    }

    fn tls12_session(&self, _server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _server_name: &ServerName<'static>) {}

    fn insert_tls13_ticket(
        &self,
        _server_name: ServerName<'static>,
        value: Tls13ClientSessionValue,
    ) {
        let mut tickets = self.tickets.lock();
        if tickets.len() == TICKETS_PER_ENDPOINT {
            tickets.pop_front();
        }
        // Most endpoints have one.
        tickets.reserve_exact(1);
        tickets.push_back(value);
    }

    fn take_tls13_ticket(
        &self,
        _server_name: &ServerName<'static>,
    ) -> Option<Tls13ClientSessionValue> {
        self.tickets.lock().pop_back()
    }
}

impl fmt::Debug for ClientConfigs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let halves = self.halves.lock();
        write!(f, "ClientConfigs({})", halves.0.len() + halves.1.len())
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::identity::Identity;

    use super::*;
    use crate::tls::client::anonymous_config;
    use crate::tls::tests::authority;

    #[test]
    fn endpoints_are_forgotten_when_many_others_were_dialled_since() {
        let anchors = authority().anchors();
        let target = |n: u32| Target {
            peer: TlsPeer {
                id: Identity::parse("a.test").unwrap(),
                server_name: "a.test".into(),
            },
            addr: SocketAddr::from((std::net::Ipv4Addr::from(n), 1)),
            alpn: false,
        };
        let shared = anonymous_config(&anchors, &target(0).peer).unwrap();
        let configs = ClientConfigs::default();
        let is_remembered = |n: u32| {
            let mut made = false;
            let config = configs.of(&target(n), || {
                made = true;
                Ok::<_, std::convert::Infallible>(shared.clone())
            });
            config.unwrap();
            !made
        };
        let half = HALF as u32;
        (0..=half).for_each(|n| assert!(!is_remembered(n)));
        assert!(
            is_remembered(0),
            "in the older half, and moved to the younger"
        );
        (half..3 * half).for_each(|n| _ = is_remembered(n));
        assert!(!is_remembered(0));
        let held = configs.halves.lock();
        assert!(held.0.len() + held.1.len() <= 2 * HALF);
    }
}
