//! What the tests of the commands share.

use clap::Parser as _;
use mesh_test_support::kube_api::ScriptedApi;

use crate::cluster::Cluster;
use crate::global::Global;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    global: Global,
}

/// Returns a cluster with a scripted API server.
pub(super) fn cluster_of(api: &ScriptedApi) -> Cluster {
    Cluster::played(kube::Client::new(api.service("meshctl"), "default"))
}

/// Returns the flags of every command, all of them absent.
pub(super) fn global() -> Global {
    Line::try_parse_from(["meshctl"]).unwrap().global
}

pub(super) fn helm_is_available(test: &str) -> bool {
    let found = std::process::Command::new("helm").arg("version").output();
    if found.is_err() {
        println!("skipped: {test}: the program helm is not on the PATH");
    }
    found.is_ok()
}
