//! Resolves a Service to its address, as the client would.

use std::net::{IpAddr, SocketAddr};

use mesh_core::endpoint::EndpointUpdate;
use mesh_k8s::kinds::{ResourceExt as _, Service};
use mesh_k8s::values::Values;

use super::super::facts::{Target, Workload};
use super::super::question::{Host, PortName, TargetName};
use crate::exit::Failure;
use crate::mesh::Mesh;
use crate::mesh::controllers::{self, QueryContext, Source};

/// The port of a URL without one.
pub(super) const DEFAULT_PORT: u16 = 80;

pub(super) async fn resolve(
    mesh: &Mesh,
    values: &Values,
    wanted: &TargetName,
    client: &Workload,
) -> anyhow::Result<Target> {
    let text = match &wanted.host {
        Host::Ip(ip) => {
            let address = SocketAddr::new(*ip, number(wanted.port.as_ref(), DEFAULT_PORT)?);
            return Ok(Target {
                authority: authority(&address.to_string(), address.port(), &wanted.host),
                service: None,
                address,
                note: None,
            });
        }
        Host::Name(text) => text,
    };
    if let Some((name, namespace)) = service_name(text, &client.namespace) {
        if let Some(found) = service(mesh, &namespace, &name).await? {
            return of_service(mesh, values, &found, text, wanted).await;
        }
        let message = format!(
            "Service {namespace}/{name} does not exist; a target outside of the cluster is named by its address, as IP:PORT"
        );
        return Err(Failure::Input(message).into());
    }
    let message = format!(
        "{text} is not the name of a Service: name its address, as IP:PORT, which the pod's resolver may know"
    );
    Err(Failure::Input(message).into())
}

/// Returns name and namespace of the Service that a name of DNS may stand for.
fn service_name(text: &str, namespace: &str) -> Option<(String, String)> {
    let labels: Vec<&str> = text.split('.').collect();
    match labels.as_slice() {
        [name] => Some(((*name).to_owned(), namespace.to_owned())),
        [name, namespace] | [name, namespace, "svc", ..] => {
            Some(((*name).to_owned(), (*namespace).to_owned()))
        }
        _ => None,
    }
}

async fn service(mesh: &Mesh, namespace: &str, name: &str) -> anyhow::Result<Option<Service>> {
    match mesh {
        Mesh::Local(node) => node.object("Service", namespace, name),
        Mesh::Cluster(cluster) => cluster.service(namespace, name).await,
    }
}

async fn of_service(
    mesh: &Mesh,
    values: &Values,
    service: &Service,
    text: &str,
    wanted: &TargetName,
) -> anyhow::Result<Target> {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let full = format!("{namespace}/{name}");
    let port = port_of(service, &full, wanted.port.as_ref())?;
    let spec = service.spec.as_ref();
    if spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
        let external = spec.and_then(|spec| spec.external_name.as_deref());
        let message = format!(
            "Service {full} is an ExternalName: name its host, {}:{port}",
            external.unwrap_or_default()
        );
        return Err(Failure::Input(message).into());
    }
    let cluster_ip = spec.and_then(|spec| spec.cluster_ip.as_deref());
    let cluster_ip = cluster_ip.and_then(|ip| ip.parse::<IpAddr>().ok());
    let (address, note) = match cluster_ip {
        Some(ip) => (SocketAddr::new(ip, port), None),
        None => {
            let address = first_endpoint(mesh, values, &namespace, &name, port).await?;
            let note = format!("Service {full} is headless: {address} is one of its pods");
            (address, Some(note))
        }
    };
    Ok(Target {
        authority: authority(text, port, &wanted.host),
        service: Some(full),
        address,
        note,
    })
}

async fn first_endpoint(
    mesh: &Mesh,
    values: &Values,
    namespace: &str,
    name: &str,
    port: u16,
) -> anyhow::Result<SocketAddr> {
    let query = QueryContext {
        source: Source::Mesh { mesh, pod: None },
        token: "",
    };
    let authority = format!("{name}.{namespace}.svc.{}:{port}", values.cluster_domain);
    let update = controllers::endpoints(&query, &authority).await?;
    let first = match update {
        EndpointUpdate::Add { endpoints, .. } => endpoints.first().map(|it| it.addr),
        EndpointUpdate::Remove(_) | EndpointUpdate::Empty { .. } => None,
    };
    let message = || {
        Failure::Input(format!(
            "Service {namespace}/{name} is headless and has no endpoints for port {port}, so that its name has no address"
        ))
    };
    Ok(first.ok_or_else(message)?)
}

/// Returns the port of a Service by number or name, or its only one.
fn port_of(service: &Service, full: &str, wanted: Option<&PortName>) -> Result<u16, Failure> {
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let ports: Vec<(u16, &str)> = ports
        .filter_map(|port| {
            let number = u16::try_from(port.port).ok()?;
            Some((number, port.name.as_deref().unwrap_or_default()))
        })
        .collect();
    let found = match wanted {
        Some(PortName::Number(wanted)) => ports.iter().find(|(port, _)| port == wanted),
        Some(PortName::Name(wanted)) => ports.iter().find(|(_, name)| name == wanted),
        None if ports.len() == 1 => ports.first(),
        None => None,
    };
    let listed = || {
        let listed = ports.iter().map(|(port, name)| {
            if name.is_empty() {
                port.to_string()
            } else {
                format!("{port} ({name})")
            }
        });
        listed.collect::<Vec<_>>().join(", ")
    };
    match (found, wanted) {
        (Some((port, _)), _) => Ok(*port),
        // Clients may use any port of an address, and the answer says how the mesh treats it.
        (None, Some(PortName::Number(port))) => Ok(*port),
        (None, Some(PortName::Name(name))) => Err(Failure::Input(format!(
            "Service {full} has no port {name:?}; it has {}",
            listed()
        ))),
        (None, None) => Err(Failure::Input(format!(
            "Service {full} has several ports ({}): append one, as in :80",
            listed()
        ))),
    }
}

pub(super) fn number(port: Option<&PortName>, default: u16) -> Result<u16, Failure> {
    match port {
        None => Ok(default),
        Some(PortName::Number(port)) => Ok(*port),
        Some(PortName::Name(name)) => Err(Failure::Input(format!(
            "port {name:?}: only Services have names of ports"
        ))),
    }
}

/// Returns the authority of requests to a host and port.
fn authority(host: &str, port: u16, kind: &Host) -> String {
    match kind {
        // The text of a socket address.
        Host::Ip(_) => host.to_owned(),
        Host::Name(_) => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_are_recognised() {
        let of = |text: &str| service_name(text, "shop");
        let pair = |name: &str, namespace: &str| Some((name.to_owned(), namespace.to_owned()));
        assert_eq!(of("web"), pair("web", "shop"));
        assert_eq!(of("web.bank"), pair("web", "bank"));
        assert_eq!(of("web.bank.svc.cluster.local"), pair("web", "bank"));
        assert_eq!(of("www.example.com"), None);
    }

    #[test]
    fn port_of_service_is_selected() {
        let text = "spec: {ports: [{name: http, port: 80}, {name: admin, port: 81}]}";
        let service: Service = serde_norway::from_str(text).unwrap();
        let port = |wanted: Option<PortName>| port_of(&service, "a/b", wanted.as_ref());
        let name = |name: &str| Some(PortName::Name(name.to_owned()));
        assert_eq!(port(name("admin")).unwrap(), 81);
        assert_eq!(port(Some(PortName::Number(82))).unwrap(), 82);
        let error = port(name("x")).unwrap_err().to_string();
        assert!(error.contains("80 (http), 81 (admin)"), "{error}");
        let error = port(None).unwrap_err().to_string();
        assert!(error.contains("several ports"), "{error}");
    }
}
