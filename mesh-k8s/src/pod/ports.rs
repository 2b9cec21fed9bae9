//! The ports of a pod: declared, named, opaque, skipped, and its proxy's own.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodSpec};
use mesh_core::{
    annotation as keys,
    ports::{PortSet, PortSetError},
};

use super::{PROXY_CONTAINER, annotation, containers, plain_env};

/// Where a pod's proxy listens, as its environment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProxyPorts {
    pub inbound: u16,
    pub control: u16,
    pub admin: u16,
}

/// Every declared port, init containers' first.
pub fn declared(spec: &PodSpec) -> impl Iterator<Item = (&Container, &ContainerPort)> {
    containers(spec).flat_map(|container| {
        container
            .ports
            .iter()
            .flatten()
            .map(move |port| (container, port))
    })
}

/// Container ports are `i32` in the API; what is no port number is none.
pub fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port > 0)
}

pub fn is_tcp(port: &ContainerPort) -> bool {
    matches!(port.protocol.as_deref(), None | Some("" | "TCP"))
}

/// Every TCP port of that name; several containers may use one name.
pub fn named(spec: &PodSpec, name: &str) -> Vec<u16> {
    let mut ports: Vec<u16> = declared(spec)
        .filter(|(_, port)| port.name.as_deref() == Some(name) && is_tcp(port))
        .filter_map(|(_, port)| number(port.container_port))
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Reads a list of ports, ranges and names of container ports. Unknown names and unreadable items
/// are left out: a list that a user got half right should do half.
pub fn resolve_list(spec: Option<&PodSpec>, list: &str) -> PortSet {
    let mut set = PortSet::default();
    for item in items(list) {
        if let Ok(range) = PortSet::parse_item(item) {
            set.insert(range);
        } else if let Some(spec) = spec {
            for port in named(spec, item) {
                set.insert(port..=port);
            }
        }
    }
    set
}

/// What [`resolve_list`] leaves out.
pub fn unreadable_items<'a>(
    spec: Option<&'a PodSpec>,
    list: &'a str,
) -> impl Iterator<Item = PortSetError> + 'a {
    items(list).filter_map(move |item| {
        let error = PortSet::parse_item(item).err()?;
        let is_name = spec.is_some_and(|spec| !named(spec, item).is_empty());
        (!is_name).then_some(error)
    })
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

/// Why a list of ports, ranges and names of ports cannot be read: an item that is none of these, by
/// what is allowed.
pub fn check_list(list: &str) -> Result<(), String> {
    let numbers: Vec<&str> = items(list).filter(|item| !is_port_name(item)).collect();
    numbers
        .join(",")
        .parse::<PortSet>()
        .and_then(|ports| ports.check_limit())
        .map_err(|error| error.to_string())
}

/// As Kubernetes demands of them: up to 15 lower-case letters, digits and dashes, among them a
/// letter.
fn is_port_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 15
        && text.bytes().all(allowed)
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// The ports that the pod's annotation makes opaque; without annotation nothing is said and the
/// cluster's default list applies.
pub fn opaque(pod: &Pod) -> Option<PortSet> {
    let list = annotation(pod, keys::OPAQUE_PORTS)?;
    Some(resolve_list(pod.spec.as_ref(), list))
}

/// The ports whose inbound connections bypass the proxy by the pod's annotation.
pub fn skip_inbound(pod: &Pod) -> PortSet {
    annotation(pod, keys::SKIP_INBOUND_PORTS)
        .map(|list| resolve_list(pod.spec.as_ref(), list))
        .unwrap_or_default()
}

/// Nothing when the pod has no proxy container or its environment lacks one of the addresses.
pub fn of_proxy(pod: &Pod) -> Option<ProxyPorts> {
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
    fn names_resolve_over_all_containers_and_tcp_only() {
        let pod = pod(POD);
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(named(spec, "db"), [5432, 5433]);
        assert!(named(spec, "dns").is_empty());
    }

    #[test]
    fn annotations_list_numbers_ranges_and_names() {
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
    fn lists_of_ports_and_names_are_checked() {
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
            let said = check_list(bad).unwrap_err();
            assert!(said.contains("is no port or range"), "{bad}: {said}");
        }
    }

    #[test]
    fn proxy_ports_come_from_its_environment() {
        let expect = ProxyPorts {
            inbound: 4143,
            control: 4190,
            admin: 4191,
        };
        assert_eq!(of_proxy(&pod(POD)), Some(expect));
        assert_eq!(of_proxy(&pod(&POD.replace("_ADMIN_", "_OTHER_"))), None);
        assert_eq!(of_proxy(&pod(&POD.replace("linkerd-proxy", "x"))), None);
    }
}
