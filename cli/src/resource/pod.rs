//! The properties of a pod that commands use.

use std::net::IpAddr;

use anyhow::Context as _;
use mesh_core::annotation;
use mesh_k8s::kinds::core::PodSpec;
use mesh_k8s::kinds::{ObjectMeta, Pod, ResourceExt};
use mesh_k8s::pod;
use mesh_k8s::pod::owner::Owner;

use crate::exit::Failure;

#[derive(Clone, Debug)]
pub(crate) struct MeshPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) owner: Owner,
    pub(crate) ip: Option<IpAddr>,
    pub(crate) ready: bool,
    /// All containers have exited and are not restarted.
    pub(crate) is_terminal: bool,
    /// The admin port of the proxy, if the pod has one.
    pub(crate) admin_port: Option<u16>,
    pub(crate) proxy_version: Option<String>,
    /// The control-plane component, if the pod belongs to one.
    pub(crate) component: Option<String>,
    pub(crate) service_account: String,
    pub(crate) control_namespace: Option<String>,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) containers: Vec<String>,
    /// The names of TCP ports.
    pub(crate) named_ports: Vec<(String, u16)>,
}

impl MeshPod {
    /// Reads a pod. `owners` are the ReplicaSets and Jobs that may own the pod on behalf of a
    /// workload.
    pub(crate) fn new(pod: &Pod, owners: &[ObjectMeta]) -> Self {
        let find_owner = |_kind: &str, name: &str| {
            owners.iter().find(|owner| {
                owner.name.as_deref() == Some(name) && owner.namespace == pod.metadata.namespace
            })
        };
        let spec = pod.spec.as_ref();
        Self {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            owner: pod::owner::resolve(pod, find_owner),
            ip: pod::ips(pod).first().copied(),
            ready: pod::is_ready(pod),
            is_terminal: pod::is_terminal(pod),
            admin_port: pod::ports::proxy_ports(pod).map(|ports| ports.admin),
            proxy_version: pod::annotation(pod, annotation::PROXY_VERSION).map(str::to_owned),
            component: pod::label(pod, annotation::CONTROL_PLANE_COMPONENT).map(str::to_owned),
            service_account: pod::service_account(pod).to_owned(),
            control_namespace: pod::control_plane_namespace(pod).map(str::to_owned),
            labels: pod.labels().clone().into_iter().collect(),
            containers: spec
                .map(|spec| {
                    pod::containers(spec)
                        .map(|container| container.name.clone())
                        .collect()
                })
                .unwrap_or_default(),
            named_ports: spec.map(named_ports).unwrap_or_default(),
        }
    }

    pub(crate) fn is_meshed(&self) -> bool {
        self.admin_port.is_some()
    }

    /// Returns the port that serves the proxy's metrics.
    pub(crate) fn admin_port(&self) -> anyhow::Result<u16> {
        self.admin_port
            .with_context(|| format!("pod {self} has no proxy: it is not in the mesh"))
    }

    /// Returns the identity of the pod's proxy.
    pub(crate) fn identity(&self, trust_domain: &str) -> anyhow::Result<String> {
        let control = self
            .control_namespace
            .as_deref()
            .with_context(|| format!("pod {self} has no label for its control plane"))?;
        Ok(mesh_core::identity::service_account(
            &self.service_account,
            &self.namespace,
            control,
            trust_domain,
        ))
    }

    pub(crate) fn address(&self) -> anyhow::Result<IpAddr> {
        self.ip
            .with_context(|| format!("pod {self} has no address yet"))
    }
}

impl std::fmt::Display for MeshPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

fn named_ports(spec: &PodSpec) -> Vec<(String, u16)> {
    pod::ports::declared(spec)
        .filter(|(_, port)| pod::ports::is_tcp(port))
        .filter_map(|(_, port)| {
            let number = pod::ports::port_number(port.container_port)?;
            Some((port.name.clone()?, number))
        })
        .collect()
}

/// Returns the pod named `name`; `wanted` is the user's input, for the error message.
pub(crate) fn find(mut pods: Vec<MeshPod>, wanted: &str, name: &str) -> Result<MeshPod, Failure> {
    pods.retain(|pod| pod.name == name);
    match pods.len() {
        1 => Ok(pods.remove(0)),
        0 => Err(Failure::Input(format!(
            "pod {wanted:?} does not exist; write NAMESPACE/NAME, or select the namespace with -n"
        ))),
        _ => {
            let namespaces: Vec<&str> = pods.iter().map(|pod| pod.namespace.as_str()).collect();
            Err(Failure::Input(format!(
                "pod {name:?} exists in several namespaces ({}): write NAMESPACE/{name}",
                namespaces.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_name_must_be_unique_in_scope() {
        let pod = |namespace: &str, name: &str| {
            let text = format!("metadata: {{name: {name}, namespace: {namespace}}}");
            let pod: Pod = serde_norway::from_str(&text).unwrap();
            MeshPod::new(&pod, &[])
        };
        let pods = vec![pod("a", "web"), pod("b", "web"), pod("b", "db")];
        let find_pod = |name: &str| find(pods.clone(), name, name).map(|pod| pod.to_string());
        assert_eq!(find_pod("db").unwrap(), "b/db");
        assert!(find_pod("web").unwrap_err().to_string().contains("(a, b)"));
        assert!(find_pod("gone").is_err());
    }
}
