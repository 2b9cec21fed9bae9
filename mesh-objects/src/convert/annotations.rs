//! The annotations of Services and EgressNetworks for requests, without invalid ones.

use mesh_core::locality::Failover;
use mesh_k8s::invalid::Invalid;
use mesh_k8s::kinds::ObjectMeta;
use mesh_k8s::traffic_annotations::{self, failure_accrual, failure_penalty, retries, timeouts};

use super::name;
use crate::model::{Key, Kind, TrafficSettings};

/// Reads the settings of a Service or EgressNetwork. A group of annotations with an invalid one is
/// ignored with a warning.
pub(super) fn traffic_settings(kind: Kind, meta: &ObjectMeta) -> TrafficSettings {
    let key = Key {
        kind,
        name: name(meta),
    };
    TrafficSettings {
        timeouts: or_ignore(&key, timeouts(meta)).unwrap_or_default(),
        retries: or_ignore(&key, retries(meta)),
        failure_accrual: or_ignore(&key, failure_accrual(meta)),
        failure_penalty: or_ignore(&key, failure_penalty(meta)),
    }
}

/// Reads the localities that clients of a Service prefer.
pub(super) fn failover(meta: &ObjectMeta) -> Option<Failover> {
    let key = Key {
        kind: Kind::Service,
        name: name(meta),
    };
    or_ignore(&key, traffic_annotations::failover(meta))
}

fn or_ignore<T>(object: &Key, read: Result<Option<T>, Invalid>) -> Option<T> {
    read.unwrap_or_else(|error| {
        tracing::warn!(%object, %error, "Ignored annotations");
        None
    })
}
