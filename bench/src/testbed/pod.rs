//! Pods made of network namespaces and cgroups, and the commands that start programs in them.
//!
//! Names are fixed, since a machine has one testbed at a time. Every process is in one cgroup, so
//! that [`clear`] finds the remains of an earlier run.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use mesh_test_support::machine::{cgroup2, remove_cgroup};
use xtask::command::captured_stdout;

use super::DIRECTORY;
use super::cpus::Cpus;
use super::process::{ENTER, run};

/// Prefix of the names of namespaces, cgroups, pins and directories.
pub(crate) const NAME: &str = "mesh-lab";
/// The BPF file system, where each agent pins its programs in a directory with the prefix [`NAME`].
pub(crate) const PINS: &str = "/sys/fs/bpf";
/// Raises the file limit: enough for the two sockets of each of 20,000 connections, or else to the
/// hard limit.
const RAISE: &str = "{ ulimit -n 100000 2>/dev/null || ulimit -Sn $(ulimit -Hn); }";
/// Fixed independently of the machine's default. BBR paces with timers, whose CPU time is accounted
/// to the interrupted task. Reno is allowed in every namespace, and behaves like CUBIC without
/// packet loss.
pub(crate) const CONGESTION_CONTROL: &str = "reno";

/// The two pods of one system under test.
#[derive(Debug)]
pub(crate) struct Pods {
    pub(crate) client: Pod,
    pub(crate) server: Pod,
}

/// A network namespace with an address, and a cgroup for its containers.
#[derive(Debug)]
pub(crate) struct Pod {
    /// Name of the namespace, and the pod's UID.
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) cgroup: PathBuf,
    pub(crate) cpus: Cpus,
}

/// The CPU that a program runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CpuRole {
    Load,
    Proxy,
}

/// Name, CPU and user of a program in a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Container<'a> {
    pub(crate) name: &'a str,
    pub(crate) cpu_role: CpuRole,
    pub(crate) user: Option<u32>,
}

impl<'a> Container<'a> {
    /// A program that runs as root.
    pub(crate) const fn root(name: &'a str, cpu_role: CpuRole) -> Self {
        Self {
            name,
            cpu_role,
            user: None,
        }
    }
}

/// Returns the cgroup that contains every process of the testbed.
pub(crate) fn root_cgroup() -> anyhow::Result<PathBuf> {
    let mount = cgroup2();
    let mount = mount.context("no cgroup2 file system is mounted; pods need a cgroup")?;
    Ok(mount.join(NAME))
}

/// Kills and removes the remains of this or an earlier run.
pub(crate) fn clear() -> anyhow::Result<()> {
    remove_cgroup(&root_cgroup()?)?;
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    for name in names.filter(|name| name.starts_with(NAME)) {
        run(Command::new("ip").args(["netns", "del", &name]))?;
    }
    // The kernel detaches programs when the last pin is removed.
    let pins = fs::read_dir(PINS).into_iter().flatten().flatten();
    let named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(NAME);
    for pins in pins.filter(named) {
        fs::remove_dir_all(pins.path())
            .with_context(|| format!("remove {}", pins.path().display()))?;
    }
    if Path::new(DIRECTORY).exists() {
        fs::remove_dir_all(DIRECTORY).with_context(|| format!("remove {DIRECTORY}"))?;
    }
    Ok(())
}

impl Pods {
    /// Creates two pods connected by a veth pair; `number` selects the network.
    pub(crate) fn new(name: &str, number: u8, cpus: Cpus) -> anyhow::Result<Self> {
        let pod = |role: &str, last: u8| -> anyhow::Result<Pod> {
            let name = format!("{NAME}-{name}-{role}");
            let cgroup = root_cgroup()?.join(format!("pod{name}"));
            fs::create_dir_all(&cgroup).with_context(|| format!("create {}", cgroup.display()))?;
            run(Command::new("ip").args(["netns", "add", &name]))?;
            let ip = Ipv4Addr::new(10, 78, number, last);
            Ok(Pod {
                name,
                ip,
                cgroup,
                cpus,
            })
        };
        let (client, server) = (pod("client", 1)?, pod("server", 2)?);
        run(Command::new("ip")
            .args(["link", "add", "eth0", "netns", &client.name])
            .args([
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                &server.name,
            ]))?;
        client.configure(server.ip)?;
        server.configure(client.ip)?;
        // The server is every endpoint of the services with several endpoints.
        server.ip(&["route", "add", "local", "10.128.0.0/9", "dev", "lo"])?;
        Ok(Self { client, server })
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Kills the remaining processes, as a node does.
        let removed = remove_cgroup(&self.cgroup)
            .map_err(anyhow::Error::from)
            .and_then(|()| run(Command::new("ip").args(["netns", "del", &self.name])));
        if let Err(error) = removed {
            eprintln!("    {} could not be removed: {error:#}", self.name);
        }
    }
}

impl Pod {
    fn configure(&self, other: Ipv4Addr) -> anyhow::Result<()> {
        self.ip(&["address", "add", &format!("{}/24", self.ip), "dev", "eth0"])?;
        self.ip(&["link", "set", "lo", "up"])?;
        self.ip(&["link", "set", "eth0", "up"])?;
        self.ip(&["route", "add", "default", "via", &other.to_string()])?;
        for (name, value) in [
            // Tens of thousands of connections between two addresses need many ports and the reuse
            // of recent ones.
            ("ip_local_port_range", "1024 65535"),
            ("tcp_tw_reuse", "1"),
            ("tcp_congestion_control", CONGESTION_CONTROL),
        ] {
            let write = format!("echo {value} > /proc/sys/net/ipv4/{name}");
            run(Command::new("ip").args(["netns", "exec", &self.name, "sh", "-c", &write]))?;
        }
        Ok(())
    }

    fn ip(&self, arguments: &[&str]) -> anyhow::Result<()> {
        run(Command::new("ip").args(["-n", &self.name]).args(arguments))
    }

    /// Returns a command that executes `program` in the pod.
    pub(crate) fn command(
        &self,
        container: Container<'_>,
        program: impl AsRef<OsStr>,
    ) -> anyhow::Result<Command> {
        let cgroup = self.cgroup.join(container.name);
        fs::create_dir_all(&cgroup).with_context(|| format!("create {}", cgroup.display()))?;
        let Cpus {
            load,
            proxies,
            workers,
        } = self.cpus;
        let cpus = match container.cpu_role {
            CpuRole::Load => load.to_string(),
            CpuRole::Proxy if workers == 1 => proxies.to_string(),
            CpuRole::Proxy => format!("{load},{proxies}"),
        };
        let mut command = within(&cgroup);
        command
            // Ahead of the machine's other programs, which would delay a request of a hundred.
            .args(["nice", "--adjustment=-20"])
            // `ip netns exec` would mount another /sys.
            .arg("nsenter")
            .arg(format!("--net=/run/netns/{}", self.name))
            .args(["taskset", "-c", &cpus])
            // A proxy needs two descriptors for each of ten thousand connections.
            .args(["sh", "-c", &format!("{RAISE} && {ENTER}")]);
        if let Some(user) = container.user {
            let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
            command.args(["setpriv", &user, &group, "--clear-groups"]);
        }
        command.arg(program);
        Ok(command)
    }
}

/// Returns the limit of open files in a pod.
pub(crate) fn descriptors() -> anyhow::Result<u32> {
    let mut shell = Command::new("sh");
    let output = captured_stdout(shell.args(["-c", &format!("{RAISE} && ulimit -Sn")]));
    let limit = output.context("read the limit of open files")?;
    limit
        .trim()
        .parse()
        .with_context(|| format!("parse the limit of open files: {limit:?}"))
}

/// Returns a command that executes its arguments as a program in a cgroup.
pub(crate) fn within(cgroup: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(cgroup.join("cgroup.procs"));
    command
}

/// The same, with the file limit of programs in pods.
pub(crate) fn within_with_files(cgroup: &Path) -> Command {
    let mut command = within(cgroup);
    command.args(["sh", "-c", &format!("{RAISE} && {ENTER}")]);
    command
}
