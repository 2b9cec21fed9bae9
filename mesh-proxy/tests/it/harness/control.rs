//! The control plane: real gRPC services that say what the test has set, and follow it up when the
//! test sets something else.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mesh_api::proto::destination as dst;
use mesh_core::deny_list::DenyList;
use mesh_core::endpoint::{Endpoint, EndpointUpdate};
use mesh_core::policy::inbound::ServerPolicy;
use mesh_core::policy::outbound::{OutboundPolicy, Target};
use mesh_core::profile::Profile;
use mesh_core::trust_bundle::TrustBundle;
use mesh_test_support::certificates::TestCa;
use mesh_test_support::control_plane::{Messages, channel, serve_connection};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub(crate) mod policies;
mod services;

/// Where every service listens, in every pod that is meshed: proxies trust loopback addresses
/// without TLS.
pub(crate) const PORT: u16 = 8090;

/// The answers to proxies. Clones are the same control plane.
#[derive(Clone)]
pub(crate) struct ControlPlane {
    state: Arc<State>,
}

struct State {
    trust_domain: &'static str,
    authority: Mutex<TestCa>,
    issuing: Mutex<Issuing>,
    profiles: Answers<String, Profile>,
    outbound: Answers<SocketAddr, OutboundPolicy>,
    endpoints: Answers<String, Vec<Endpoint>>,
    inbound: Answers<(String, u16), ServerPolicy>,
    bundles: Answers<(), TrustBundle>,
    /// Streams of bundles since the last one was sent.
    bundle_streams: AtomicUsize,
}

/// How certificates are issued.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Issuing {
    /// Valid from and until these numbers of seconds after now.
    Valid(i64, i64),
    Refused,
    /// As the identity service refuses a denied identity.
    Denied,
}

/// The answer for each key; `None` until the test has set it.
struct Answers<K, V>(Mutex<HashMap<K, watch::Sender<Option<V>>>>);

impl<K: Eq + std::hash::Hash, V: Clone> Answers<K, V> {
    fn new() -> Self {
        Self(Mutex::default())
    }

    fn set(&self, key: K, value: V) {
        let mut answers = self.0.lock();
        answers
            .entry(key)
            .or_insert_with(|| watch::channel(None).0)
            .send_replace(Some(value));
    }

    fn follow(&self, key: K) -> watch::Receiver<Option<V>> {
        let mut answers = self.0.lock();
        answers
            .entry(key)
            .or_insert_with(|| watch::channel(None).0)
            .subscribe()
    }
}

impl ControlPlane {
    /// The control plane of a mesh with this trust domain.
    pub(crate) fn new(trust_domain: &'static str) -> Self {
        let state = State {
            trust_domain,
            authority: Mutex::new(TestCa::new()),
            issuing: Mutex::new(Issuing::Valid(-60, 3600)),
            profiles: Answers::new(),
            outbound: Answers::new(),
            endpoints: Answers::new(),
            inbound: Answers::new(),
            bundles: Answers::new(),
            bundle_streams: AtomicUsize::new(0),
        };
        Self {
            state: Arc::new(state),
        }
    }

    pub(super) fn trust_domain(&self) -> &'static str {
        self.state.trust_domain
    }

    /// The roots of trust, as PEM.
    pub(crate) fn anchors(&self) -> String {
        self.state.authority.lock().anchor_pem().to_owned()
    }

    /// Signs with another root from now on, and returns it as PEM.
    pub(crate) fn rotate(&self) -> String {
        let new = TestCa::new();
        let pem = new.anchor_pem().to_owned();
        *self.state.authority.lock() = new;
        pem
    }

    /// Signs with another root from now on, which the present one has signed.
    pub(crate) fn cross_sign(&self) {
        let mut authority = self.state.authority.lock();
        *authority = authority.successor();
    }

    /// Sends trust anchors, in PEM, with a number.
    pub(crate) fn send_anchors(&self, number: u64, anchors: &str) {
        self.send_foreign_anchors(number, anchors, &[]);
    }

    /// Sends trust anchors of the mesh and of foreign trust domains, in PEM, with a number.
    pub(crate) fn send_foreign_anchors(
        &self,
        number: u64,
        anchors: &str,
        foreign: &[(&str, &str)],
    ) {
        let foreign = foreign.iter();
        self.send_bundle(TrustBundle {
            number,
            anchors: anchors.to_owned(),
            foreign: foreign
                .map(|(domain, anchors)| ((*domain).to_owned(), (*anchors).to_owned()))
                .collect(),
            denied: None,
        });
    }

    /// Sends the anchors of the mesh and a list of denied identities, with a number.
    pub(crate) fn send_denied(&self, number: u64, entries: &[&str]) {
        self.send_bundle(TrustBundle {
            number,
            anchors: self.anchors(),
            foreign: Default::default(),
            denied: Some(DenyList::parse(entries.iter().copied()).unwrap()),
        });
    }

    fn send_bundle(&self, bundle: TrustBundle) {
        self.state.bundle_streams.store(0, Ordering::Relaxed);
        self.state.bundles.set((), bundle);
    }

    /// Returns the number of streams of trust anchors that proxies opened since the last anchors
    /// were sent.
    pub(crate) fn bundle_streams(&self) -> usize {
        self.state.bundle_streams.load(Ordering::Relaxed)
    }

    /// How certificates are issued from now on.
    pub(crate) fn issue(&self, issuing: Issuing) {
        *self.state.issuing.lock() = issuing;
    }

    /// The policy of a pod's port. Before the first, the default policy is said.
    pub(crate) fn server(&self, pod: &str, port: u16, policy: ServerPolicy) {
        self.state.inbound.set((pod.to_owned(), port), policy);
    }

    /// The policy of an address. Unknown until the first.
    pub(crate) fn outbound(&self, addr: impl Into<SocketAddr>, policy: OutboundPolicy) {
        self.state.outbound.set(addr.into(), policy);
    }

    /// A Service at this address, whose protocol is detected, and its endpoints.
    pub(crate) fn service(
        &self,
        addr: impl Into<SocketAddr>,
        name: &str,
        endpoints: impl Into<Vec<Endpoint>>,
    ) {
        let addr = addr.into();
        self.outbound(addr, policies::service(name, addr.port()));
        self.endpoints(&policies::authority(name, addr.port()), endpoints.into());
    }

    pub(crate) fn endpoints(&self, authority: &str, endpoints: Vec<Endpoint>) {
        self.state.endpoints.set(authority.to_owned(), endpoints);
    }

    /// Listens in the namespace of the calling task and serves from then on.
    pub(super) async fn serve(self) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))
            .await
            .unwrap();
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                tokio::spawn(serve_connection(tcp, self.clone()));
            }
        });
    }
}

/// Everything said for a key, each value turned into messages given the one before.
fn messages<V, M>(
    mut values: watch::Receiver<Option<V>>,
    encode: impl Fn(Option<&V>, &V) -> Vec<M> + Send + 'static,
) -> Messages<M>
where
    V: Clone + Send + Sync + 'static,
    M: Send + 'static,
{
    // Changes are few; a reader that is behind loses nothing.
    let (tx, messages) = channel();
    tokio::spawn(async move {
        let mut before = None;
        loop {
            let Ok(value) = values
                .wait_for(Option::is_some)
                .await
                .map(|value| value.clone())
            else {
                return;
            };
            let value = value.expect("waited for");
            for message in encode(before.as_ref(), &value) {
                if tx.send(Ok(message)).is_err() {
                    return;
                }
            }
            before = Some(value);
            if values.changed().await.is_err() {
                return;
            }
        }
    });
    messages
}

fn endpoint_updates(before: &[Endpoint], now: &[Endpoint]) -> Vec<dst::Update> {
    let gone = before.iter().map(|endpoint| endpoint.addr);
    let gone: Vec<_> = gone
        .filter(|addr| now.iter().all(|e| e.addr != *addr))
        .collect();
    let mut updates = Vec::new();
    if !gone.is_empty() {
        updates.push(EndpointUpdate::Remove(gone));
    }
    updates.push(if now.is_empty() {
        EndpointUpdate::Empty { exists: true }
    } else {
        EndpointUpdate::Add {
            endpoints: now.to_vec(),
            set_labels: Default::default(),
        }
    });
    updates
        .iter()
        .map(mesh_api::destination::update_to_proto)
        .collect()
}
