//! `mesh-cni`, the CNI plugin (see `mesh_agent::cni`), which the runtime starts for every pod.

use std::process::ExitCode;
use std::{env, io};

fn main() -> ExitCode {
    if env::args().any(|argument| argument == "--version") {
        return print_version();
    }
    let variable = |name: &str| env::var(name).ok();
    match mesh_agent::cni::run(&variable, &mut io::stdin().lock(), &mut io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        // When writing to standard output fails, there is no other channel to report it on.
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

fn print_version() -> ExitCode {
    use io::Write;
    let build = mesh_runtime::build_info::BuildInfo::CURRENT;
    match writeln!(io::stdout(), "mesh-cni {build}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
