//! The CNI plugin: a chained, synchronous program that a container runtime starts for every pod.
//!
//! It redirects the pods with an injected proxy and passes all others through unchanged. It
//! requests the enrolment from the agent; when the agent does not respond, it enrols the pod itself
//! in the state that the agent left pinned. The plugin refuses a meshed pod that cannot be
//! redirected, because it must not run in clear text. For other pods it performs no I/O.
//!
//! Two limitations are for the operator to exclude (docs/operations/agent.md). In a sandboxed
//! runtime with its own guest kernel (gVisor, Kata) pods are enrolled and not redirected, because
//! their connections never reach the node's kernel. And since the plugin does not see a pod's
//! containers, a pod with an init container that adds iptables rules is redirected twice.

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

/// Runs one command: environment and standard input in, standard output and success out.
///
/// The environment is a parameter so that tests can run the whole plugin without a process.
pub fn run(
    environment: &dyn Fn(&str) -> Option<String>,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> io::Result<bool> {
    let mut text = Vec::new();
    input.read_to_end(&mut text)?;
    let (result, is_success) = match command::execute(environment, &text) {
        Ok(result) => (result, true),
        Err((version, error)) => (Some(error.to_json(version)), false),
    };
    if let Some(result) = result {
        serde_json::to_writer(&mut *output, &result)?;
        output.write_all(b"\n")?;
    }
    output.flush()?;
    Ok(is_success)
}

#[cfg(test)]
mod tests;
