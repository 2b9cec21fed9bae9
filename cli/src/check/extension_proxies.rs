//! The proxies of an extension's own pods.

use mesh_k8s::kinds::Pod;

use super::framework::{Finding, Outcome};
use super::versions::tag;
use crate::facts::containers::container_statuses;
use crate::facts::{full_name, proxy_container};

/// Warns of proxies that are not ready.
pub(super) fn ready(pods: &[&Pod]) -> Outcome {
    let unready = pods.iter().filter_map(|pod| {
        let container = proxy_container(pod)?;
        let status = container_statuses(pod).find(|status| status.name == container.name);
        let is_ready = status.is_some_and(|status| status.ready);
        (!is_ready).then(|| Finding::new(format!("the proxy of {} is not ready", full_name(pod))))
    });
    Outcome::warn_if(unready, "")
}

/// Warns of proxies without the version that `who` has.
pub(super) fn have_version(pods: &[&Pod], wanted: &str, who: &str) -> Outcome {
    let other = pods.iter().filter_map(|pod| {
        let image = proxy_container(pod)?.image.as_deref()?;
        let version = tag(image);
        (version != wanted).then(|| {
            let name = full_name(pod);
            Finding::new(format!(
                "the proxy of {name} has version {version}, {who} {wanted}"
            ))
        })
    });
    Outcome::warn_if(other, "")
}
