//! Finds the namespace of an extension, which has a label, as in Linkerd.

use kube::api::ListParams;
use mesh_core::annotation::EXTENSION;
use mesh_k8s::kinds::{Namespace, ResourceExt};

use super::{Cluster, error};
use crate::exit::Failure;

/// An extension of the mesh. A cluster has at most one installation of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    /// The value of the label, and the name of its commands.
    pub(crate) name: &'static str,
    /// The flag that names its namespace.
    pub(crate) flag: &'static str,
}

impl Extension {
    fn label(self) -> String {
        format!("{EXTENSION}={}", self.name)
    }

    /// Returns how to install the extension, or to name its namespace.
    pub(crate) fn install(self) -> String {
        let Self { name, flag } = self;
        format!(
            "install it with `meshctl {name} install | kubectl apply -f -`, or name its namespace with {flag}"
        )
    }

    /// Returns the only one of the namespaces with the label.
    fn only(self, names: &[String]) -> Result<String, Failure> {
        let (name, label) = (self.name, self.label());
        match names {
            [namespace] => Ok(namespace.clone()),
            [] => Err(Failure::Unreachable(format!(
                "the {name} extension is not installed (no namespace has the label {label}): {}",
                self.install()
            ))),
            several => Err(Failure::Input(format!(
                "several namespaces have the label {label} ({}): select one with {}",
                several.join(", "),
                self.flag
            ))),
        }
    }
}

impl Cluster {
    /// Returns the namespace of the extension.
    pub(crate) async fn extension_namespace(&self, extension: Extension) -> anyhow::Result<String> {
        let params = ListParams::default().labels(&extension.label());
        let api = kube::Api::<Namespace>::all(self.client.clone());
        let found = api.list(&params).await.map_err(|error| {
            let Extension { name, flag } = extension;
            let what = format!("find the namespace of the {name} extension ({flag} names it)");
            error::failed(&what, error)
        })?;
        let names: Vec<String> = found.iter().map(ResourceExt::name_any).collect();
        Ok(extension.only(&names)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extension_is_in_one_namespace() {
        let viz = Extension {
            name: "viz",
            flag: "--viz-namespace",
        };
        let find = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            viz.only(&names)
        };
        assert_eq!(find(&["linkerd-viz"]).unwrap(), "linkerd-viz");
        let missing = find(&[]).unwrap_err().to_string();
        assert!(
            missing.contains("meshctl viz install | kubectl apply -f -"),
            "{missing}"
        );
        let several = find(&["a", "b"]).unwrap_err().to_string();
        assert!(
            several.contains("(a, b): select one with --viz-namespace"),
            "{several}"
        );
    }
}
