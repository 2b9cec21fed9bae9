//! Permissions at the API server.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permission {
    pub(crate) verb: &'static str,
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    /// The permission is for the control plane's namespace rather than for the cluster.
    pub(crate) namespaced: bool,
}

const ADMISSION: &str = "admissionregistration.k8s.io";

/// The permissions that an installation requires.
pub(crate) const FOR_INSTALLATION: [Permission; 16] = [
    cluster_wide("", "namespaces"),
    cluster_wide("apiextensions.k8s.io", "customresourcedefinitions"),
    cluster_wide("rbac.authorization.k8s.io", "clusterroles"),
    cluster_wide("rbac.authorization.k8s.io", "clusterrolebindings"),
    cluster_wide(ADMISSION, "mutatingwebhookconfigurations"),
    cluster_wide(ADMISSION, "validatingwebhookconfigurations"),
    namespaced("", "serviceaccounts"),
    namespaced("", "services"),
    namespaced("", "configmaps"),
    namespaced("", "secrets"),
    namespaced("apps", "deployments"),
    namespaced("apps", "daemonsets"),
    namespaced("batch", "jobs"),
    namespaced("batch", "cronjobs"),
    cluster_wide(ADMISSION, "validatingadmissionpolicies"),
    cluster_wide(ADMISSION, "validatingadmissionpolicybindings"),
];

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

const fn cluster_wide(group: &'static str, resource: &'static str) -> Permission {
    Permission {
        verb: "create",
        group,
        resource,
        namespaced: false,
    }
}

const fn namespaced(group: &'static str, resource: &'static str) -> Permission {
    Permission {
        verb: "create",
        group,
        resource,
        namespaced: true,
    }
}
