//! `meshctl local dashboard`: the dashboard of the viz extension for a local node.
//!
//! The dashboard is the controller `web`, which runs on loopback as long as this command. It asks
//! the node's metrics API for statistics, the node's policy controller for policies, and this
//! command for objects and taps. It scrapes the proxies for the rest.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use mesh_local::client;
use mesh_local::control_plane::{self, viz};
use mesh_local::settings::{Program, Settings};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::{NodeSelector, find};
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::controllers;
use crate::node::api_server::ApiServer;
use crate::node::{Node, failed};
use crate::output::browser::{self, Show};
use crate::stop::Stop;

const EXAMPLES: &str = "\
Examples:
  meshctl local dashboard
  meshctl local dashboard --show url --port 8084    without opening a browser

The dashboard runs until Ctrl-C. Every user of this machine can open it, and see live requests.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeSelector,
    /// Port on this machine
    #[arg(short, long, value_name = "PORT", default_value_t = browser::PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// What to open
    #[arg(long, value_enum, default_value_t = Show::Dashboard)]
    show: Show,
}

/// What the dashboard asks besides this command.
struct Servers {
    metrics_api: SocketAddr,
    policy: SocketAddr,
    /// The directory of the node's pods.
    objects: PathBuf,
}

/// The dashboard needs none of the rights of root, and ends with this process, however that ends.
const CONFINED: [&str; 6] = [
    "setpriv",
    "--no-new-privs",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--pdeathsig=TERM",
    "--",
];

/// The dashboard starts within a fraction of a second, and within some seconds on a loaded machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How much of the log is searched for its last line. The log grows as long as the dashboard runs;
/// a line of it has some hundred bytes.
const LOG_END: u64 = 64 * 1024;

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<()> {
    let paths = find::node(global, args.node.dir.as_deref())?;
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::Input(format!(
            "only root may open the dashboard of local node {}, because it taps its proxies; run the command as root",
            paths.name()
        ))
        .into());
    }
    client::status(&paths).map_err(failed)?;
    let mut stop = Stop::new()?;
    let node = Node { paths };
    let servers = Servers {
        metrics_api: node.metrics_api()?,
        policy: policy_controller(&node)?,
        objects: node.paths.objects(),
    };
    let settings = Settings::read(&node.paths)?;
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    check_free(addr).await?;
    let api_server = ApiServer::start(node).await?;
    // Only this user can read it.
    let directory = tempfile::tempdir().context("create a temporary directory")?;
    let kubeconfig = directory.path().join("kubeconfig");
    api_server.write_kubeconfig(&kubeconfig)?;
    let log = directory.path().join("log");
    let output = File::create(&log).context("create a log")?;
    let mut dashboard = dashboard(&settings, addr, &servers, &kubeconfig)
        .stdin(Stdio::null())
        .stdout(output.try_clone().context("share the log")?)
        .stderr(output)
        .kill_on_drop(true)
        .spawn()
        .context("start mesh-viz web")?;
    tokio::select! {
        started = wait_until_ready(&mut dashboard, addr, &log) => started?,
        () = stop.requested() => return Ok(()),
    }
    browser::present(args.show, &browser::url(addr))?;
    tokio::select! {
        ended = dashboard.wait() => Err(exited(&ended?.to_string(), &log)),
        () = stop.requested() => {
            dashboard.kill().await.context("end mesh-viz web")
        }
    }
}

/// Returns the address of the policy controller. Its Service has no address of its own.
fn policy_controller(node: &Node) -> anyhow::Result<SocketAddr> {
    let mut pods = node.pods()?;
    pods.retain(|pod| pod.namespace == control_plane::NAMESPACE);
    let address = controllers::ready(pods)?.address()?;
    Ok(SocketAddr::new(address, controllers::POLICY_PORT))
}

/// Returns the command line of the dashboard.
fn dashboard(
    settings: &Settings,
    addr: SocketAddr,
    servers: &Servers,
    kubeconfig: &Path,
) -> Command {
    let mut command = Command::new(CONFINED[0]);
    command
        .args(&CONFINED[1..])
        .arg(settings.program(Program::Viz))
        .arg("web")
        .arg(format!("--addr={addr}"))
        .arg(format!("--metrics-addr={}:0", Ipv4Addr::LOCALHOST))
        .arg(format!(
            "--linkerd-metrics-api-addr={}",
            servers.metrics_api
        ))
        .arg(format!("--policy-addr={}", servers.policy))
        .arg("--scrape-proxies")
        .arg("--source-dir")
        .arg(&servers.objects)
        .arg(format!(
            "--controller-namespace={}",
            control_plane::NAMESPACE
        ))
        .arg(format!("--viz-namespace={}", viz::NAMESPACE))
        .arg("--local-node")
        .arg("--kubeconfig")
        .arg(kubeconfig);
    command
}

/// Checks that nothing listens on the address. The dashboard would fail too, but a client could
/// mistake the other server for it until then.
async fn check_free(addr: SocketAddr) -> Result<(), Failure> {
    match TcpListener::bind(addr).await {
        Ok(_unused) => Ok(()),
        Err(error) => Err(Failure::Input(format!(
            "cannot listen on {addr}: {error}; --port selects another port"
        ))),
    }
}

async fn wait_until_ready(
    dashboard: &mut Child,
    addr: SocketAddr,
    log: &Path,
) -> anyhow::Result<()> {
    let listening = async {
        while TcpStream::connect(addr).await.is_err() {
            sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        started = timeout(START_TIMEOUT, listening) => match started {
            Ok(()) => Ok(()),
            Err(_elapsed) => Err(Failure::TimedOut(format!(
                "the dashboard did not start within {} s",
                START_TIMEOUT.as_secs()
            ))
            .into()),
        },
        ended = dashboard.wait() => Err(exited(&ended?.to_string(), log)),
    }
}

/// Returns an error with the last line of the log, which has the reason.
fn exited(status: &str, log: &Path) -> anyhow::Error {
    let log = end(log, LOG_END).unwrap_or_default();
    let reason = log.lines().last().unwrap_or("its log is empty");
    anyhow::anyhow!("the dashboard ended ({status}): {reason}")
}

/// Returns the last bytes of a file, at most `limit`.
fn end(path: &Path, limit: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let skipped = file.metadata()?.len().saturating_sub(limit);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    // The first character may be a part of one.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_the_last_line_of_the_end_of_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let check = |text: &str, expect: &str| {
            std::fs::write(&log, text).unwrap();
            let error = exited("exit status: 1", &log).to_string();
            assert_eq!(
                error,
                format!("the dashboard ended (exit status: 1): {expect}")
            );
        };
        check("", "its log is empty");
        check("one\ntwo\n", "two");
        check(&format!("{}\nlast\n", "é".repeat(64 * 1024)), "last");
        assert_eq!(end(&log, 5).unwrap(), "last\n");
        assert_eq!(end(&log, 9).unwrap(), "\u{fffd}é\nlast\n");
        std::fs::remove_file(&log).unwrap();
        assert!(
            exited("killed", &log)
                .to_string()
                .ends_with("its log is empty")
        );
    }
}
