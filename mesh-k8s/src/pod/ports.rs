//! The ports of a pod: declared, named, opaque and skipped ports, and its proxy's ports.

use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodSpec, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use mesh_core::annotation as keys;
use mesh_core::ports::{PortSet, PortSetError};
use mesh_core::units::list_items;

use super::{PROXY_CONTAINER, annotation, containers, plain_env};

/// The ports of a pod's proxy, according to its environment variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProxyPorts {
    /// The port of inbound connections.
    pub inbound: u16,
    /// The port of the control API (tap).
    pub control: u16,
    /// The port of metrics and probes.
    pub admin: u16,
}

/// Returns every declared port with its container, the ports of init containers first.
pub fn declared(spec: &PodSpec) -> impl Iterator<Item = (&Container, &ContainerPort)> {
    containers(spec).flat_map(|container| {
        container
            .ports
            .iter()
            .flatten()
            .map(move |port| (container, port))
    })
}

/// Converts an `i32` of the Kubernetes API to a port number; `None` outside of 1 to 65535.
pub fn port_number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port > 0)
}

/// Returns whether the protocol of the port is TCP, the default.
pub fn is_tcp(port: &ContainerPort) -> bool {
    matches!(port.protocol.as_deref(), None | Some("" | "TCP"))
}

/// Returns the TCP ports that have a name.
pub fn names(spec: &PodSpec) -> Vec<(Arc<str>, u16)> {
    let tcp = declared(spec).filter(|(_, port)| is_tcp(port));
    tcp.filter_map(|(_, port)| {
        let name = port.name.as_deref()?;
        Some((name.into(), port_number(port.container_port)?))
    })
    .collect()
}

/// Returns the TCP ports with this name, sorted; several containers may use one name.
pub fn named(spec: &PodSpec, name: &str) -> Vec<u16> {
    let mut ports: Vec<u16> = declared(spec)
        .filter(|(_, port)| port.name.as_deref() == Some(name) && is_tcp(port))
        .filter_map(|(_, port)| port_number(port.container_port))
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Returns the ports of a pod that a port of a Service leads to; `number` is the Service's port. A
/// name may lead to several ports, or to none.
pub fn targets(port: &ServicePort, pod: &Pod, number: u16) -> Vec<u16> {
    match &port.target_port {
        None => vec![number],
        Some(IntOrString::Int(target)) => port_number(*target).into_iter().collect(),
        Some(IntOrString::String(name)) => pod
            .spec
            .as_ref()
            .map(|spec| named(spec, name))
            .unwrap_or_default(),
    }
}

/// Parses a comma-separated list of ports, ranges and names of container ports. Unknown names and
/// invalid items are skipped, so that the valid items of a list stay in effect.
pub fn resolve_list(spec: Option<&PodSpec>, list: &str) -> PortSet {
    resolve_names(list, |name| named_of(spec, name))
}

/// Does the same with the ports that `named` returns for a name.
pub fn resolve_names(list: &str, named: impl Fn(&str) -> Vec<u16>) -> PortSet {
    let mut set = PortSet::default();
    for item in list_items(list) {
        if let Ok(range) = PortSet::parse_item(item) {
            set.insert(range);
        } else {
            for port in named(item) {
                set.insert(port..=port);
            }
        }
    }
    set
}

/// Returns an error for each item that [`resolve_list`] skips.
pub fn unreadable_items<'a>(
    spec: Option<&'a PodSpec>,
    list: &'a str,
) -> impl Iterator<Item = PortSetError> + 'a {
    unresolved_items(list, move |name| named_of(spec, name))
}

/// Returns an error for each item that [`resolve_names`] skips.
pub fn unresolved_items<'a>(
    list: &'a str,
    named: impl Fn(&str) -> Vec<u16> + 'a,
) -> impl Iterator<Item = PortSetError> + 'a {
    list_items(list).filter_map(move |item| {
        let error = PortSet::parse_item(item).err()?;
        named(item).is_empty().then_some(error)
    })
}

fn named_of(spec: Option<&PodSpec>, name: &str) -> Vec<u16> {
    spec.map(|spec| named(spec, name)).unwrap_or_default()
}

/// Checks a list of ports, ranges and names of ports without knowing the names of a pod.
///
/// # Errors
///
/// An item that is neither a port, a range nor a valid port name, or a list with too many ranges;
/// the text says what the list accepts.
pub fn check_list(list: &str) -> Result<(), String> {
    let numbers: Vec<&str> = list_items(list)
        .filter(|item| !is_port_name(item))
        .collect();
    numbers
        .join(",")
        .parse::<PortSet>()
        .and_then(|ports| ports.check_limit())
        .map_err(|error| error.to_string())
}

/// Kubernetes requires up to 15 lower-case letters, digits and dashes with at least one letter.
fn is_port_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 15
        && text.bytes().all(allowed)
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Returns the opaque ports of the pod's annotation. Without the annotation the default list of the
/// cluster applies.
pub fn opaque(pod: &Pod) -> Option<PortSet> {
    let list = annotation(pod, keys::OPAQUE_PORTS)?;
    Some(resolve_list(pod.spec.as_ref(), list))
}

/// Returns the ports whose inbound connections bypass the proxy, from the pod's annotation.
pub fn skip_inbound(pod: &Pod) -> PortSet {
    annotation(pod, keys::SKIP_INBOUND_PORTS)
        .map(|list| resolve_list(pod.spec.as_ref(), list))
        .unwrap_or_default()
}

/// Returns the ports of the pod's proxy; `None` if the pod has no proxy container or its
/// environment lacks one of the addresses.
pub fn proxy_ports(pod: &Pod) -> Option<ProxyPorts> {
    let proxy =
        containers(pod.spec.as_ref()?).find(|container| container.name == PROXY_CONTAINER)?;
    let env = plain_env(proxy);
    let port = |name: &str| Some(env.get(name)?.parse::<SocketAddr>().ok()?.port());
    Some(ProxyPorts {
        inbound: port("LINKERD2_PROXY_INBOUND_LISTEN_ADDR")?,
        control: port("LINKERD2_PROXY_CONTROL_LISTEN_ADDR")?,
        admin: port("LINKERD2_PROXY_ADMIN_LISTEN_ADDR")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(text: &str) -> Pod {
        serde_norway::from_str(text).unwrap()
    }

    const POD: &str = "
metadata:
  name: web
  annotations: {config.linkerd.io/opaque-ports: 'db, 8000-8002, none,', config.linkerd.io/skip-inbound-ports: '9000'}
spec:
  initContainers:
  - name: linkerd-proxy
    env:
    - {name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR, value: '[::]:4143'}
    - {name: LINKERD2_PROXY_CONTROL_LISTEN_ADDR, value: '0.0.0.0:4190'}
    - {name: LINKERD2_PROXY_ADMIN_LISTEN_ADDR, value: '0.0.0.0:4191'}
  containers:
  - name: a
    ports: [{name: db, containerPort: 5432}, {name: dns, containerPort: 53, protocol: UDP}]
  - name: b
    ports: [{name: db, containerPort: 5433}]
";

    #[test]
    fn port_names_resolve_to_tcp_ports_of_all_containers() {
        let pod = pod(POD);
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(named(spec, "db"), [5432, 5433]);
        assert!(named(spec, "dns").is_empty());
    }

    #[test]
    fn port_of_service_leads_to_its_number_or_to_target_port() {
        let pod = pod(POD);
        let check = |port: &str, expect: &[u16]| {
            let port: ServicePort = serde_norway::from_str(port).unwrap();
            assert_eq!(targets(&port, &pod, 80), expect, "{port:?}");
        };
        check("{port: 80}", &[80]);
        check("{port: 80, targetPort: 8080}", &[8080]);
        check("{port: 80, targetPort: 0}", &[]);
        check("{port: 80, targetPort: db}", &[5432, 5433]);
        check("{port: 80, targetPort: none}", &[]);
    }

    #[test]
    fn port_annotations_accept_numbers_ranges_and_names() {
        let pod = pod(POD);
        assert_eq!(opaque(&pod).unwrap().to_string(), "5432-5433,8000-8002");
        assert_eq!(skip_inbound(&pod).to_string(), "9000");
        let unreadable = unreadable_items(pod.spec.as_ref(), "db, 8000-8002, none, 0,");
        let unreadable: Vec<String> = unreadable.map(|error| error.to_string()).collect();
        assert!(unreadable[0].contains("none") && unreadable[1].contains("\"0\""));
        assert_eq!(unreadable.len(), 2, "{unreadable:?}");
        assert_eq!(opaque(&Pod::default()), None);
    }

    #[test]
    fn invalid_port_lists_are_rejected() {
        for good in ["", "25,db, 8000-8002,", "http-2", "a"] {
            assert_eq!(check_list(good), Ok(()), "{good}");
        }
        for bad in [
            "0",
            "70000",
            "90-80",
            "Db",
            "25;26",
            "a-name-that-is-too-long",
            "25,db,--",
        ] {
            let error = check_list(bad).unwrap_err();
            assert!(error.contains("invalid port or range"), "{bad}: {error}");
        }
    }

    #[test]
    fn proxy_ports_are_read_from_proxy_environment() {
        let expect = ProxyPorts {
            inbound: 4143,
            control: 4190,
            admin: 4191,
        };
        assert_eq!(proxy_ports(&pod(POD)), Some(expect));
        assert_eq!(proxy_ports(&pod(&POD.replace("_ADMIN_", "_OTHER_"))), None);
        assert_eq!(proxy_ports(&pod(&POD.replace("linkerd-proxy", "x"))), None);
    }
}
