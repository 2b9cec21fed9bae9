//! A pair of mesh-proxy processes as the injector configures them: own user, own cgroup, Linkerd's
//! environment, and the redirection check.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use mesh_core::exposition;
use xtask::command::captured_stdout;

use super::pod::{Container, CpuRole, Pod, Pods};
use super::process::Process;
use super::{CLIENT, DIRECTORY, ProxyPair, ProxyProcesses, SERVER, Testbed};

/// The container and the user of a proxy. The agent accepts listeners on the proxy's ports only of
/// this user, and does not redirect the connections of this container.
pub(crate) const PROXY_CONTAINER: &str = "linkerd-proxy";
pub(crate) const PROXY_USER: u32 = 2102;

const PROXY: Container<'_> = Container {
    name: PROXY_CONTAINER,
    cpu_role: CpuRole::Proxy,
    user: Some(PROXY_USER),
};
const CONTROL: Container<'_> = Container::root("control", CpuRole::Load);

const CONTROL_PORT: u16 = 8090;
/// Address of the proxy's admin server.
pub(crate) const ADMIN: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 4191);
const READY: &str = "/ready";

/// Settings of ports. All other ports use protocol detection and the mesh's TLS.
#[derive(Debug, Default)]
pub(crate) struct PortSettings {
    /// Opaque, with the mesh's TLS.
    pub(crate) opaque: Vec<u16>,
    /// Opaque, without the mesh's TLS.
    pub(crate) plain: Vec<u16>,
    /// Protocol detection, without the mesh's TLS.
    pub(crate) clear: Vec<u16>,
}

/// Rotation of certificates and trust anchors.
#[derive(Debug)]
pub(crate) struct Rotation {
    /// Lifetime of the proxies' certificates.
    pub(crate) lifetime: Duration,
    /// File with the bundle of anchors, which the proxies reload.
    pub(crate) anchors: PathBuf,
}

/// The settings that differ between the pairs of a benchmark.
#[derive(Debug, Default)]
pub(crate) struct ProxySettings<'s> {
    pub(crate) rotation: Option<&'s Rotation>,
    /// Environment variables besides the ones that every proxy has.
    pub(crate) environment: Vec<(&'s str, &'s str)>,
    /// A named pipe for the standard error of the server's proxy, instead of its log file.
    pub(crate) log_pipe: Option<PathBuf>,
}

/// The control planes of the two proxies.
pub(crate) struct ControlPlanes {
    pub(crate) client: Process,
    pub(crate) server: Process,
}

/// Starts the pair with its control planes and waits until it is ready.
pub(crate) fn start(
    testbed: &Testbed,
    pods: &Pods,
    ports: &PortSettings,
    settings: &ProxySettings<'_>,
) -> anyhow::Result<(ControlPlanes, ProxyProcesses)> {
    let control = ControlPlanes {
        client: control(testbed, pods, &pods.client, ports, settings.rotation)?,
        server: control(testbed, pods, &pods.server, ports, settings.rotation)?,
    };
    let proxies = start_pair(testbed, pods, settings)?;
    Ok((control, proxies))
}

/// Starts the pair, whose control planes run, and waits until it is ready.
pub(crate) fn start_pair(
    testbed: &Testbed,
    pods: &Pods,
    settings: &ProxySettings<'_>,
) -> anyhow::Result<ProxyProcesses> {
    let inbound = command(testbed, &pods.server, settings.log_pipe.as_deref())?;
    let outbound = command(testbed, &pods.client, None)?;
    let start = |mut command: Command, pod: &Pod, identity: &str| -> anyhow::Result<Process> {
        configure(testbed, pod, identity, &mut command)?;
        if let Some(rotation) = settings.rotation {
            command.env("MESH_PROXY_TRUST_ANCHORS_FILE", &rotation.anchors);
            // The default minimum would extend short lifetimes.
            command.env("LINKERD2_PROXY_IDENTITY_MIN_REFRESH", "1s");
        }
        command.envs(settings.environment.iter().copied());
        Process::start(&format!("{}-proxy", pod.name), &mut command)
    };
    let proxies = ProxyPair {
        inbound: start(inbound, &pods.server, SERVER)?,
        outbound: start(outbound, &pods.client, CLIENT)?,
    };
    for (pod, process) in [
        (&pods.server, &proxies.inbound),
        (&pods.client, &proxies.outbound),
    ] {
        testbed
            .wait_ready(pod, ADMIN.into(), Some(READY))
            .with_context(|| process.command_and_log())?;
    }
    Ok(proxies)
}

/// Returns the command of a pod's proxy. Its standard error goes to a named pipe if there is one.
fn command(testbed: &Testbed, pod: &Pod, log_pipe: Option<&Path>) -> anyhow::Result<Command> {
    let Some(pipe) = log_pipe else {
        return pod.command(PROXY, &testbed.programs.proxy);
    };
    let mut command = pod.command(PROXY, "sh")?;
    command
        .args(["-c", "exec \"$1\" 2> \"$0\""])
        .arg(pipe)
        .arg(&testbed.programs.proxy);
    Ok(command)
}

/// Fetches the metrics of a pod's proxy.
pub(crate) fn metrics(pod: &Pod) -> anyhow::Result<String> {
    let mut command = pod.command(Container::root("metrics", CpuRole::Load), "curl")?;
    command.args(["-sS", "--fail"]);
    command.arg(format!("http://{}:{}/metrics", ADMIN.0, ADMIN.1));
    captured_stdout(&mut command).context("fetch the metrics of a proxy")
}

/// Returns the sum of the series of a counter in the metrics of a proxy; `None` if it has none.
pub(crate) fn counter(metrics: &str, name: &str) -> Option<f64> {
    let series = exposition::lines(metrics).filter(|line| line.name() == name);
    series
        .map(|line| line.value)
        .reduce(|sum, value| sum + value)
}

/// Returns a command that starts the client's proxy again and reports the time until it is ready.
pub(crate) fn timed_start(testbed: &Testbed, pod: &Pod) -> anyhow::Result<Command> {
    let mut command = pod.command(PROXY, &testbed.programs.bench)?;
    configure(testbed, pod, CLIENT, &mut command)?;
    let at = format!("{}:{}", ADMIN.0, ADMIN.1);
    command
        .args(["load", "ready", "--at", &at, "--path", READY, "--"])
        .arg(&testbed.programs.proxy);
    Ok(command)
}

/// Starts the control plane of one pod's proxy.
pub(crate) fn control(
    testbed: &Testbed,
    pods: &Pods,
    pod: &Pod,
    ports: &PortSettings,
    rotation: Option<&Rotation>,
) -> anyhow::Result<Process> {
    let mut command = pod.command(CONTROL, &testbed.programs.bench)?;
    command
        .args(["control", "--listen", &format!("127.0.0.1:{CONTROL_PORT}")])
        .arg("--authority")
        .arg(testbed.authority())
        .args(["--server", &pods.server.ip.to_string()])
        .args(["--server-identity", SERVER, "--client-identity", CLIENT]);
    if let Some(rotation) = rotation {
        command.args(["--lifetime", &rotation.lifetime.as_secs().to_string()]);
    }
    for (flag, ports) in [
        ("--opaque", &ports.opaque),
        ("--plain", &ports.plain),
        ("--clear", &ports.clear),
    ] {
        let ports = ports.iter().map(|port| format!("{flag}={port}"));
        command.args(ports);
    }
    let process = Process::start(&format!("{}-control", pod.name), &mut command)?;
    process.next_event()?;
    Ok(process)
}

/// Sets the environment of the injector as far as it affects measurements.
fn configure(
    testbed: &Testbed,
    pod: &Pod,
    identity: &str,
    command: &mut Command,
) -> anyhow::Result<()> {
    let token = Path::new(DIRECTORY).join("token");
    fs::write(&token, "of the testbed")?;
    let anchors = fs::read_to_string(testbed.certificate("client").anchor)?;
    // The final dot prevents the use of the machine's search list.
    let control = format!("localhost.:{CONTROL_PORT}");
    let all = "10.0.0.0/8".to_owned();
    command.env_clear();
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("MESH_PROXY_REDIRECT_CHECK", "192.0.2.1:20001");
    for (name, value) in [
        ("LOG", "warn,linkerd=info".to_owned()),
        ("DESTINATION_SVC_ADDR", control.clone()),
        ("POLICY_SVC_ADDR", control.clone()),
        ("IDENTITY_SVC_ADDR", control),
        (
            "DESTINATION_CONTEXT",
            format!("{{\"ns\":\"bench\",\"pod\":\"{}\"}}", pod.name),
        ),
        (
            "POLICY_WORKLOAD",
            format!("{{\"ns\":\"bench\",\"pod\":\"{}\"}}", pod.name),
        ),
        ("DESTINATION_PROFILE_NETWORKS", all.clone()),
        ("POLICY_CLUSTER_NETWORKS", all),
        ("IDENTITY_TRUST_ANCHORS", anchors),
        ("IDENTITY_LOCAL_NAME", identity.to_owned()),
        ("IDENTITY_TOKEN_FILE", token.display().to_string()),
        ("INBOUND_DEFAULT_POLICY", "all-unauthenticated".to_owned()),
        (
            "OUTBOUND_LISTEN_ADDRS",
            "127.0.0.1:4140,[::1]:4140".to_owned(),
        ),
        ("INBOUND_LISTEN_ADDR", "[::]:4143".to_owned()),
        ("ADMIN_LISTEN_ADDR", "[::]:4191".to_owned()),
        ("CORES", pod.cpus.workers.to_string()),
    ] {
        command.env(format!("LINKERD2_PROXY_{name}"), value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_a_counter_are_added() {
        let metrics = "# TYPE a_total counter\na_total{b=\"c d\"} 1\na_total{b=\"e\"} 2\na_total_b 4\nf 8\nz 0\n";
        assert_eq!(counter(metrics, "a_total"), Some(3.0));
        assert_eq!(counter(metrics, "f"), Some(8.0));
        assert_eq!(counter(metrics, "z"), Some(0.0));
        assert_eq!(counter(metrics, "a"), None);
    }
}
