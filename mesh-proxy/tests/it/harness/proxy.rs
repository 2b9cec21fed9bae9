//! The real binary, with the environment that an injector would set.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;

use mesh_test_support::network::Namespace;
use mesh_test_support::program::Program;
use tempfile::TempDir;

use super::control::PORT;
use super::pod::Pod;

/// The command that runs another one as the proxy's user.
pub(crate) const AS_PROXY_USER: &str = "setpriv --reuid=2102 --regid=2102 --clear-groups";

/// The file that gets standard error of a proxy with an access log.
pub(super) const ACCESS_LOG: &str = "access.log";

/// The variable of the Workload API's socket.
pub(crate) const WORKLOAD_API: &str = "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS";

/// Starts a proxy in its pod. The directory holds its token.
pub(super) fn start(pod: &Pod, namespace: &Namespace, more: &[(&str, &str)]) -> (Program, TempDir) {
    let files = tempfile::tempdir().unwrap();
    // The proxy's user must be able to read its token.
    std::fs::set_permissions(files.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let token = files.path().join("token");
    std::fs::write(&token, "the-token").unwrap();

    let mut command = namespace.command(AS_PROXY_USER);
    command
        .arg(env!("CARGO_BIN_EXE_mesh-proxy"))
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LINKERD2_PROXY_IDENTITY_TOKEN_FILE", token);
    for (name, value) in environment(pod) {
        command.env(format!("LINKERD2_PROXY_{name}"), value);
    }
    // The variables of the identity service, which a proxy with the Workload API does not have.
    if more.iter().any(|(name, _)| *name == WORKLOAD_API) {
        for name in ["LOCAL_NAME", "SVC_ADDR", "TOKEN_FILE"] {
            command.env_remove(format!("LINKERD2_PROXY_IDENTITY_{name}"));
        }
    }
    for (name, value) in more {
        let ours = name.starts_with("MESH_PROXY_");
        let prefix = if ours { "" } else { "LINKERD2_PROXY_" };
        command.env(format!("{prefix}{name}"), value);
    }
    // Else a failed test shows it.
    if more.iter().any(|(name, _)| *name == "ACCESS_LOG") {
        command.stderr(File::create(files.path().join(ACCESS_LOG)).unwrap());
    }
    (Program::start(&mut command), files)
}

fn environment(pod: &Pod) -> Vec<(&'static str, String)> {
    let control = format!("localhost.:{PORT}");
    vec![
        ("LOG", "warn,mesh=debug".to_owned()),
        ("DESTINATION_SVC_ADDR", control.clone()),
        ("POLICY_SVC_ADDR", control.clone()),
        ("IDENTITY_SVC_ADDR", control),
        ("DESTINATION_CONTEXT", pod.name.clone()),
        ("POLICY_WORKLOAD", pod.name.clone()),
        ("DESTINATION_PROFILE_NETWORKS", "10.0.0.0/8".to_owned()),
        ("POLICY_CLUSTER_NETWORKS", "10.0.0.0/8".to_owned()),
        ("IDENTITY_TRUST_ANCHORS", pod.control.anchors()),
        ("IDENTITY_LOCAL_NAME", pod.identity()),
        ("INBOUND_DEFAULT_POLICY", "all-unauthenticated".to_owned()),
        ("INBOUND_IPS", format!("{},{}", pod.ip, pod.ip6)),
        (
            "OUTBOUND_LISTEN_ADDRS",
            "127.0.0.1:4140,[::1]:4140".to_owned(),
        ),
        ("INBOUND_LISTEN_ADDR", "[::]:4143".to_owned()),
        ("ADMIN_LISTEN_ADDR", "[::]:4191".to_owned()),
        ("CORES", "1".to_owned()),
    ]
}
