//! Names that the commands agree on.

/// Where the extension is installed unless -n names another namespace.
pub(super) const DEFAULT_NAMESPACE: &str = "linkerd-multicluster";

/// Returns the name of the Secrets with credentials for a cluster.
pub(super) fn credentials_name(cluster: &str) -> String {
    format!("cluster-credentials-{cluster}")
}
