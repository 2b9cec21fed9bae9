//! Proxies of the previous release under this control plane, as after an upgrade of the control
//! plane. `MESH_TEST_PREVIOUS` is a directory with that release's proxy; without it this is
//! skipped.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use mesh_test_support::command::built;
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::access::{SERVERS, expect_status, server_authorization, status};
use super::faults::send;
use super::manifests;
use super::rolling::{HTTP2, KEPT, NEW_CONNECTIONS, all_ready, under_load};
use crate::harness::mesh::Mesh;

const PREVIOUS: &str = "MESH_TEST_PREVIOUS";
const PROXY: &str = "mesh-proxy";
const OTHERS: [&str; 3] = ["mesh-agent", "mesh-cni", "mesh-controller"];

/// Returns a directory with the proxy of the previous release and this release's other programs.
fn programs_with_previous_proxy() -> Option<TempDir> {
    let Some(previous) = std::env::var_os(PREVIOUS).map(PathBuf::from) else {
        println!("skipped: {PREVIOUS} is not set (CONTRIBUTING.md)");
        return None;
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let previous = previous.join(PROXY);
    assert!(previous.is_file(), "{} does not exist", previous.display());
    let programs = OTHERS.map(|name| (name, built(name)));
    for (name, program) in programs.into_iter().chain([(PROXY, previous)]) {
        symlink(program, directory.path().join(name)).expect("an empty directory");
    }
    Some(directory)
}

/// A pod is added and the control plane killed under load, then a policy is applied and removed.
#[test]
fn proxies_of_the_previous_release_work_under_this_control_plane() {
    require_root!();
    let Some(programs) = programs_with_previous_proxy() else {
        return;
    };
    let base = manifests::namespace("app", true)
        + &manifests::client("app")
        + &manifests::pod("app", "other", &["sleep", "infinity"], &[], "")
        + &manifests::web_service("app");
    let first = manifests::web_replica("app", "web-a");
    let bin_dir = programs.path().to_str().expect("a plain name");
    let mesh = Mesh::up_with(
        &[("app.yaml", &base), ("web-a.yaml", &first)],
        &["--bin-dir", bin_dir],
    );

    let flawed = under_load(&mesh, &[KEPT, HTTP2, NEW_CONNECTIONS], || {
        mesh.write("web-b.yaml", &manifests::web_replica("app", "web-b"));
        mesh.meshctl("local apply");
        send(&mesh.processes("mesh-controller"), Signal::SIGKILL);
        eventually("the control plane is back", || all_ready(&mesh));
    });
    assert!(flawed.is_empty(), "{}", flawed.join("\n"));

    let policy = server_authorization(
        "v1beta1",
        "{name: web}",
        "{meshTLS: {serviceAccounts: [{name: client}]}}",
    );
    mesh.write("policy.yaml", &policy);
    expect_status(&mesh, "app/other", "403", "other clients are refused");
    assert_eq!(status(&mesh, "app/client"), "200");
    mesh.write("policy.yaml", SERVERS);
    expect_status(&mesh, "app/client", "403", "the Server refuses all clients");
    mesh.remove("policy.yaml");
    for client in ["app/client", "app/other"] {
        expect_status(&mesh, client, "200", "no policy refuses a client");
    }
}
