//! Serves a scripted metrics API, API server and Prometheus, whose numbers move, for the tests of
//! the dashboard in a browser: `scripted_mesh DIRECTORY` writes to the directory `kubeconfig`,
//! `manifests/shop.yaml` for a policy controller, and finally `addresses`, which has the address of
//! the metrics API and then of Prometheus, one a line.

#![expect(
    clippy::unwrap_used,
    dead_code,
    reason = "a helper of tests, which uses a part of what it shares with them"
)]

#[path = "../tests/it/web/scripted.rs"]
mod scripted;
// Not beside this file, where it would be another example.
#[path = "scripted_mesh/scripted_series.rs"]
mod scripted_series;

use std::fs;
use std::path::Path;

use mesh_test_support::kube_api;
use scripted::cluster::{Cluster, SHOP};
use scripted::{Mesh, Pace};

#[tokio::main]
async fn main() {
    let directory = std::env::args().nth(1).unwrap();
    let directory = Path::new(&directory);
    let metrics_api = Mesh::new(Pace::Moving).serve().await;
    let prometheus = scripted_series::serve().await;
    let cluster = Cluster::new(Pace::Moving).serve().await;
    kube_api::write_kubeconfig(&directory.join("kubeconfig"), cluster);
    fs::create_dir(directory.join("manifests")).unwrap();
    fs::write(directory.join("manifests/shop.yaml"), SHOP).unwrap();
    // Renamed, so that a reader does not see a part of it.
    let (draft, addresses) = (directory.join("addresses.new"), directory.join("addresses"));
    fs::write(&draft, format!("{metrics_api}\n{prometheus}\n")).unwrap();
    fs::rename(draft, addresses).unwrap();
    std::future::pending::<()>().await;
}
