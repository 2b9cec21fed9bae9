//! Serves a scripted metrics API and API server, whose numbers move, for the tests of the dashboard
//! in a browser: `scripted_mesh KUBECONFIG ADDRESS` writes a kubeconfig to the first file and then
//! the address of the metrics API to the second.

#![expect(
    clippy::unwrap_used,
    dead_code,
    reason = "a helper of tests, which uses a part of what it shares with them"
)]

#[path = "../tests/it/web/scripted.rs"]
mod scripted;

use std::fs;
use std::path::Path;

use scripted::cluster::{Cluster, write_kubeconfig};
use scripted::{Mesh, Pace};

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let (kubeconfig, address) = (args.next().unwrap(), args.next().unwrap());
    let metrics_api = Mesh::new(Pace::Moving).serve().await;
    let cluster = Cluster::new(Pace::Moving).serve().await;
    write_kubeconfig(Path::new(&kubeconfig), cluster);
    // Renamed, so that a reader does not see a part of it.
    fs::write(format!("{address}.new"), metrics_api.to_string()).unwrap();
    fs::rename(format!("{address}.new"), &address).unwrap();
    std::future::pending::<()>().await;
}
