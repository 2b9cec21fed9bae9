//! The CNI plugin: a chained, synchronous program that a container runtime starts for every pod.
//!
//! It redirects the pods that the injector gave a proxy and passes all others through untouched. It
//! asks the agent to do it; when the agent does not answer, it does the same itself with what the
//! agent left pinned. A pod that asks for the mesh and cannot be redirected is refused: it must not
//! run in the clear. A pod that does not ask for it costs no I/O at all.
//!
//! What it cannot see: the guest kernel of a sandboxed runtime (gVisor, Kata), whose pods are
//! enrolled and not redirected because the connections never reach the node's kernel; and the pod's
//! containers, so that a pod which an injector gave an init container with iptables rules is
//! redirected twice. Both are for the operator to exclude (docs/operations/agent.md).

mod command;
mod config;
mod environment;
mod error;
mod plugin;
mod version;

use std::io::{self, Read, Write};

pub use config::Config;
pub use environment::Environment;
pub use error::{CniError, Code};
pub use version::Version;

/// Runs one command: environment and standard input in, standard output and exit code out.
///
/// The caller gives the environment, so that this is the whole plugin, testable without a process.
pub fn run(
    environment: &dyn Fn(&str) -> Option<String>,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> io::Result<bool> {
    let mut text = Vec::new();
    input.read_to_end(&mut text)?;
    let (answer, is_success) = match command::execute(environment, &text) {
        Ok(answer) => (answer, true),
        Err((version, error)) => (Some(error.to_json(version)), false),
    };
    if let Some(answer) = answer {
        serde_json::to_writer(&mut *output, &answer)?;
        output.write_all(b"\n")?;
    }
    output.flush()?;
    Ok(is_success)
}

#[cfg(test)]
mod tests;
