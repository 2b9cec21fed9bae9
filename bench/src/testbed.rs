//! Pairs of pods with proxies between them, set up by the node agent and a control plane without a
//! cluster. `benchmark` and `suites` run on it.
//!
//! A testbed holds the resources that its pods share: programs, certificates, a cgroup and the
//! CPUs. It is removed on drop.

mod agent;
mod cpus;
pub(crate) mod pod;
pub(crate) mod process;
mod programs;
pub(crate) mod proxies;
pub(crate) mod usage;

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use xtask::interrupt::Interrupt;

use self::pod::{Container, CpuRole, Pod};
use self::process::{Process, run};

pub(crate) use self::{
    agent::{Agent, SkippedPorts, Tier},
    cpus::{Cpus, parse_list},
    programs::{Programs, build_optimised},
};

/// The identities of the two proxies.
pub(crate) const CLIENT: &str = "client.bench.serviceaccount.identity.linkerd.cluster.local";
pub(crate) const SERVER: &str = "server.bench.serviceaccount.identity.linkerd.cluster.local";
/// The identity of the tap service.
pub(crate) const TAP: &str = "tap.linkerd-viz.serviceaccount.identity.linkerd.cluster.local";

/// The trust anchor's file in the directory of an authority.
pub(crate) const ANCHOR: &str = "anchor.pem";

/// Logs, configurations, sockets. On a tmpfs.
pub(crate) const DIRECTORY: &str = "/run/mesh-lab";

/// Locked while a testbed exists: two testbeds would use the same names and disturb each other's
/// measurements.
const LOCK: &str = "/run/mesh-lab.lock";

pub(crate) struct Testbed {
    pub(crate) cpus: Cpus,
    pub(crate) programs: Programs,
    pub(crate) cgroup: PathBuf,
    interrupt: Interrupt,
    spinners: Vec<Process>,
    /// Keeps the lock until the testbed is removed.
    _lock: File,
}

/// A value for each of the two proxies: the client's and the server's.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ProxyPair<T> {
    pub(crate) outbound: T,
    pub(crate) inbound: T,
}

pub(crate) type ProxyProcesses = ProxyPair<Process>;

impl<T> ProxyPair<T> {
    pub(crate) fn new(outbound: T, inbound: T) -> Self {
        Self { outbound, inbound }
    }

    pub(crate) fn map<U>(self, value: impl Fn(T) -> U) -> ProxyPair<U> {
        ProxyPair::new(value(self.outbound), value(self.inbound))
    }

    pub(crate) fn try_map<U, E>(
        self,
        value: impl Fn(T) -> Result<U, E>,
    ) -> Result<ProxyPair<U>, E> {
        Ok(ProxyPair::new(value(self.outbound)?, value(self.inbound)?))
    }

    /// Returns the values of both pairs for each proxy.
    pub(crate) fn zip<U>(self, other: ProxyPair<U>) -> ProxyPair<(T, U)> {
        let inbound = (self.inbound, other.inbound);
        ProxyPair::new((self.outbound, other.outbound), inbound)
    }
}

impl ProxyProcesses {
    /// Returns the process IDs.
    pub(crate) fn ids(&self) -> ProxyPair<u32> {
        ProxyPair::new(self.outbound.id(), self.inbound.id())
    }

    /// Fails if a proxy has exited; `name` is its name in the error.
    pub(crate) fn check(&mut self, name: &str) -> anyhow::Result<()> {
        for proxy in [&mut self.outbound, &mut self.inbound] {
            if let Some(status) = proxy.exit_status()? {
                bail!("{name} exited: {status}\n{}", proxy.command_and_log());
            }
        }
        Ok(())
    }
}

/// The certificate files of one proxy.
pub(crate) struct Certificate {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
    /// Chain and key in one file, for HAProxy.
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
            bail!("another benchmark or test suite is running on this machine");
        }
        pod::clear().context("remove the remains of an earlier run")?;
        let testbed = Self {
            cpus,
            programs,
            cgroup: pod::root_cgroup()?,
            interrupt,
            spinners: Vec::new(),
            _lock: lock,
        };
        fs::create_dir(&testbed.cgroup).context("create the cgroup")?;
        testbed.generate_authority(&testbed.authority())?;
        for name in ["client", "server"] {
            let certificate = testbed.certificate(name);
            let chain = fs::read_to_string(&certificate.chain)?;
            let key = fs::read_to_string(&certificate.key)?;
            fs::write(&certificate.combined, chain + &key)?;
        }
        Ok(testbed)
    }

    /// Returns an error once the user has interrupted the program.
    pub(crate) fn check_interrupt(&self) -> anyhow::Result<()> {
        if self.interrupt.wanted() {
            bail!("interrupted; the testbed was removed");
        }
        Ok(())
    }

    /// Generates an anchor, an issuer and certificates in a directory.
    pub(crate) fn generate_authority(&self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        run(Command::new(&self.programs.bench)
            .args(["authority", "--directory"])
            .arg(directory)
            .args(["--leaf", &format!("client={CLIENT}")])
            .args(["--leaf", &format!("server={SERVER}")])
            .args(["--leaf", &format!("tap={TAP}")]))
    }

    /// Returns the directory of anchor, issuer and certificates.
    pub(crate) fn authority(&self) -> PathBuf {
        Path::new(DIRECTORY).join("authority")
    }

    /// Returns the certificate files of the client's or the server's proxy, or of the tap service.
    pub(crate) fn certificate(&self, name: &str) -> Certificate {
        let directory = self.authority();
        Certificate {
            chain: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}-key.pem")),
            combined: directory.join(format!("{name}-both.pem")),
            anchor: directory.join(ANCHOR),
        }
    }

    /// Keeps CPUs from idling, since waking up takes longer than forwarding a packet. The loops run
    /// at idle priority and count as the benchmark's own CPU time.
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

    /// Waits until an address in a pod returns 200 for a path, or without a path, accepts a
    /// connection.
    pub(crate) fn wait_ready(
        &self,
        pod: &Pod,
        at: SocketAddr,
        path: Option<&str>,
    ) -> anyhow::Result<()> {
        let container = Container::root("wait", CpuRole::Load);
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
            eprintln!("    the testbed could not be removed: {error:#}");
        }
    }
}
