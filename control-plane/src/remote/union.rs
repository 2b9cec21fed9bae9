//! The union of members' endpoints, and which clients share it.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use mesh_objects::model::Name;

use crate::index::{EndpointSet, Places, Preference, ServiceEndpoint, Version};

type Sets = [Arc<Version<EndpointSet>>];

/// The unions in use. Clients for whom a Service's members have the same endpoints, as on most
/// nodes of a zone, share them and their messages.
#[derive(Debug, Default)]
pub(super) struct Unions(HashMap<Name, Vec<Union>>);

/// A union, and everything that it follows from.
#[derive(Debug)]
struct Union {
    // References that do not keep the sets. Their addresses are not reused while these exist.
    sets: Vec<Weak<Version<EndpointSet>>>,
    preference: Option<Preference>,
    version: Weak<Version<EndpointSet>>,
}

impl Unions {
    /// Returns the union of these sets. Only for the first client `compute` is called.
    pub(super) fn find_or_insert(
        &mut self,
        service: &Name,
        sets: &Sets,
        preference: Option<&Preference>,
        compute: impl FnOnce() -> Arc<Version<EndpointSet>>,
    ) -> Arc<Version<EndpointSet>> {
        self.sweep(service);
        let unions = self.0.entry(service.clone()).or_default();
        let mut of_sets = unions.iter().filter(|it| it.is_of(sets, preference));
        if let Some(version) = of_sets.find_map(|it| it.version.upgrade()) {
            return version;
        }
        let version = compute();
        unions.push(Union {
            sets: sets.iter().map(Arc::downgrade).collect(),
            preference: preference.cloned(),
            version: Arc::downgrade(&version),
        });
        version
    }

    /// Removes the unions of a Service that no client has.
    pub(super) fn sweep(&mut self, service: &Name) {
        if let Some(unions) = self.0.get_mut(service) {
            unions.retain(|it| it.version.strong_count() > 0);
            if unions.is_empty() {
                self.0.remove(service);
            }
        }
    }

    /// Removes the unions of a Service that is gone; clients may still have them.
    pub(super) fn forget(&mut self, service: &Name) {
        self.0.remove(service);
    }

    /// Returns the number of unions.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

impl Union {
    fn is_of(&self, sets: &Sets, preference: Option<&Preference>) -> bool {
        let is_same =
            |(one, other): (&Weak<_>, &Arc<_>)| std::ptr::eq(one.as_ptr(), Arc::as_ptr(other));
        self.sets.len() == sets.len()
            && self.sets.iter().zip(sets).all(is_same)
            && self.preference.as_ref() == preference
    }
}

/// Returns how a client chooses, without its node if no endpoint is on it.
pub(super) fn shared_preference(preference: &Preference, sets: &Sets) -> Preference {
    let is_on = |node: &Arc<str>| sets.iter().any(|set| set.places.have_node(node));
    if preference.client.node.as_ref().is_some_and(is_on) {
        preference.clone()
    } else {
        preference.without_node()
    }
}

/// Returns the endpoints of all members that a client uses. Of an address in two clusters the first
/// one counts.
pub(super) fn union(service: &Name, sets: &Sets, preference: Option<&Preference>) -> EndpointSet {
    let Name { namespace, name } = service;
    let labels = [("namespace", namespace), ("service", name)];
    let mut all = EndpointSet {
        labels: labels
            .map(|(key, value)| (key.to_owned(), value.to_string()))
            .into(),
        ..EndpointSet::default()
    };
    for set in sets {
        for (addr, endpoint) in of_member(set) {
            all.endpoints.entry(addr).or_insert(endpoint);
        }
    }
    let Some(preference) = preference else {
        return all;
    };
    let mut places = Places::default();
    for (addr, placed) in sets.iter().flat_map(|set| set.places.iter()) {
        places.add(addr, preference.placed(placed));
    }
    let chosen = places.choose(Some(&preference.failover), &preference.client);
    all.level = chosen.level;
    // If none is ready, all of them serve until their pods are deleted.
    if !chosen.used.is_empty() {
        all.endpoints.retain(|addr, _| chosen.used.contains(addr));
    }
    all
}

/// Returns the endpoints of a member. The mirror of another cluster's Service has the labels of its
/// target for the whole set; in a union they are the labels of its endpoints.
fn of_member(
    set: &EndpointSet,
) -> impl Iterator<Item = (SocketAddr, Arc<ServiceEndpoint>)> + use<'_> {
    let of_target = set
        .labels
        .iter()
        .filter(|(key, _)| key.starts_with("target_"));
    let of_target: BTreeMap<String, String> = of_target
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    set.endpoints.iter().map(move |(addr, endpoint)| {
        if of_target.is_empty() {
            return (*addr, endpoint.clone());
        }
        let mut labelled = ServiceEndpoint::clone(endpoint);
        labelled.endpoint.labels = labelled.endpoint.labels.or(&of_target);
        (*addr, Arc::new(labelled))
    })
}
