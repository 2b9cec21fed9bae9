//! Proxies of one release under the control plane of another, as while a mesh is upgraded.
//! `MESH_TEST_PREVIOUS` is a directory with the programs of the previous release; without it these
//! tests are skipped.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use mesh_test_support::command::built;
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::access::{SERVERS, expect_status};
use super::faults::{POLICY, send};
use super::manifests;
use super::rolling::{HTTP2, KEPT, NEW_CONNECTIONS, all_ready, under_load};
use crate::harness::mesh::Mesh;

const PREVIOUS: &str = "MESH_TEST_PREVIOUS";

/// The programs that a node starts.
const PROGRAMS: [&str; 5] = [
    "mesh-proxy",
    "mesh-agent",
    "mesh-cni",
    "mesh-controller",
    "mesh-viz",
];

/// The programs of the previous release.
struct Previous(PathBuf);

impl Previous {
    fn find() -> Option<Self> {
        let previous = std::env::var_os(PREVIOUS).map(PathBuf::from);
        if previous.is_none() {
            println!("skipped: {PREVIOUS} is not set (CONTRIBUTING.md)");
        }
        previous.map(Self)
    }

    fn program(&self, name: &str) -> PathBuf {
        let program = self.0.join(name);
        assert!(program.is_file(), "{} does not exist", program.display());
        program
    }

    /// Returns a directory with these programs of the previous release, and the others of this one.
    fn directory_with(&self, names: &[&str]) -> TempDir {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for name in PROGRAMS {
            let program = if names.contains(&name) {
                self.program(name)
            } else {
                built(name)
            };
            symlink(program, directory.path().join(name)).expect("an empty directory");
        }
        directory
    }
}

#[test]
fn proxies_of_the_previous_release_work_under_this_control_plane() {
    require_root!();
    let Some(previous) = Previous::find() else {
        return;
    };
    let programs = previous.directory_with(&["mesh-proxy"]);
    expect_two_releases_work_together(built("meshctl"), &programs);
}

/// meshctl is the previous release's too, because it starts the controllers.
#[test]
fn proxies_work_under_the_control_plane_of_the_previous_release() {
    require_root!();
    let Some(previous) = Previous::find() else {
        return;
    };
    let programs = previous.directory_with(&["mesh-agent", "mesh-cni", "mesh-controller"]);
    expect_two_releases_work_together(previous.program("meshctl"), &programs);
}

/// A pod is added and the control plane killed under load; then a policy, of a kind that all
/// releases have, is applied and removed.
fn expect_two_releases_work_together(meshctl: PathBuf, programs: &TempDir) {
    let base = manifests::namespace("app", true)
        + &manifests::client("app")
        + &manifests::pod("app", "other", &["sleep", "infinity"], &[], "")
        + &manifests::web_service("app");
    let first = manifests::web_replica("app", "web-a");
    let bin_dir = programs.path().to_str().expect("a plain name");
    let mesh = Mesh::up_by(
        meshctl,
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

    mesh.write("policy.yaml", &POLICY.replace("other", "client"));
    expect_status(&mesh, "app/other", "403", "other clients are refused");
    expect_status(
        &mesh,
        "app/client",
        "200",
        "the authorized client is served",
    );
    mesh.write("policy.yaml", SERVERS);
    expect_status(&mesh, "app/client", "403", "the Server refuses all clients");
    mesh.remove("policy.yaml");
    for client in ["app/client", "app/other"] {
        expect_status(&mesh, client, "200", "no policy refuses a client");
    }
}
