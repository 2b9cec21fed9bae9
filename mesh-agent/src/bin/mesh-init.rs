//! `mesh-init`, the helpers of a pod that the node agent does not look after: see
//! `mesh_agent::init`. The proxy's image has it under the three names that Linkerd's image has, and
//! the injector and the chart call it by them.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    mesh_agent::init::run(env::args_os().collect())
}
