//! Resumable TLS sessions per endpoint.
//!
//! A session may be resumed only with the peer that established it, and a pod does not accept
//! tickets of another pod with the same identity. So each [`SessionKey`] has its own client
//! configuration with its own tickets.

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

/// The key of a client configuration and its sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    pub(super) peer: TlsPeer,
    pub(super) addr: SocketAddr,
    pub(super) alpn: bool,
}

/// Client configurations of recently used endpoints, in the current and the previous generation.
/// Dropping a whole generation bounds the cache without maintaining an order of use.
#[derive(Default)]
pub(super) struct ClientConfigs {
    // Locked once per handshake, which costs a thousand times more.
    generations: Mutex<(Generation, Generation)>,
}

/// The session tickets of one endpoint.
#[derive(Debug, Default)]
pub(super) struct TicketStore {
    tickets: Mutex<VecDeque<Tls13ClientSessionValue>>,
    kx_hint: Mutex<Option<NamedGroup>>,
}

type Generation = HashMap<SessionKey, Arc<ClientConfig>>;

/// Configurations per generation. One with its tickets takes about 4 KiB, so two generations take
/// at most 4 MiB.
const GENERATION_CAPACITY: usize = 512;

/// Each ticket is used once, and a server sends one per connection.
const TICKETS_PER_ENDPOINT: usize = 4;

impl ClientConfigs {
    /// Returns the configuration of `key`, which `create` builds if there is none.
    pub(super) fn get_or_create<E>(
        &self,
        key: &SessionKey,
        create: impl FnOnce() -> Result<Arc<ClientConfig>, E>,
    ) -> Result<Arc<ClientConfig>, E> {
        let mut generations = self.generations.lock();
        let (current, previous) = &mut *generations;
        if let Some(config) = current.get(key) {
            return Ok(config.clone());
        }
        let config = match previous.remove(key) {
            Some(config) => config,
            None => create()?,
        };
        if current.len() >= GENERATION_CAPACITY {
            *previous = std::mem::take(current);
        }
        current.insert(key.clone(), config.clone());
        Ok(config)
    }
}

impl ClientSessionStore for TicketStore {
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
        // Most endpoints have one ticket.
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
        let generations = self.generations.lock();
        write!(
            f,
            "ClientConfigs({})",
            generations.0.len() + generations.1.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::identity::Identity;

    use super::*;
    use crate::tls::client::anonymous_config;
    use crate::tls::tests::TestCa;

    #[test]
    fn least_recently_used_endpoints_are_evicted() {
        let anchors = TestCa::new().anchors();
        let key = |n: u32| SessionKey {
            peer: TlsPeer {
                id: Identity::parse("a.test").unwrap(),
                server_name: "a.test".into(),
            },
            addr: SocketAddr::from((std::net::Ipv4Addr::from(n), 1)),
            alpn: false,
        };
        let shared = anonymous_config(&anchors, &key(0).peer).unwrap();
        let configs = ClientConfigs::default();
        let is_cached = |n: u32| {
            let mut is_created = false;
            let config = configs.get_or_create(&key(n), || {
                is_created = true;
                Ok::<_, std::convert::Infallible>(shared.clone())
            });
            config.unwrap();
            !is_created
        };
        let capacity = GENERATION_CAPACITY as u32;
        (0..=capacity).for_each(|n| assert!(!is_cached(n)));
        assert!(
            is_cached(0),
            "moves from the previous to the current generation"
        );
        (capacity..3 * capacity).for_each(|n| _ = is_cached(n));
        assert!(!is_cached(0));
        let generations = configs.generations.lock();
        assert!(generations.0.len() + generations.1.len() <= 2 * GENERATION_CAPACITY);
    }
}
