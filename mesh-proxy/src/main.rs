//! The proxy's process: initialises logging, reads the configuration and runs the proxy.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use mesh_proxy::Config;
use mesh_runtime::build_info::BuildInfo;
use mesh_runtime::log::{self, FilterHandle, Settings, chain};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// EX_USAGE of sysexits(3). Linkerd's proxy exits with it if its environment is invalid.
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
            // Logging is not initialised.
            let _ = writeln!(std::io::stderr(), "mesh-proxy: {}", chain(&*error));
            return ExitCode::from(EX_USAGE);
        }
    };
    disable_dumps();
    raise_descriptors();
    let config = match Config::from_env(|name| std::env::var(name).ok()) {
        Ok(config) => config,
        Err(errors) => {
            for error in &errors.0 {
                tracing::error!("{error}");
            }
            tracing::error!(
                "Invalid configuration: {} invalid environment variables",
                errors.0.len()
            );
            return ExitCode::from(EX_USAGE);
        }
    };
    match mesh_proxy::run(config, log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Disables transparent huge pages. A sidecar's heap is small and scattered: with pages of 2 MiB it
/// takes 10 MB before the first connection, with pages of 4 KiB less than 1 MB. The allocator is
/// built not to request huge pages, but some nodes enable them for all processes (`always` in
/// `/sys/kernel/mm/transparent_hugepage/enabled`).
fn use_small_pages() {
    // Fails only on kernels without huge pages.
    let _error = nix::sys::prctl::set_thp_disable(true);
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

/// Protects the private key in memory: processes of the same user, such as processes of a container
/// that shares the pod's process namespace, cannot read it with ptrace or `/proc/PID/mem`, and it
/// is not part of core dumps. Root can still read it.
fn disable_dumps() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "Cannot make the process non-dumpable; processes of the same user can read its private key");
    }
}

/// Enough for 49,152 connections per direction. More connections need more memory, so operators
/// have to set a higher limit, which is kept.
const DESCRIPTORS: usize = 65_536;

fn raise_descriptors() {
    if let Err(error) = mesh_runtime::descriptors::raise(DESCRIPTORS) {
        tracing::warn!(%error, "Cannot raise the limit of open files, which limits the number of connections");
    }
}

fn print_version() -> ExitCode {
    match writeln!(std::io::stdout(), "mesh-proxy {}", BuildInfo::CURRENT) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_closed) => ExitCode::FAILURE,
    }
}
