//! The annotations that tell the agent, or another CNI plugin, how to redirect a pod.
//!
//! Agent and plugin read the annotations of pods only, neither values nor namespaces. So the
//! annotations of an injected pod must match the configuration of its proxy, whether that came from
//! the pod, its namespace or the chart. An annotation that could not be used is replaced by the
//! effective setting, because the agent prevents a pod with an invalid annotation from starting.

use mesh_core::annotation;

use super::overrides::{Annotations, OverrideReport};
use crate::values::{Redirection, Values, non_empty};

/// Changes of a pod's annotations.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AnnotationPatch {
    pub(super) set: Annotations,
    pub(super) remove: Vec<&'static str>,
}

/// An annotation that redirection depends on.
struct RedirectSetting {
    key: &'static str,
    /// `None` if the setting is unset.
    effective: Option<String>,
    /// The setting of a pod without the annotation.
    default: Option<String>,
}

/// Returns the changes that make the pod's annotations match the configuration of its proxy.
/// `component`: the pod is one of the control plane, which connects to the API server before it has
/// a certificate.
pub(super) fn compute(
    values: &Values,
    annotations: &Annotations,
    report: &OverrideReport,
    component: bool,
) -> AnnotationPatch {
    let mut redirect_patch = AnnotationPatch::default();
    // The init container has these settings as arguments.
    if values.redirection() == Redirection::InitContainer {
        return redirect_patch;
    }
    let families = if values.redirects_ipv6() {
        annotation::IPV4_AND_IPV6
    } else {
        annotation::IPV4_ONLY
    };
    // Not a setting of the pod: it follows from where the proxy listens.
    let key = annotation::REDIRECTED_IP_FAMILIES;
    let present = annotations.get(key).map(String::as_str);
    if present.unwrap_or(annotation::IPV4_AND_IPV6) != families {
        redirect_patch
            .set
            .insert(key.to_owned(), families.to_owned());
    }
    for setting in settings(values, component) {
        let rejected = report.rejected_keys.contains(setting.key);
        let missing = !annotations.contains_key(setting.key);
        match setting.effective {
            Some(value) if rejected || (missing && Some(&value) != setting.default.as_ref()) => {
                redirect_patch.set.insert(setting.key.to_owned(), value);
            }
            None if rejected => redirect_patch.remove.push(setting.key),
            _ => {}
        }
    }
    redirect_patch
}

fn settings(values: &Values, component: bool) -> [RedirectSetting; 9] {
    let (proxy, init) = (&values.proxy, &values.proxy_init);
    let skip_outbound = if component {
        &init.kube_api_server_ports
    } else {
        &init.ignore_outbound_ports
    };
    let port = |key, effective: u16, default: u16| RedirectSetting {
        key,
        effective: Some(effective.to_string()),
        default: Some(default.to_string()),
    };
    let skip = |key, effective: &str, default: &str| RedirectSetting {
        key,
        effective: Some(effective.split_whitespace().collect()),
        default: Some(default.to_owned()),
    };
    [
        port(
            annotation::INBOUND_PORT,
            proxy.ports.inbound,
            annotation::DEFAULT_INBOUND_PORT,
        ),
        port(
            annotation::OUTBOUND_PORT,
            proxy.ports.outbound,
            annotation::DEFAULT_OUTBOUND_PORT,
        ),
        port(
            annotation::ADMIN_PORT,
            proxy.ports.admin,
            annotation::DEFAULT_ADMIN_PORT,
        ),
        port(
            annotation::CONTROL_PORT,
            proxy.ports.control,
            annotation::DEFAULT_CONTROL_PORT,
        ),
        RedirectSetting {
            key: annotation::PROXY_UID,
            effective: Some(proxy.uid.to_string()),
            default: Some(annotation::DEFAULT_PROXY_UID.to_string()),
        },
        RedirectSetting {
            key: annotation::PROXY_GID,
            effective: (proxy.gid > 0).then(|| proxy.gid.to_string()),
            default: None,
        },
        skip(
            annotation::SKIP_INBOUND_PORTS,
            &init.ignore_inbound_ports,
            annotation::DEFAULT_SKIP_PORTS,
        ),
        skip(
            annotation::SKIP_OUTBOUND_PORTS,
            skip_outbound,
            annotation::DEFAULT_SKIP_PORTS,
        ),
        RedirectSetting {
            key: annotation::SKIP_SUBNETS,
            effective: non_empty(&init.skip_subnets).map(str::to_owned),
            default: None,
        },
    ]
}
