//! The messages of `Get`: the difference between two sets of endpoints.

use std::net::SocketAddr;

use mesh_api::destination::endpoint_to_proto;
use mesh_api::proto::destination::{
    AddrSet, NoEndpoints, Update, WeightedAddr, WeightedAddrSet, update,
};
use prost::Message as _;

use crate::index::EndpointSet;

/// Most bytes of the addresses in a message. Many gRPC clients refuse messages over 4 MiB,
/// Linkerd's proxy among them; the rest of the message is small.
const MAX_BYTES: usize = 4 * 1024 * 1024 - 64 * 1024;

/// Most addresses in a message that removes them, which are encoded to less than 40 bytes each.
const MAX_REMOVED: usize = 100_000;

/// Returns the messages that change the endpoints of a client from `sent`, if any, to `now`.
/// Additions come first, so that a client is never without endpoints in between.
///
/// An initially empty set has a message, unlike in Linkerd: without one a client cannot tell it
/// from a service that does not respond, and would keep the endpoints that it knew before.
pub(super) fn difference(sent: Option<&EndpointSet>, now: &EndpointSet) -> Vec<Update> {
    let nothing = EndpointSet::default();
    let is_first = sent.is_none();
    let sent = sent.unwrap_or(&nothing);
    let changed = now
        .endpoints
        .iter()
        .filter(|(addr, endpoint)| sent.endpoints.get(addr) != Some(endpoint))
        .map(|(_, it)| endpoint_to_proto(&it.endpoint));
    let mut messages = added(changed, now, MAX_BYTES);
    let removed: Vec<SocketAddr> = sent
        .endpoints
        .keys()
        .filter(|addr| !now.endpoints.contains_key(addr))
        .copied()
        .collect();
    messages.extend(removed.chunks(MAX_REMOVED).map(|addrs| {
        let addrs = addrs.iter().copied().map(SocketAddr::into).collect();
        message(update::Update::Remove(AddrSet { addrs }))
    }));
    if is_first && messages.is_empty() {
        let none = NoEndpoints { exists: true };
        messages.push(message(update::Update::NoEndpoints(none)));
    }
    messages
}

/// Returns the messages that add these addresses.
fn added(
    addrs: impl Iterator<Item = WeightedAddr>,
    set: &EndpointSet,
    max_bytes: usize,
) -> Vec<Update> {
    let mut lists: Vec<Vec<WeightedAddr>> = Vec::new();
    let mut bytes = 0;
    for addr in addrs {
        let length = addr.encoded_len() + ADDR_OVERHEAD;
        match lists.last_mut() {
            Some(list) if bytes + length <= max_bytes => {
                list.push(addr);
                bytes += length;
            }
            _ => {
                lists.push(vec![addr]);
                bytes = length;
            }
        }
    }
    let add = |addrs| {
        message(update::Update::Add(WeightedAddrSet {
            addrs,
            metric_labels: set.labels.clone().into_iter().collect(),
        }))
    };
    lists.into_iter().map(add).collect()
}

/// Most bytes of the tag and the length of an address.
const ADDR_OVERHEAD: usize = 5;

fn message(update: update::Update) -> Update {
    Update {
        update: Some(update),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mesh_core::endpoint::Endpoint;

    use super::*;
    use crate::index::ServiceEndpoint;

    fn plain(addr: SocketAddr) -> Arc<ServiceEndpoint> {
        Arc::new(ServiceEndpoint {
            endpoint: Endpoint::plain(addr),
            pod: None,
        })
    }

    fn set(ports: &[u16]) -> EndpointSet {
        let endpoint = |port: &u16| {
            let addr = SocketAddr::from(([10, 1, 0, 1], *port));
            (addr, plain(addr))
        };
        EndpointSet {
            endpoints: ports.iter().map(endpoint).collect(),
            labels: [("service".to_owned(), "web".to_owned())].into(),
            ..EndpointSet::default()
        }
    }

    /// Returns a text for each message, such as `+1,2` and `-3`.
    fn texts(messages: &[Update]) -> Vec<String> {
        let ports = |ports: Vec<u32>| {
            let ports: Vec<String> = ports.iter().map(u32::to_string).collect();
            ports.join(",")
        };
        let text = |message: &Update| match message.update.as_ref().unwrap() {
            update::Update::Add(added) => {
                assert_eq!(added.metric_labels["service"], "web");
                let addrs = added.addrs.iter();
                let addrs = addrs.map(|addr| addr.addr.as_ref().unwrap().port);
                format!("+{}", ports(addrs.collect()))
            }
            update::Update::Remove(removed) => {
                let addrs = removed.addrs.iter().map(|addr| addr.port);
                format!("-{}", ports(addrs.collect()))
            }
            update::Update::NoEndpoints(none) => format!("none, exists: {}", none.exists),
        };
        messages.iter().map(text).collect()
    }

    #[test]
    fn first_message_tells_that_there_are_no_endpoints() {
        assert_eq!(texts(&difference(None, &set(&[]))), ["none, exists: true"]);
        assert_eq!(texts(&difference(None, &set(&[1]))), ["+1"]);
    }

    #[test]
    fn difference_adds_changed_endpoints_before_it_removes_others() {
        let mut heavy = set(&[2]);
        for endpoint in heavy.endpoints.values_mut() {
            Arc::make_mut(endpoint).endpoint.weight = 1;
        }
        for (sent, now, expect) in [
            (set(&[]), set(&[]), vec![]),
            (set(&[]), set(&[1, 2]), vec!["+1,2"]),
            (set(&[1, 2]), set(&[1, 2]), vec![]),
            (set(&[1, 2]), set(&[2, 3]), vec!["+3", "-1"]),
            (set(&[1, 2]), heavy, vec!["+2", "-1"]),
            (set(&[1, 2]), set(&[]), vec!["-1,2"]),
        ] {
            assert_eq!(texts(&difference(Some(&sent), &now)), expect);
            if sent.endpoints.is_empty() && !now.endpoints.is_empty() {
                assert_eq!(texts(&difference(None, &now)), expect);
            }
        }
    }

    #[test]
    fn added_endpoints_are_split_when_a_message_would_be_too_large() {
        let all = set(&[1, 2, 3, 4, 5]);
        let addrs = || {
            all.endpoints
                .values()
                .map(|it| endpoint_to_proto(&it.endpoint))
        };
        let one = addrs().next().unwrap().encoded_len() + ADDR_OVERHEAD;
        let split = |max_bytes| texts(&added(addrs(), &all, max_bytes));
        assert_eq!(split(5 * one), ["+1,2,3,4,5"]);
        assert_eq!(split(5 * one - 1), ["+1,2,3,4", "+5"]);
        assert_eq!(split(2 * one), ["+1,2", "+3,4", "+5"]);
        assert_eq!(split(0), ["+1", "+2", "+3", "+4", "+5"]);
    }

    #[test]
    fn no_message_of_a_large_service_is_refused_by_grpc_clients() {
        let many = |subnets: u8| -> EndpointSet {
            let ports = (0..subnets).flat_map(|subnet| (1..=u16::MAX).map(move |p| (subnet, p)));
            let addrs = ports.map(|(subnet, p)| SocketAddr::from(([10, 1, 0, subnet], p)));
            EndpointSet {
                endpoints: addrs.map(|addr| (addr, plain(addr))).collect(),
                ..set(&[])
            }
        };
        let (none, many) = (set(&[]), many(4));
        for messages in [difference(None, &many), difference(Some(&many), &none)] {
            assert!(messages.len() > 1);
            let largest = messages.iter().map(Update::encoded_len).max().unwrap();
            assert!(largest <= 4 * 1024 * 1024, "{largest}");
        }
    }
}
