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
    agent::{Agent, Skipped, Tier},
    cpus::{Cpus, parse_list},
    programs::Programs,
};
use self::{
    pod::{Container, Pod, Side},
    process::{Process, run},
};

/// The identities of the two ends, as a mesh names them.
pub(crate) const CLIENT: &str = "client.bench.serviceaccount.identity.linkerd.cluster.local";
pub(crate) const SERVER: &str = "server.bench.serviceaccount.identity.linkerd.cluster.local";

/// The anchor in the folder of an authority.
pub(crate) const ANCHOR: &str = "anchor.pem";

/// Locked while a lab exists: two would use the same names, and what is measured in one would be
/// disturbed by the other.
const LOCK: &str = "/run/mesh-lab.lock";

pub(crate) struct Lab {
    pub(crate) cpus: Cpus,
    pub(crate) programs: Programs,
    pub(crate) cgroup: PathBuf,
    interrupt: Interrupt,
    spinners: Vec<Process>,
    /// Held for as long as anything of ours is there.
    _alone: File,
}

/// A value for each of the two proxies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Both<T> {
    pub(crate) out: T,
    pub(crate) inward: T,
}

pub(crate) type Pair = Both<Process>;

/// The files of one end's certificate.
pub(crate) struct Certificate {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
    /// Both, as HAProxy wants them.
    pub(crate) both: PathBuf,
    pub(crate) anchor: PathBuf,
}

impl Lab {
    pub(crate) fn new(
        programs: Programs,
        cpus: Cpus,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let alone = File::create(LOCK).with_context(|| format!("create {LOCK}"))?;
        if alone.try_lock().is_err() {
            bail!("another benchmark or run of the suites is going on on this machine");
        }
        pod::clear().context("clear what an earlier run left")?;
        let lab = Self {
            cpus,
            programs,
            cgroup: pod::root_cgroup()?,
            interrupt,
            spinners: Vec::new(),
            _alone: alone,
        };
        fs::create_dir(&lab.cgroup).context("make a cgroup")?;
        lab.make_authority(&lab.authority())?;
        for name in ["client", "server"] {
            let certificate = lab.certificate(name);
            let chain = fs::read_to_string(&certificate.chain)?;
            let key = fs::read_to_string(&certificate.key)?;
            fs::write(&certificate.both, chain + &key)?;
        }
        Ok(lab)
    }

    /// An error once the user wanted to stop.
    pub(crate) fn check_interrupt(&self) -> anyhow::Result<()> {
        if self.interrupt.wanted() {
            bail!("interrupted; what was made for it was removed");
        }
        Ok(())
    }

    /// Fills a folder with an anchor, an issuer and certificates of its.
    pub(crate) fn make_authority(&self, folder: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        run(Command::new(&self.programs.bench)
            .args(["authority", "--folder"])
            .arg(folder)
            .args(["--leaf", &format!("client={CLIENT}")])
            .args(["--leaf", &format!("server={SERVER}")]))
    }

    /// The folder of anchor, issuer and certificates.
    pub(crate) fn authority(&self) -> PathBuf {
        Path::new(pod::FOLDER).join("authority")
    }

    /// The certificate of the client's or the server's proxy, where a proxy takes files.
    pub(crate) fn certificate(&self, name: &str) -> Certificate {
        let folder = self.authority();
        Certificate {
            chain: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}-key.pem")),
            both: folder.join(format!("{name}-both.pem")),
            anchor: folder.join(ANCHOR),
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
            side: Side::Load,
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

impl Drop for Lab {
    fn drop(&mut self) {
        self.spinners.clear();
        if let Err(error) = pod::clear() {
            eprintln!("    what was made for it could not be removed: {error:#}");
        }
    }
}
