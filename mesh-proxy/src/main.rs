//! The proxy's process: logs, configuration, run. Everything else is the library's.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use mesh_proxy::app::App;
use mesh_proxy::config::Config;
use mesh_runtime::build_info::BuildInfo;
use mesh_runtime::log::{self, FilterHandle, Settings, chain};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// EX_USAGE of sysexits(3): what Linkerd's proxy exits with when its environment is wrong.
const EX_USAGE: u8 = 64;

/// Linkerd's injector writes filters for Linkerd's targets.
const LOG_ALIASES: &[(&str, &str)] = &[("linkerd", "mesh"), ("linkerd2_proxy", "mesh")];
const DEFAULT_LOG: &str = "warn,mesh=info";

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("--version") {
        return print_version();
    }
    use_small_pages();
    let log = match start_log() {
        Ok(log) => log,
        Err(error) => {
            // There is no log yet to say it in.
            let _ = writeln!(std::io::stderr(), "mesh-proxy: {}", chain(&*error));
            return ExitCode::from(EX_USAGE);
        }
    };
    close_memory();
    raise_descriptors();
    let config = match Config::from_env(|name| std::env::var(name).ok()) {
        Ok(config) => config,
        Err(errors) => {
            for error in &errors.0 {
                tracing::error!("{error}");
            }
            tracing::error!(
                "Invalid configuration: {} variables are wrong",
                errors.0.len()
            );
            return ExitCode::from(EX_USAGE);
        }
    };
    match App::bind(config, log).and_then(App::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// A sidecar's heap is small and scattered: in pages of 2 MiB it takes 10 MB before the first
/// connection, in pages of 4 KiB less than 1 MB. The allocator is built not to ask for large pages;
/// this is for nodes that give them to everybody (`always` in
/// `/sys/kernel/mm/transparent_hugepage/enabled`).
fn use_small_pages() {
    // Kernels without large pages refuse, and need nothing of it.
    let _refused = nix::sys::prctl::set_thp_disable(true);
}

fn start_log() -> Result<FilterHandle, Box<dyn Error>> {
    let variable = |name| std::env::var(name).ok();
    let filter = variable("LINKERD2_PROXY_LOG");
    let format = variable("LINKERD2_PROXY_LOG_FORMAT");
    Ok(log::init(Settings {
        filter: filter.as_deref().unwrap_or(DEFAULT_LOG),
        format: format.as_deref().unwrap_or("plain").parse()?,
        aliases: LOG_ALIASES,
    })?)
}

/// The keys of the pod's identity will lie in this memory. Others of the same user, such as a
/// container that shares the pod's processes, must not read it with ptrace or `/proc/PID/mem`, and
/// no core dump shall take it to a disk. Root still may.
fn close_memory() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "Cannot keep the process's memory from being dumped; whoever runs as the same user can read its keys");
    }
}

/// Enough for 49,152 connections on each side. What more would cost in memory should be somebody's
/// decision: whoever sets a higher limit gets it.
const DESCRIPTORS: usize = 65_536;

fn raise_descriptors() {
    if let Err(error) = mesh_runtime::descriptors::raise(DESCRIPTORS) {
        tracing::warn!(%error, "Cannot raise the limit of open files; it bounds the connections that are accepted");
    }
}

fn print_version() -> ExitCode {
    match writeln!(std::io::stdout(), "mesh-proxy {}", BuildInfo::CURRENT) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_closed) => ExitCode::FAILURE,
    }
}
