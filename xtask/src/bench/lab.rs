//! What all systems under test share: CPUs, tools, certificates, and programs that keep the CPUs awake. Removed with this value.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use super::{
    machine::Cpus,
    pod,
    process::{Process, run},
    tools::Tools,
};
use crate::interrupt::Interrupt;

/// The identities of the two ends, as a mesh names them.
pub(crate) const CLIENT: &str = "client.bench.serviceaccount.identity.linkerd.cluster.local";
pub(crate) const SERVER: &str = "server.bench.serviceaccount.identity.linkerd.cluster.local";

/// Locked while a benchmark runs: two would use the same names, and measure each other.
const LOCK: &str = "/run/mesh-bench.lock";

pub(crate) struct Lab {
    pub(crate) cpus: Cpus,
    pub(crate) tools: Tools,
    pub(crate) cgroup: PathBuf,
    interrupt: Interrupt,
    spinners: Vec<Process>,
    /// Held for as long as anything of ours is there.
    _alone: File,
}

/// The files of one end's certificate.
pub(crate) struct Certificate {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
    /// Both, as HAProxy wants them.
    pub(crate) both: PathBuf,
    pub(crate) anchor: PathBuf,
}

impl Lab {
    pub(crate) fn new(tools: Tools, cpus: Cpus, interrupt: Interrupt) -> anyhow::Result<Self> {
        let alone = File::create(LOCK).with_context(|| format!("create {LOCK}"))?;
        if alone.try_lock().is_err() {
            bail!("another benchmark is running on this machine");
        }
        pod::clear().context("clear what an earlier benchmark left")?;
        let mut lab = Self {
            cpus,
            tools,
            cgroup: pod::root_cgroup()?,
            interrupt,
            spinners: Vec::new(),
            _alone: alone,
        };
        fs::create_dir(&lab.cgroup).context("make a cgroup")?;
        fs::create_dir_all(lab.authority()).context("make a folder")?;
        run(Command::new(&lab.tools.bench)
            .args(["authority", "--folder"])
            .arg(lab.authority())
            .args(["--leaf", &format!("client={CLIENT}")])
            .args(["--leaf", &format!("server={SERVER}")]))?;
        for name in ["client", "server"] {
            let certificate = lab.certificate(name);
            let chain = fs::read_to_string(&certificate.chain)?;
            let key = fs::read_to_string(&certificate.key)?;
            fs::write(&certificate.both, chain + &key)?;
        }
        lab.keep_awake()?;
        Ok(lab)
    }

    /// An error once the user wanted to stop.
    pub(crate) fn check_interrupt(&self) -> anyhow::Result<()> {
        if self.interrupt.wanted() {
            bail!("interrupted; what the benchmark made was removed");
        }
        Ok(())
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
            anchor: folder.join("anchor.pem"),
        }
    }

    /// A CPU that falls asleep between two packets takes longer to wake up than a proxy to forward them. Work that runs only when nothing else wants to
    /// keeps it from that, and counts as our own.
    fn keep_awake(&mut self) -> anyhow::Result<()> {
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
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.spinners.clear();
        if let Err(error) = pod::clear() {
            eprintln!("    what the benchmark made could not be removed: {error:#}");
        }
    }
}
