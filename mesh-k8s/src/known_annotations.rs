//! The annotations that the mesh reads, for `meshctl analyze`, with the objects where they have an
//! effect. docs/reference/annotations.md describes them.

use mesh_core::annotation as keys;

/// An annotation that the mesh reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownAnnotation {
    /// The key.
    pub key: &'static str,
    /// The objects where it has an effect; none for one that programs write.
    pub places: &'static [Place],
}

/// An object where an annotation has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A pod, or the template of a workload's pods.
    Pod,
    /// A Namespace, for all its pods.
    Namespace,
    /// A Service.
    Service,
    /// An HTTPRoute or GRPCRoute.
    Route,
    /// An EgressNetwork.
    EgressNetwork,
}

const PODS: &[Place] = &[Place::Pod, Place::Namespace];
const POD: &[Place] = &[Place::Pod];
const PORTS: &[Place] = &[
    Place::Pod,
    Place::Namespace,
    Place::Service,
    Place::EgressNetwork,
];
const REQUESTS: &[Place] = &[Place::Service, Place::EgressNetwork, Place::Route];
/// Of faults, whose keys end in the names that users give them.
const ROUTES: &[Place] = &[Place::Route];
const BALANCER: &[Place] = &[Place::Service, Place::EgressNetwork];
const SERVICE: &[Place] = &[Place::Service];
const WRITTEN: &[Place] = &[];

/// Returns the annotation with this key, or the prefix that it begins with.
#[must_use]
pub fn find(key: &str) -> Option<KnownAnnotation> {
    let fault = key.strip_prefix(keys::FAULT_PREFIX);
    if fault.is_some_and(|name| !name.is_empty()) {
        let (key, places) = (keys::FAULT_PREFIX, ROUTES);
        return Some(KnownAnnotation { key, places });
    }
    KNOWN.iter().find_map(|(keys, places)| {
        let key = keys.iter().find(|known| **known == key)?;
        Some(KnownAnnotation { key, places })
    })
}

/// Returns all keys.
pub fn keys() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().flat_map(|(keys, _)| *keys).copied()
}

/// The keys by the objects where they have an effect.
const KNOWN: &[(&[&str], &[Place])] = &[
    (
        &[
            keys::INJECT,
            keys::SKIP_INBOUND_PORTS,
            keys::SKIP_OUTBOUND_PORTS,
            keys::SKIP_SUBNETS,
            keys::INBOUND_PORT,
            keys::OUTBOUND_PORT,
            keys::ADMIN_PORT,
            keys::CONTROL_PORT,
            keys::PROXY_UID,
            keys::PROXY_GID,
            keys::DEFAULT_INBOUND_POLICY,
            keys::REQUIRE_IDENTITY_PORTS,
            "config.linkerd.io/proxy-image",
            "config.linkerd.io/proxy-version",
            "config.linkerd.io/image-pull-policy",
            "config.linkerd.io/proxy-cpu-request",
            "config.linkerd.io/proxy-cpu-limit",
            "config.linkerd.io/proxy-cpu-ratio-limit",
            "config.linkerd.io/proxy-memory-request",
            "config.linkerd.io/proxy-memory-limit",
            "config.linkerd.io/proxy-ephemeral-storage-request",
            "config.linkerd.io/proxy-ephemeral-storage-limit",
            "config.linkerd.io/proxy-log-level",
            "config.linkerd.io/proxy-log-format",
            "config.linkerd.io/proxy-log-http-headers",
            "config.linkerd.io/access-log",
            "config.linkerd.io/proxy-metrics-hostname-labels",
            "config.linkerd.io/proxy-additional-env",
            "config.linkerd.io/proxy-enable-native-sidecar",
            "config.beta.linkerd.io/proxy-enable-native-sidecar",
            "config.alpha.linkerd.io/proxy-enable-native-sidecar",
            "config.linkerd.io/proxy-await",
            "config.alpha.linkerd.io/proxy-wait-before-exit-seconds",
            "config.linkerd.io/shutdown-grace-period",
            "config.linkerd.io/proxy-admin-shutdown",
            "config.linkerd.io/proxy-outbound-connect-timeout",
            "config.linkerd.io/proxy-inbound-connect-timeout",
            "config.linkerd.io/proxy-outbound-discovery-cache-unused-timeout",
            "config.linkerd.io/proxy-inbound-discovery-cache-unused-timeout",
            "config.linkerd.io/proxy-disable-outbound-protocol-detect-timeout",
            "config.linkerd.io/proxy-disable-inbound-protocol-detect-timeout",
            "config.linkerd.io/enable-external-profiles",
            "config.linkerd.io/enable-debug-sidecar",
            "viz.linkerd.io/disable-tap",
        ],
        PODS,
    ),
    (
        &[
            "config.linkerd.io/close-wait-timeout",
            "config.linkerd.io/enable-gateway",
            "config.linkerd.io/debug-image",
            "config.linkerd.io/debug-image-version",
            "config.linkerd.io/debug-image-pull-policy",
        ],
        POD,
    ),
    (&[keys::OPAQUE_PORTS], PORTS),
    (
        &[
            keys::TIMEOUT_REQUEST,
            keys::TIMEOUT_RESPONSE,
            keys::TIMEOUT_IDLE,
            keys::RETRY_LIMIT,
            keys::RETRY_TIMEOUT,
            keys::RETRY_HTTP,
            keys::RETRY_GRPC,
        ],
        REQUESTS,
    ),
    (
        &[
            keys::FAILURE_ACCRUAL,
            keys::FAILURE_ACCRUAL_MAX_FAILURES,
            keys::FAILURE_ACCRUAL_MIN_PENALTY,
            keys::FAILURE_ACCRUAL_MAX_PENALTY,
            keys::FAILURE_ACCRUAL_JITTER,
            keys::FAILURE_ACCRUAL_THRESHOLD,
            keys::FAILURE_ACCRUAL_WINDOW,
            keys::FAILURE_ACCRUAL_MIN_REQUESTS,
            keys::HONOR_RETRY_AFTER,
            keys::PENALIZE_FAILURES,
            keys::LOAD_BIASER_PENALTY,
            keys::LOAD_BIASER_MAX_RETRY_AFTER,
        ],
        BALANCER,
    ),
    (&[keys::LOCALITY_FAILOVER], SERVICE),
    (
        &[
            keys::CREATED_BY,
            keys::PROXY_VERSION,
            keys::TRUST_ROOT_SHA256,
            keys::REDIRECTED_IP_FAMILIES,
            keys::EXTERNAL_PROMETHEUS,
            "viz.linkerd.io/tap-enabled",
        ],
        WRITTEN,
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const REFERENCE: &str = include_str!("../../docs/reference/annotations.md");

    /// The reference has one row for each key, in the first cell of a table.
    #[test]
    fn known_annotations_are_those_of_the_reference() {
        let known: BTreeSet<&str> = keys().collect();
        assert_eq!(known.len(), keys().count(), "a key occurs twice");
        let rows = REFERENCE
            .lines()
            .filter(|line| line.starts_with("| `") || line.starts_with("| annotation `"));
        let documented: BTreeSet<&str> = rows
            .flat_map(|row| {
                row.split('|')
                    .nth(1)
                    .unwrap_or_default()
                    .split('`')
                    .skip(1)
                    .step_by(2)
            })
            .filter(|key| key.contains("linkerd.io/"))
            .collect();
        let undocumented: Vec<_> = known.difference(&documented).collect();
        let unknown: Vec<_> = documented.difference(&known).collect();
        // Written in other pages: retries, timeouts and failure accrual, and the extension's own.
        let elsewhere = |key: &&&str| {
            ["retry.", "timeout.", "balancer.", "viz.linkerd.io/external"]
                .iter()
                .any(|prefix| key.starts_with(prefix))
        };
        assert!(undocumented.iter().all(elsewhere), "{undocumented:?}");
        // It has no effect, which is what analysis reports.
        assert_eq!(unknown, [&"config.linkerd.io/pod-inbound-ports"]);
    }

    #[test]
    fn annotation_is_found_with_its_places() {
        let opaque = find("config.linkerd.io/opaque-ports");
        assert!(opaque.is_some_and(|known| known.places.contains(&Place::Service)));
        assert_eq!(find("config.linkerd.io/opaque-port"), None);
        let fault = find("fault.linkerd.io/slow");
        assert!(fault.is_some_and(|known| known.places == [Place::Route]));
        assert_eq!(find("fault.linkerd.io/"), None);
    }
}
