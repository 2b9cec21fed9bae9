//! What the pod says to whoever redirects it: the agent, or another CNI plugin, reads annotations
//! and knows neither values nor namespaces.
//!
//! So the annotations of an injected pod must say what its proxy was given, whether that came from
//! the pod, its namespace or the chart. An annotation that could not be used is replaced by what is
//! in force instead, because the agent lets no pod start whose annotations it cannot read.

use mesh_core::annotation;

use super::overrides::{Annotations, Applied};
use crate::values::{Redirection, Values, non_empty};

/// Changes to a pod's annotations.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Correction {
    pub(super) set: Annotations,
    pub(super) remove: Vec<&'static str>,
}

/// One annotation that redirection depends on.
struct Setting {
    key: &'static str,
    /// Nothing: there is no such setting.
    in_force: Option<String>,
    /// What is understood where the annotation is missing.
    default: Option<String>,
}

/// `component`: the pod is one of the control plane, which must reach the API server before it has
/// a certificate.
pub(super) fn correct(
    values: &Values,
    annotations: &Annotations,
    applied: &Applied,
    component: bool,
) -> Correction {
    let mut correction = Correction::default();
    // The init container gets all of this as arguments.
    if values.redirection() == Redirection::InitContainer {
        return correction;
    }
    for setting in settings(values, component) {
        let refused = applied.refused.contains(setting.key);
        let missing = !annotations.contains_key(setting.key);
        match setting.in_force {
            Some(value) if refused || (missing && Some(&value) != setting.default.as_ref()) => {
                correction.set.insert(setting.key.to_owned(), value);
            }
            None if refused => correction.remove.push(setting.key),
            _ => {}
        }
    }
    correction
}

fn settings(values: &Values, component: bool) -> [Setting; 9] {
    let (proxy, init) = (&values.proxy, &values.proxy_init);
    let skip_outbound = if component {
        &init.kube_api_server_ports
    } else {
        &init.ignore_outbound_ports
    };
    let port = |key, in_force: u16, default: u16| Setting {
        key,
        in_force: Some(in_force.to_string()),
        default: Some(default.to_string()),
    };
    let skip = |key, in_force: &str, default: &str| Setting {
        key,
        in_force: Some(in_force.split_whitespace().collect()),
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
        Setting {
            key: annotation::PROXY_UID,
            in_force: Some(proxy.uid.to_string()),
            default: Some(annotation::DEFAULT_PROXY_UID.to_string()),
        },
        Setting {
            key: annotation::PROXY_GID,
            in_force: (proxy.gid > 0).then(|| proxy.gid.to_string()),
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
        Setting {
            key: annotation::SKIP_SUBNETS,
            in_force: non_empty(&init.skip_subnets).map(str::to_owned),
            default: None,
        },
    ]
}
