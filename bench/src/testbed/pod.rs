//! Network namespaces and cgroups in the manner of pods, and the commands that put programs into
//! them.
//!
//! Names are fixed: there is one lab on a machine at a time. Everything started is in one cgroup,
//! so that [`clear`] finds what an earlier run left, however it ended.

use std::{
    ffi::OsStr,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use xtask::command::ask;

use super::{
    cpus::Cpus,
    process::{run, wait_until},
};

/// The beginning of every name of ours: of namespaces, cgroups, pins, directories.
pub(crate) const NAME: &str = "mesh-lab";
/// Logs, configurations, sockets. A reboot clears it.
pub(crate) const DIRECTORY: &str = "/run/mesh-lab";
/// Where the agents pin their programs, each in a directory with our name.
pub(crate) const PINS: &str = "/sys/fs/bpf";
/// Twenty thousand connections and their other ends with room to spare, or where that is more than
/// this process may ask for, as much as it may.
const RAISE: &str = "{ ulimit -n 100000 2>/dev/null || ulimit -Sn $(ulimit -Hn); }";
/// The last that a shell does before it is the program.
pub(crate) const ENTER: &str = "exec \"$0\" \"$@\"";
/// Whatever the machine's is: BBR, which some have, sends by timers, and their work is charged to
/// whoever runs at the moment. Reno is allowed in every namespace, and does what the usual CUBIC
/// does where nothing is lost.
pub(crate) const CONGESTION_CONTROL: &str = "reno";

/// The pair of networks that one system under test lives in.
#[derive(Debug)]
pub(crate) struct Pods {
    pub(crate) client: Pod,
    pub(crate) server: Pod,
}

/// A network namespace with an address, and a cgroup for its containers.
#[derive(Debug)]
pub(crate) struct Pod {
    /// Of the namespace, and the pod's UID.
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) cgroup: PathBuf,
    cpus: Cpus,
}

/// On whose CPU a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CpuRole {
    Load,
    Proxy,
}

/// How a program is started in a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Container<'a> {
    pub(crate) name: &'a str,
    pub(crate) cpu_role: CpuRole,
    pub(crate) user: Option<u32>,
}

/// The cgroup of everything that runs.
pub(crate) fn root_cgroup() -> anyhow::Result<PathBuf> {
    Ok(cgroup2()?.join(NAME))
}

/// Where the unified cgroup hierarchy is: beside the version 1 controllers or in their place.
fn cgroup2() -> anyhow::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").context("read /proc/mounts")?;
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|words| words.get(2) == Some(&"cgroup2"))
        .and_then(|words| words.get(1).map(PathBuf::from))
        .context("no cgroup2 file system is mounted; what runs in pods needs a cgroup")
}

/// Ends and removes what a run left, this one or an earlier one.
pub(crate) fn clear() -> anyhow::Result<()> {
    let cgroup = root_cgroup()?;
    if cgroup.exists() {
        fs::write(cgroup.join("cgroup.kill"), "1").context("end what runs in the cgroup")?;
        wait_until("the processes of the lab end", || {
            Ok(remove_cgroups(&cgroup).ok())
        })?;
    }
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    for name in names.filter(|name| name.starts_with(NAME)) {
        run(Command::new("ip").args(["netns", "del", &name]))?;
    }
    // Programs that nothing names any more are detached by the kernel.
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

/// The kernel refuses while a process is still ending.
fn remove_cgroups(directory: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_cgroups(&entry.path())?;
        }
    }
    fs::remove_dir(directory)
}

impl Pods {
    /// Two pods and a wire between them; `number` keeps the networks of several pairs apart.
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
        // The endpoints of services that have more than one are all the server.
        server.ip(&["route", "add", "local", "10.128.0.0/9", "dev", "lo"])?;
        Ok(Self { client, server })
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Whatever still runs in it ends with it, as on a node.
        let killed = fs::write(self.cgroup.join("cgroup.kill"), "1");
        let removed = killed.map_err(anyhow::Error::from).and_then(|()| {
            run(Command::new("ip").args(["netns", "del", &self.name]))?;
            wait_until("the processes of the pod end", || {
                Ok(remove_cgroups(&self.cgroup).ok())
            })
        });
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
            // Tens of thousands of connections between two addresses must not run out of ports, nor
            // wait for old ones.
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

    /// A command that becomes `program` inside the pod.
    pub(crate) fn command(
        &self,
        container: Container<'_>,
        program: impl AsRef<OsStr>,
    ) -> anyhow::Result<Command> {
        let cgroup = self.cgroup.join(container.name);
        fs::create_dir_all(&cgroup).with_context(|| format!("create {}", cgroup.display()))?;
        let cpu = match container.cpu_role {
            CpuRole::Load => self.cpus.load,
            CpuRole::Proxy => self.cpus.proxies,
        };
        let mut command = within(&cgroup);
        // Not `ip netns exec`, which mounts another /sys over ours.
        command
            .arg("nsenter")
            .arg(format!("--net=/run/netns/{}", self.name))
            .args(["taskset", "-c", &cpu.to_string()])
            // As many descriptors as there may be: ten thousand connections have twenty thousand
            // ends in a proxy.
            .args(["sh", "-c", &format!("{RAISE} && {ENTER}")]);
        if let Some(user) = container.user {
            let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
            command.args(["setpriv", &user, &group, "--clear-groups"]);
        }
        command.arg(program);
        Ok(command)
    }
}

/// How many files a program in a pod may have open.
pub(crate) fn descriptors() -> anyhow::Result<u32> {
    let mut shell = Command::new("sh");
    let output = ask(shell.args(["-c", &format!("{RAISE} && ulimit -Sn")]));
    let limit = output.context("the shell does not say how many files may be open")?;
    limit
        .trim()
        .parse()
        .with_context(|| format!("open files: {limit:?}"))
}

/// A command whose arguments are a program that is to run in a cgroup.
pub(crate) fn within(cgroup: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(cgroup.join("cgroup.procs"));
    command
}
