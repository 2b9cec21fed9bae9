//! The trust anchors of the control plane, and where proxies take theirs from.

use mesh_core::exposition::Sample;
use mesh_k8s::kinds::{ConfigMap, Pod, ResourceExt};
use mesh_k8s::pod;
use mesh_k8s::trust::NUMBER_KEY;

use super::names::{BUNDLE_KEY, CERTIFICATE_EXPIRY, TRUST_ROOTS};
use super::{Fact, Facts, fact_ref, proxy_container};
use crate::certificate;

/// A metric of the proxies: the number of the anchors that they received, or 0 while they use the
/// anchors of their environment. Linkerd's proxies lack it, because they receive none.
pub(crate) const NUMBER: &str = "mesh_trust_bundle_number";

/// The trust anchors and the issuer, in DER.
#[derive(Debug)]
pub(crate) struct Trust {
    pub(crate) anchors: Fact<Vec<Vec<u8>>>,
    /// The issuer followed by the intermediates up to the anchor.
    pub(crate) issuer: Fact<Vec<Vec<u8>>>,
    /// Whether the issuer's key matches its certificate.
    pub(crate) key: Fact<()>,
}

/// The anchors that the identity service sends.
pub(crate) struct Sent {
    /// At least the Unix time when they were numbered.
    pub(crate) number: u64,
    pub(crate) anchors: String,
}

impl Sent {
    pub(crate) fn read(facts: &Facts) -> Option<Self> {
        let record = facts.objects.trust_bundle.as_ref().ok()?.as_ref()?;
        let number = record.data.as_ref()?.get(NUMBER_KEY)?;
        Some(Self {
            number: number.parse().ok()?,
            anchors: bundle_of(record)?,
        })
    }
}

/// Returns the ConfigMap of the anchors in the control plane's namespace, if it exists.
pub(crate) fn own_map(facts: &Facts) -> Fact<Option<&ConfigMap>> {
    let mut maps = fact_ref(&facts.objects.trust_roots)?.iter();
    Ok(maps.find(|map| map.namespace().as_deref() == Some(&facts.control_namespace)))
}

/// Returns the bundle of the ConfigMap in the control plane's namespace.
pub(crate) fn bundle(facts: &Facts) -> Fact<String> {
    own_map(facts)?.and_then(bundle_of).ok_or_else(|| {
        format!(
            "namespace {} has no ConfigMap {TRUST_ROOTS} with key {BUNDLE_KEY}",
            facts.control_namespace
        )
    })
}

fn bundle_of(map: &ConfigMap) -> Option<String> {
    Some(map.data.as_ref()?.get(BUNDLE_KEY)?.trim().to_owned())
}

/// Returns whether two bundles have the same certificates, independent of order and comments.
pub(crate) fn same_anchors(one: &str, other: &str) -> bool {
    let certificates = |text: &str| {
        let mut all = certificate::read_pem(text.as_bytes(), "a bundle").unwrap_or_default();
        all.sort_unstable();
        all.dedup();
        all
    };
    one.trim() == other.trim() || {
        let anchors = certificates(one);
        !anchors.is_empty() && anchors == certificates(other)
    }
}

/// Returns the anchors in the environment of the pod's proxy. The control plane's own pods refer to
/// the ConfigMap instead.
pub(crate) fn environment(pod: &Pod) -> Option<&str> {
    let env = proxy_container(pod).map(pod::plain_env).unwrap_or_default();
    env.get("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS").copied()
}

/// Returns whether the pod's proxy takes the anchors from a ConfigMap in its namespace, as those
/// that an earlier version injected. The namespace of the control plane has the original.
pub(crate) fn mounts_copy(facts: &Facts, pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let mounted = volumes.into_iter().flatten().any(|volume| {
        volume
            .config_map
            .as_ref()
            .is_some_and(|map| map.name == TRUST_ROOTS)
    });
    mounted && pod.namespace().as_deref() != Some(&facts.control_namespace)
}

/// Returns the Unix time when the certificate of a proxy expires; `None` if it has none yet.
pub(crate) fn certificate_expiry(metrics: &[Sample]) -> Option<u64> {
    let mut samples = metrics.iter();
    let sample = samples.find(|sample| sample.name == CERTIFICATE_EXPIRY)?;
    Some(sample.value as u64).filter(|seconds| *seconds > 0)
}

/// Returns the number of the anchors that a proxy received.
pub(crate) fn number(metrics: &[Sample]) -> Option<u64> {
    let mut samples = metrics.iter();
    let sample = samples.find(|sample| sample.name == NUMBER)?;
    Some(sample.value as u64)
}
