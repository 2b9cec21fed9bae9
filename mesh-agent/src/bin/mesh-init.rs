//! `mesh-init`, the helper programs of a pod on a node without an agent: see `mesh_agent::init`.
//! The proxy's image contains it under the three names that Linkerd's image uses; the injector and
//! the chart start it by those names.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    mesh_agent::init::run(env::args_os().collect())
}
