//! Gathers facts about enrolled units and their proxies: systemd's, files, processes, and what the
//! admin servers respond.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_core::exposition::{self, Sample};
use mesh_core::machine::{self, UnitStatus, instance};
use nix::unistd::User;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::clients::connection::Connection;
use crate::clients::{self, http};
use crate::facts::host::{EnvironmentFile, Refusal, Unit, written_file};
use crate::facts::trust::certificate_expiry;
use crate::facts::{Fact, Machine};
use crate::host::process::Process;
use crate::host::token::TokenFile;
use crate::host::{environment, systemd};

/// The admin server is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The limit on an environment file that is read; trust anchors have at most 256 KiB.
const MAX_FILE: u64 = 1 << 20;
/// A metric of proxies: attempts to get a certificate, by result.
const REFRESHES: &str = "control_identity_cert_refreshes_total";

/// Gathers the facts about the units, or about the selected one.
pub(super) async fn units(
    statuses: Vec<UnitStatus>,
    machine: &Machine,
    selected: Option<&str>,
) -> Vec<Unit> {
    let chosen = statuses
        .into_iter()
        .filter(|status| selected.is_none_or(|name| name == status.unit));
    let chosen: Vec<UnitStatus> = chosen.collect();
    let names = chosen
        .iter()
        .flat_map(|status| [status.unit.clone(), proxy_unit(status)]);
    let names: Vec<String> = names.collect();
    let shown = systemd::show(&names).await;
    let facts = chosen.into_iter().enumerate().map(|(at, status)| {
        let shown = |at: usize| match &shown {
            Ok(units) => Ok(units[at].clone()),
            Err(reason) => Err(reason.clone()),
        };
        unit(status, shown(2 * at), shown(2 * at + 1), machine)
    });
    clients::concurrently(facts).await
}

/// Returns the unit of a proxy, which its cgroup has the name of.
fn proxy_unit(status: &UnitStatus) -> String {
    let cgroup = status.proxy_cgroup.rsplit('/').next().unwrap_or_default();
    if cgroup.ends_with(".service") {
        cgroup.to_owned()
    } else {
        machine::proxy_unit(&status.unit)
    }
}

async fn unit(
    status: UnitStatus,
    own: Fact<systemd::Unit>,
    proxy: Fact<systemd::Unit>,
    machine: &Machine,
) -> Unit {
    let root = machine.mount_point("cgroup2").map(Path::new);
    let process = root.and_then(|root| Process::of_cgroup(&root.join(&status.proxy_cgroup)));
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, status.ports.admin));
    let (ready, metrics) = tokio::join!(get(admin, "/ready"), get(admin, "/metrics"));
    let mut unit = Unit {
        proxy_unit: proxy_unit(&status),
        proxy_user: proxy_user(process.as_ref(), proxy.as_ref().ok()),
        files: files(&status, proxy.as_ref().ok()),
        token: None,
        ready: ready.map(drop),
        metrics: metrics.map(|body| exposition::parse(&body)),
        refusal: None,
        status,
        systemd: own,
        proxy,
        process,
    };
    unit.token = unit.token_path().map(|path| {
        let file = TokenFile::read(&path);
        file.map_err(|error| format!("cannot read {}: {error}", path.display()))
    });
    if lacks_certificate(&unit.metrics) {
        unit.refusal = Box::pin(refusal(&unit)).await;
    }
    unit
}

/// Returns the user and group of a proxy's process, or the ones that systemd would give it.
fn proxy_user(process: Option<&Process>, proxy: Option<&systemd::Unit>) -> Option<(u32, u32)> {
    if let Some(process) = process {
        return Some((process.uid, process.gid));
    }
    let name = &proxy?.user;
    if let Ok(id) = name.parse() {
        return Some((id, id));
    }
    let user = User::from_name(name).ok().flatten()?;
    Some((user.uid.as_raw(), user.gid.as_raw()))
}

/// Returns the environment files of a proxy's unit, or of this project's unit file.
fn files(status: &UnitStatus, proxy: Option<&systemd::Unit>) -> Vec<EnvironmentFile> {
    let of_unit = proxy.map(|proxy| proxy.environment_files.clone());
    let paths = of_unit
        .filter(|files| !files.is_empty())
        .unwrap_or_else(|| {
            let of_proxy = format!("/etc/mesh/proxy-{}.env", instance(&status.unit));
            vec![
                written_file(status),
                "/etc/mesh/proxy.env".into(),
                of_proxy.into(),
            ]
        });
    let read = |path: PathBuf| EnvironmentFile {
        content: content(&path),
        path,
    };
    paths.into_iter().map(read).collect()
}

fn content(path: &Path) -> Fact<Option<environment::Content>> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if metadata.len() > MAX_FILE => {
            let limit = MAX_FILE >> 10;
            return Err(format!("{} has more than {limit} KiB", path.display()));
        }
        Ok(_) => {}
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    Ok(Some(environment::parse(&text)))
}

async fn get(admin: SocketAddr, path: &str) -> Fact<String> {
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(admin)).await;
    let stream = connecting.map_err(|_elapsed| {
        let seconds = CONNECT_TIMEOUT.as_secs();
        format!("cannot connect to its admin server at {admin} within {seconds} s")
    })?;
    let stream = stream
        .map_err(|error| format!("cannot connect to its admin server at {admin}: {error}"))?;
    super::text(http::get(Connection::new(stream), "its admin server", path).await)
}

/// Whether a proxy has no certificate, as one that does not run, or has failed to get one.
fn lacks_certificate(metrics: &Fact<Vec<Sample>>) -> bool {
    let Ok(samples) = metrics else { return true };
    let is_failure =
        |it: &Sample| it.name == REFRESHES && it.label("result") == "error" && it.value > 0.0;
    certificate_expiry(samples).is_none() || samples.iter().any(is_failure)
}

/// Asks the identity service as the proxy does, with the proxy's token and another key, and returns
/// why it issues no certificate.
async fn refusal(unit: &Unit) -> Option<Refusal> {
    let name = unit.identity()?;
    let mut services = unit.services().into_iter();
    let service = services.find(|it| it.service == "identity")?;
    let token = fs::read_to_string(unit.token_path()?).ok()?;
    let certified = service.certify(&name, token.trim().to_owned()).await;
    let error = certified.err()?;
    let mut causes = error.chain();
    let status = causes.find_map(|cause| cause.downcast_ref::<tonic::Status>());
    Some(Refusal {
        is_denied: status.is_some_and(is_denial),
        message: match status {
            Some(status) => status.message().to_owned(),
            None => format!("{error:#}"),
        },
    })
}

fn is_denial(status: &tonic::Status) -> bool {
    use tonic::Code::{FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated};
    let denials = [
        PermissionDenied,
        Unauthenticated,
        InvalidArgument,
        FailedPrecondition,
    ];
    denials.contains(&status.code())
}
