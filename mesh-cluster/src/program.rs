//! The frame of `main`: the log, the runtime, and the exit code.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use mesh_runtime::build_info::BuildInfo;
use mesh_runtime::log::{self, InitError, Settings, chain};

use crate::flags::Log;

/// Why a program did not start. Only standard error has it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Log(#[from] InitError),
    #[error("cannot start the threads of the program")]
    Runtime(#[source] io::Error),
}

/// Initializes the log, and runs a daemon to its end.
///
/// # Errors
///
/// The filter of the log is invalid, or the machine has no more threads.
pub fn run<E: Error>(
    flags: &Log,
    daemon: impl Future<Output = Result<(), E>>,
) -> Result<ExitCode, StartError> {
    log::init(Settings {
        filter: &filter(&flags.log_level),
        format: flags.log_format,
        aliases: &[("linkerd", "mesh")],
    })?;
    tracing::info!(build = %BuildInfo::CURRENT, "Starting");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(StartError::Runtime)?;
    match runtime.block_on(daemon) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            tracing::error!("{}", chain(&error));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Returns the configured filter without the messages of kube, because its callers log failures
/// themselves. A filter that names a target of kube enables it.
fn filter(configured: &str) -> String {
    const KUBE: [&str; 2] = ["kube_client", "kube_runtime"];
    let mut filter = configured.to_owned();
    for target in KUBE.iter().filter(|target| !configured.contains(**target)) {
        filter.push_str(&format!(",{target}=off"));
    }
    filter
}
