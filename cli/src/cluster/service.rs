//! Finds a pod behind a Service whose name only pods can resolve.

use std::net::IpAddr;

use kube::Api;
use kube::api::ListParams;
use mesh_k8s::kinds::{Pod, ResourceExt, Service};
use mesh_k8s::pod::{self, ports};
use mesh_k8s::select;

use super::{Cluster, error};
use crate::exit::Failure;
use crate::resource::Scope;

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodPort {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: u16,
}

/// The name of a Service in the DNS of the cluster.
#[derive(Debug, PartialEq, Eq)]
struct ServiceName<'a> {
    name: &'a str,
    /// `None` for the namespace of the client.
    namespace: Option<&'a str>,
    /// Whether the name can be no other one.
    explicit: bool,
}

impl Cluster {
    /// Returns a Service, if it exists.
    pub(crate) async fn service(
        &self,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<Option<Service>> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        let what = format!("read Service {namespace}/{name}");
        let found = services.get_opt(name).await;
        found.map_err(|error| error::failed(&what, error))
    }

    /// Returns a ready pod behind the Service with this name, and the port of the pod that `port`
    /// of the Service leads to; `None` if no Service has the name. A name without namespace is in
    /// the control plane's namespace, where the mesh resolves it.
    pub(crate) async fn pod_of_service(
        &self,
        host: &str,
        port: u16,
    ) -> anyhow::Result<Option<PodPort>> {
        let Some(named) = service_name(host) else {
            return Ok(None);
        };
        let namespace = named.namespace.unwrap_or(&self.control_namespace);
        let service = match self.service(namespace, named.name).await? {
            Some(service) => service,
            None if named.explicit => {
                let name = named.name;
                let text = format!("namespace {namespace} has no Service {name}");
                return Err(Failure::Unreachable(text).into());
            }
            None => return Ok(None),
        };
        let pods = self.pods_behind(namespace, &service).await?;
        let target = pods
            .iter()
            .filter(|it| pod::is_ready(it) && !pod::is_terminal(it))
            .find_map(|it| Some((it, target_port(&service, port, it)?)));
        match target {
            Some((pod, port)) => Ok(Some(PodPort {
                namespace: namespace.to_owned(),
                name: pod.name_any(),
                port,
            })),
            None => Err(Failure::Unreachable(format!(
                "Service {namespace}/{} has no ready pod with port {port}",
                named.name
            ))
            .into()),
        }
    }

    async fn pods_behind(&self, namespace: &str, service: &Service) -> anyhow::Result<Vec<Pod>> {
        let spec = service.spec.as_ref();
        let selector = spec.and_then(|spec| spec.selector.as_ref());
        let selector = selector.filter(|selector| !selector.is_empty());
        let selector = selector.ok_or_else(|| {
            let name = service.name_any();
            Failure::Unreachable(format!("Service {namespace}/{name} selects no pods"))
        })?;
        let params = ListParams::default().labels(&select::text(selector));
        let scope = Scope::Namespace(namespace.to_owned());
        let pods = self.list::<Pod>(&scope, params).await;
        pods.map_err(|error| error::failed("list the pods of the Service", error))
    }
}

/// Returns the name of the Service that a host may be: `NAME`, `NAME.NAMESPACE`, or
/// `NAME.NAMESPACE.svc` with or without the domain of the cluster.
fn service_name(host: &str) -> Option<ServiceName<'_>> {
    let host = host.trim_end_matches('.');
    if host.is_empty() || host.starts_with('[') || host.parse::<IpAddr>().is_ok() {
        return None;
    }
    let labels: Vec<&str> = host.split('.').collect();
    let (name, namespace, explicit) = match labels[..] {
        [name] => (name, None, false),
        [name, namespace] => (name, Some(namespace), false),
        [name, namespace, "svc", ..] => (name, Some(namespace), true),
        _ => return None,
    };
    Some(ServiceName {
        name,
        namespace,
        explicit,
    })
}

/// Returns the port of the pod that a port of the Service leads to.
fn target_port(service: &Service, port: u16, pod: &Pod) -> Option<u16> {
    let declared = service.spec.as_ref()?.ports.as_ref()?;
    let declared = declared.iter().find(|one| one.port == i32::from(port))?;
    ports::targets(declared, pod, port).first().copied()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn hosts_are_names_of_services_or_not() {
        let service = |name, namespace, explicit| {
            Some(ServiceName {
                name,
                namespace,
                explicit,
            })
        };
        for (host, expect) in [
            ("prometheus", service("prometheus", None, false)),
            ("a.b", service("a", Some("b"), false)),
            ("a.b.svc", service("a", Some("b"), true)),
            ("a.b.svc.cluster.local.", service("a", Some("b"), true)),
            ("metrics.example.com", None),
            ("192.0.2.1", None),
            ("[2001:db8::1]", None),
            ("", None),
        ] {
            assert_eq!(service_name(host), expect, "{host}");
        }
    }

    #[test]
    fn port_of_service_leads_to_port_of_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "spec": { "containers": [{
                "name": "prometheus", "ports": [{ "name": "admin", "containerPort": 9091 }],
            }] },
        }))
        .unwrap();
        let target = |port: Value| {
            let service = json!({ "spec": { "ports": [{ "port": 1 }, port] } });
            target_port(&serde_json::from_value(service).unwrap(), 9090, &pod)
        };
        assert_eq!(target(json!({ "port": 9090 })), Some(9090));
        let number = json!({ "port": 9090, "targetPort": 80 });
        assert_eq!(target(number), Some(80));
        let name = json!({ "port": 9090, "targetPort": "admin" });
        assert_eq!(target(name), Some(9091));
        let unknown = json!({ "port": 9090, "targetPort": "other" });
        assert_eq!(target(unknown), None);
        assert_eq!(target(json!({ "port": 80 })), None);
    }
}
