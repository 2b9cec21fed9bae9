//! A pair of pods with a pair of our proxies between them, as the node agent and a control plane
//! make it, without a cluster: what `bench` measures and `suites` put to the test.
//!
//! The lab is what everything in it shares: programs, certificates, a cgroup, and which CPUs are
//! used. Removed with this value.

mod agent;
mod cpus;
pub(crate) mod pod;
pub(crate) mod process;
mod programs;
pub(crate) mod proxies;
pub(crate) mod usage;

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use xtask::interrupt::Interrupt;

pub(crate) use self::{
    agent::{Agent, SkippedPorts, Tier},
    cpus::{Cpus, parse_list},
    programs::Programs,
};
use self::{
    pod::{Container, CpuRole, Pod},
    process::{Process, run},
};

/// The identities of the two ends, as a mesh names them.
pub(crate) const CLIENT: &str = "client.bench.serviceaccount.identity.linkerd.cluster.local";
pub(crate) const SERVER: &str = "server.bench.serviceaccount.identity.linkerd.cluster.local";

/// The anchor in the directory of an authority.
pub(crate) const ANCHOR: &str = "anchor.pem";

/// Locked while a lab exists: two would use the same names, and what is measured in one would be
/// disturbed by the other.
const LOCK: &str = "/run/mesh-lab.lock";

pub(crate) struct Testbed {
    pub(crate) cpus: Cpus,
    pub(crate) programs: Programs,
    pub(crate) cgroup: PathBuf,
    interrupt: Interrupt,
    spinners: Vec<Process>,
    /// Held for as long as anything of ours is there.
    _lock: File,
}

/// A value for each of the two proxies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ProxyPair<T> {
    pub(crate) outbound: T,
    pub(crate) inbound: T,
}

pub(crate) type ProxyProcesses = ProxyPair<Process>;

/// The files of one end's certificate.
pub(crate) struct Certificate {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
    /// Both, as HAProxy wants them.
    pub(crate) combined: PathBuf,
    pub(crate) anchor: PathBuf,
}

impl Testbed {
    pub(crate) fn new(
        programs: Programs,
        cpus: Cpus,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let lock = File::create(LOCK).with_context(|| format!("create {LOCK}"))?;
        if lock.try_lock().is_err() {
            bail!("another benchmark or run of the suites is going on on this machine");
        }
        pod::clear().context("clear what an earlier run left")?;
        let testbed = Self {
            cpus,
            programs,
            cgroup: pod::root_cgroup()?,
            interrupt,
            spinners: Vec::new(),
            _lock: lock,
        };
        fs::create_dir(&testbed.cgroup).context("make a cgroup")?;
        testbed.generate_authority(&testbed.authority())?;
        for name in ["client", "server"] {
            let certificate = testbed.certificate(name);
            let chain = fs::read_to_string(&certificate.chain)?;
            let key = fs::read_to_string(&certificate.key)?;
            fs::write(&certificate.combined, chain + &key)?;
        }
        Ok(testbed)
    }

    /// An error once the user wanted to stop.
    pub(crate) fn check_interrupt(&self) -> anyhow::Result<()> {
        if self.interrupt.wanted() {
            bail!("interrupted; what was made for it was removed");
        }
        Ok(())
    }

    /// Fills a directory with an anchor, an issuer and certificates of its.
    pub(crate) fn generate_authority(&self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        run(Command::new(&self.programs.bench)
            .args(["authority", "--directory"])
            .arg(directory)
            .args(["--leaf", &format!("client={CLIENT}")])
            .args(["--leaf", &format!("server={SERVER}")]))
    }

    /// The directory of anchor, issuer and certificates.
    pub(crate) fn authority(&self) -> PathBuf {
        Path::new(pod::DIRECTORY).join("authority")
    }

    /// The certificate of the client's or the server's proxy, where a proxy takes files.
    pub(crate) fn certificate(&self, name: &str) -> Certificate {
        let directory = self.authority();
        Certificate {
            chain: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}-key.pem")),
            combined: directory.join(format!("{name}-both.pem")),
            anchor: directory.join(ANCHOR),
        }
    }

    /// A CPU that falls asleep between two packets takes longer to wake up than a proxy to forward
    /// them. Work that runs only when nothing else wants to keeps it from that, and counts as our
    /// own.
    pub(crate) fn keep_awake(&mut self) -> anyhow::Result<()> {
        let cgroup = self.cgroup.join("awake");
        fs::create_dir(&cgroup)?;
        for cpu in [self.cpus.load, self.cpus.proxies] {
            let mut spinner = pod::within(&cgroup);
            spinner
                .args(["taskset", "-c", &cpu.to_string(), "chrt", "-i", "0"])
                .args(["sh", "-c", "while :; do :; done"]);
            let spinner = Process::start(&format!("awake-{cpu}"), &mut spinner)?;
            self.spinners.push(spinner);
        }
        Ok(())
    }

    /// Waits until something answers in a pod: 200 to a path, or without one, a connection.
    pub(crate) fn wait_ready(
        &self,
        pod: &Pod,
        at: SocketAddr,
        path: Option<&str>,
    ) -> anyhow::Result<()> {
        let container = Container {
            name: "wait",
            cpu_role: CpuRole::Load,
            user: None,
        };
        let mut command = pod.command(container, &self.programs.bench)?;
        command.args(["load", "ready", "--at", &at.to_string()]);
        if let Some(path) = path {
            command.args(["--path", path]);
        }
        let name = format!("{}-wait", pod.name);
        Process::start(&name, &mut command)?.output().map(drop)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.spinners.clear();
        if let Err(error) = pod::clear() {
            eprintln!("    what was made for it could not be removed: {error:#}");
        }
    }
}
