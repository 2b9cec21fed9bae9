//! The `CNI_*` variables: the command's container, and its pod.

use std::path::PathBuf;

use mesh_core::node::{AttachmentId, PodRef};

use super::{CniError, Code};
use crate::registry;

/// Kernel: `IFNAMSIZ`, the terminating zero included.
const INTERFACE_NAME_LIMIT: usize = 16;

/// The runtime's description of the attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    pub container_id: String,
    pub interface: String,
    /// Absent when the namespace no longer exists, which only DEL accepts.
    pub netns: Option<PathBuf>,
    /// Absent when the runtime does not run the container for Kubernetes.
    pub pod: Option<PodRef>,
}

impl Environment {
    pub(super) fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, CniError> {
        let needed = |name: &str| {
            variable(name)
                .filter(|value| !value.is_empty())
                .ok_or_else(|| invalid(format!("{name} is missing")))
        };
        let container_id = needed("CNI_CONTAINERID")?;
        registry::check_container_id(&container_id)
            .map_err(|error| invalid(format!("CNI_CONTAINERID: {error}")))?;
        let interface = needed("CNI_IFNAME")?;
        if !is_interface_name(&interface) {
            return Err(invalid(format!(
                "CNI_IFNAME: {interface:?} is not a valid interface name"
            )));
        }
        let netns = variable("CNI_NETNS").filter(|path| !path.is_empty());
        Ok(Self {
            container_id,
            interface,
            netns: netns.map(PathBuf::from),
            pod: pod(&variable("CNI_ARGS").unwrap_or_default())?,
        })
    }

    pub fn attachment(&self, network: &str) -> AttachmentId {
        AttachmentId {
            container_id: self.container_id.clone(),
            network: network.to_owned(),
            interface: self.interface.clone(),
        }
    }
}

/// Parses the pod's name out of `CNI_ARGS`: `KEY=VALUE` pairs, most of them for other plugins.
fn pod(arguments: &str) -> Result<Option<PodRef>, CniError> {
    let mut pod = PodRef::default();
    for pair in arguments.split(';').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(invalid(format!(
                "CNI_ARGS: {pair:?} is not a KEY=VALUE pair"
            )));
        };
        match key {
            "K8S_POD_NAMESPACE" => pod.namespace = value.to_owned(),
            "K8S_POD_NAME" => pod.name = value.to_owned(),
            "K8S_POD_UID" => pod.uid = value.to_owned(),
            _ => {}
        }
    }
    let is_named = !pod.namespace.is_empty() && !pod.name.is_empty();
    Ok(is_named.then_some(pod))
}

/// Applies the specification's rule, which is the kernel's.
fn is_interface_name(name: &str) -> bool {
    name.len() < INTERFACE_NAME_LIMIT
        && !matches!(name, "." | "..")
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace())
}

fn invalid(message: String) -> CniError {
    CniError::new(
        Code::InvalidEnvironment,
        message,
        "the container runtime sets the CNI_ variables for each command",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(changes: &[(&str, &str)]) -> Result<Environment, CniError> {
        let variable = |name: &str| {
            let changed = changes.iter().find(|(key, _)| *key == name);
            let value = match (changed, name) {
                (Some((_, value)), _) => value,
                (None, "CNI_CONTAINERID") => "c1",
                (None, "CNI_IFNAME") => "eth0",
                (None, "CNI_NETNS") => "/run/netns/c1",
                _ => return None,
            };
            Some(value.to_owned())
        };
        Environment::read(&variable)
    }

    #[test]
    fn pod_is_parsed_among_other_arguments() {
        let environment = read(&[(
            "CNI_ARGS",
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=1-2",
        )]);
        let pod = environment.unwrap().pod.unwrap();
        assert_eq!([pod.to_string(), pod.uid], ["shop/web-0", "1-2"]);
        assert_eq!(read(&[("CNI_ARGS", "IgnoreUnknown=1")]).unwrap().pod, None);
        assert_eq!(read(&[]).unwrap().pod, None);
        assert_eq!(read(&[("CNI_NETNS", "")]).unwrap().netns, None);
    }

    #[test]
    fn missing_or_malformed_variables_are_rejected() {
        let check = |change: (&str, &str), expect: &str| {
            let error = read(&[change]).unwrap_err();
            assert_eq!(error.code, Code::InvalidEnvironment);
            assert_eq!(error.message, expect);
        };
        check(("CNI_CONTAINERID", ""), "CNI_CONTAINERID is missing");
        check(("CNI_IFNAME", ""), "CNI_IFNAME is missing");
        check(
            ("CNI_CONTAINERID", "../../x"),
            "CNI_CONTAINERID: \"../../x\" is not a valid container id (letters, digits, '_', '.' and '-', beginning with a letter or a digit)",
        );
        for name in ["a/b", "..", "a b", "a:b", "abcdefghijklmnop"] {
            assert!(read(&[("CNI_IFNAME", name)]).is_err(), "{name}");
        }
        check(
            ("CNI_ARGS", "K8S_POD_NAME"),
            "CNI_ARGS: \"K8S_POD_NAME\" is not a KEY=VALUE pair",
        );
    }
}
