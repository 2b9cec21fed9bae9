//! Receives the endpoints of one authority.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use mesh_api::destination::endpoints_request;
use mesh_api::proto::destination::{GetDestination, Update};
use mesh_core::endpoint::{Endpoint, EndpointUpdate};
use tonic::Code;

use super::watch_cache::SharedWatch;
use super::{Context, EndpointSet, EndpointState, EndpointsKey, LAST_VALUE_AFTER, RETRY_REJECTED};
use crate::control::follow::{Event, RetryDecision, follow};
use crate::control::{self, stream};
use crate::watch;

const GET: &str = "/io.linkerd.proxy.destination.Destination/Get";

impl SharedWatch for Arc<EndpointSet> {
    type Last = Self;

    fn last(&self) -> Option<(Self, usize)> {
        let count = self.endpoints.len();
        (count > 0).then(|| (self.clone(), count))
    }
}

/// Publishes the endpoint set whenever the destination service changes it. `last` is an earlier
/// stream's set, for an outage of the service.
pub(super) async fn run(
    context: Arc<Context>,
    key: EndpointsKey,
    published: watch::Sender<Arc<EndpointSet>>,
    last: Option<Arc<EndpointSet>>,
) {
    context.destination.ready().await;
    let open = || {
        let request = GetDestination {
            scheme: String::new(),
            path: key.authority.to_string(),
            context_token: context.config.discovery.context.to_string(),
        };
        let request = endpoints_request(request, key.family);
        stream::open(context.destination.clone(), GET, request)
    };
    let mut table = EndpointTable::with_last(last.as_deref());
    let publish_last = || {
        if let Some(last) = &last {
            publish_if_pending(&published, last);
        }
    };
    let following = follow(
        context.destination_limits,
        context.backoff(),
        open,
        |event| {
            let has_failed = matches!(event, Event::Failed(_));
            let decision = on_event(&key.authority, event, &mut table);
            publish(&published, &table);
            if has_failed {
                publish_last();
            }
            decision
        },
    );
    let waiting = async {
        tokio::time::sleep(LAST_VALUE_AFTER).await;
        publish_last();
    };
    tokio::join!(following, waiting);
}

/// The endpoint set accumulated from a stream's updates.
#[derive(Debug, Default)]
struct EndpointTable {
    state: EndpointState,
    endpoints: BTreeMap<SocketAddr, Arc<Endpoint>>,
}

fn on_event(authority: &str, event: Event<Update>, table: &mut EndpointTable) -> RetryDecision {
    match event {
        Event::Message { first, message } => {
            match mesh_api::destination::endpoint_update(message) {
                Ok(read) => {
                    for error in &read.skipped {
                        tracing::warn!(authority, %error, "Ignored an invalid endpoint");
                    }
                    table.apply(read.update, first);
                }
                Err(error) => {
                    tracing::error!(authority, %error, "Ignored an invalid endpoint update");
                }
            }
        }
        Event::Failed(status) => {
            tracing::debug!(
                authority,
                reason = control::reason(&status),
                "Endpoint stream failed"
            );
            // The authority does not identify a service, or no longer does.
            if matches!(status.code(), Code::InvalidArgument | Code::NotFound) {
                table.apply(EndpointUpdate::Empty { exists: false }, true);
                return RetryDecision::RetryAfter(RETRY_REJECTED);
            }
        }
    }
    RetryDecision::Retry
}

fn publish(published: &watch::Sender<Arc<EndpointSet>>, table: &EndpointTable) {
    published.send_if_modified(|current| {
        let is_changed = table.state != EndpointState::Pending && !table.is_same(current);
        if is_changed {
            *current = Arc::new(EndpointSet {
                state: table.state,
                endpoints: table.endpoints.values().cloned().collect(),
            });
        }
        is_changed
    });
}

/// Publishes the set of an earlier stream, unless the service has responded.
fn publish_if_pending(published: &watch::Sender<Arc<EndpointSet>>, last: &Arc<EndpointSet>) {
    published.send_if_modified(|current| {
        let is_pending = current.state == EndpointState::Pending;
        if is_pending {
            *current = last.clone();
        }
        is_pending
    });
}

impl EndpointTable {
    /// Creates a pending table. An unchanged endpoint of it remains the same `Arc`.
    fn with_last(last: Option<&EndpointSet>) -> Self {
        let endpoints = last.map_or(&[][..], |last| &last.endpoints);
        Self {
            state: EndpointState::Pending,
            endpoints: endpoints.iter().map(|it| (it.addr, it.clone())).collect(),
        }
    }

    /// Applies an update. The first message of a stream replaces the endpoints of earlier streams.
    fn apply(&mut self, update: EndpointUpdate, first: bool) {
        let old = if first {
            std::mem::take(&mut self.endpoints)
        } else {
            BTreeMap::new()
        };
        match update {
            EndpointUpdate::Add {
                endpoints,
                set_labels,
            } => {
                self.state = EndpointState::Known;
                for endpoint in endpoints {
                    self.add(endpoint, &set_labels, &old);
                }
            }
            EndpointUpdate::Remove(addrs) => {
                self.state = EndpointState::Known;
                for addr in addrs {
                    self.endpoints.remove(&addr);
                }
            }
            EndpointUpdate::Empty { exists } => {
                self.endpoints.clear();
                self.state = if exists {
                    EndpointState::Known
                } else {
                    EndpointState::DoesNotExist
                };
            }
        }
    }

    /// Adds an endpoint. An unchanged endpoint keeps its `Arc`, so that balancers keep its
    /// connections.
    fn add(
        &mut self,
        mut endpoint: Endpoint,
        set_labels: &BTreeMap<String, String>,
        old: &BTreeMap<SocketAddr, Arc<Endpoint>>,
    ) {
        if !set_labels.is_empty() {
            endpoint.labels = endpoint.labels.or(set_labels);
        }
        let addr = endpoint.addr;
        let before = self.endpoints.get(&addr).or_else(|| old.get(&addr));
        let same = before.filter(|before| ***before == endpoint).cloned();
        self.endpoints
            .insert(addr, same.unwrap_or_else(|| Arc::new(endpoint)));
    }

    fn is_same(&self, set: &EndpointSet) -> bool {
        self.state == set.state
            && self.endpoints.len() == set.endpoints.len()
            && self
                .endpoints
                .values()
                .zip(&set.endpoints)
                .all(|(ours, published)| Arc::ptr_eq(ours, published))
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::endpoint::ProtocolHint;

    use super::*;

    fn endpoint(n: u8, labels: &[(&str, &str)]) -> Endpoint {
        Endpoint {
            addr: SocketAddr::from(([10, 0, 0, n], 80)),
            weight: 10_000,
            labels: labels.iter().copied().collect(),
            tls: None,
            hint: ProtocolHint::Unknown,
            opaque_transport_port: None,
            authority_override: None,
            http2: None,
        }
    }

    fn add(endpoints: &[Endpoint]) -> EndpointUpdate {
        EndpointUpdate::Add {
            endpoints: endpoints.to_vec(),
            set_labels: [("service".to_owned(), "web".to_owned())].into(),
        }
    }

    fn hosts(known: &EndpointTable) -> Vec<u8> {
        let last = |addr: &SocketAddr| match addr {
            SocketAddr::V4(v4) => v4.ip().octets()[3],
            SocketAddr::V6(_) => 0,
        };
        known.endpoints.keys().map(last).collect()
    }

    #[test]
    fn endpoint_updates_are_applied_in_order() {
        let mut known = EndpointTable::default();
        known.apply(add(&[endpoint(2, &[]), endpoint(1, &[])]), true);
        assert_eq!(hosts(&known), [1, 2]);
        known.apply(add(&[endpoint(3, &[])]), false);
        known.apply(EndpointUpdate::Remove(vec![endpoint(1, &[]).addr]), false);
        assert_eq!(hosts(&known), [2, 3]);
        known.apply(EndpointUpdate::Empty { exists: true }, false);
        assert_eq!((hosts(&known), known.state), (vec![], EndpointState::Known));
        known.apply(EndpointUpdate::Empty { exists: false }, false);
        assert_eq!(known.state, EndpointState::DoesNotExist);
    }

    #[test]
    fn first_message_of_stream_replaces_all_endpoints() {
        let mut known = EndpointTable::default();
        known.apply(add(&[endpoint(1, &[]), endpoint(2, &[])]), true);
        known.apply(add(&[endpoint(2, &[]), endpoint(3, &[])]), true);
        assert_eq!(hosts(&known), [2, 3]);
        known.apply(EndpointUpdate::Remove(vec![]), true);
        assert!(hosts(&known).is_empty());
    }

    #[test]
    fn endpoint_labels_take_precedence_over_set_labels() {
        let mut known = EndpointTable::default();
        let own = endpoint(1, &[("service", "own"), ("pod", "a")]);
        known.apply(add(&[own, endpoint(2, &[])]), true);
        let labels: Vec<_> = known
            .endpoints
            .values()
            .map(|e| e.labels.get("service").unwrap())
            .collect();
        assert_eq!(labels, ["own", "web"]);
    }

    #[test]
    fn unchanged_endpoints_are_not_published_again() {
        let mut known = EndpointTable::default();
        let published = watch::Sender::new(Arc::new(EndpointSet::default()));
        let mut received = published.subscribe();
        let both = [endpoint(1, &[]), endpoint(2, &[])];
        known.apply(add(&both), true);
        publish(&published, &known);
        assert!(received.has_changed().unwrap());
        let first = received.borrow_and_update().endpoints[1].clone();

        known.apply(add(&both), true);
        publish(&published, &known);
        assert!(!received.has_changed().unwrap());

        let changed = endpoint(1, &[("zone", "a")]);
        known.apply(add(&[changed, both[1].clone()]), true);
        publish(&published, &known);
        let set = received.borrow_and_update();
        assert!(set.has_changed() && Arc::ptr_eq(&first, &set.endpoints[1]));
    }
}
