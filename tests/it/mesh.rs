//! Whole meshes: real programs as pods of a local node, two proxies between them.

mod access;
mod clients;
mod dashboard;
mod external;
mod faults;
mod gateway;
mod ingress;
mod injection;
pub(crate) mod manifests;
mod releases;
mod reused;
mod rolling;
mod simulation;
mod tap;
mod units;
mod viz;
mod why;

use mesh_test_support::program::Program;

use crate::harness::mesh::Mesh;

/// Sends requests from a pod until the program is dropped: one after the other, at most `rate` a
/// second.
pub(crate) fn send_requests(mesh: &Mesh, pod: &str, url: &str, rate: u32) -> Program {
    let load = format!("curl -sS -o /dev/null --rate {rate}/s {url}?[1-1000000]");
    mesh.start(pod, load)
}
