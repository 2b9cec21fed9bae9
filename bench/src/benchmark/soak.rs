//! `cargo xtask soak`: the pair of proxies under load for an hour, at a share of what it can do,
//! while its certificates are renewed again and again and the trust anchor is replaced by another.
//! No request may fail, and nothing may grow.

mod result;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use xtask::{command::ask, duration, interrupt::Interrupt, workspace};

use super::{
    load::{self, RATE_CONNECTIONS},
    memory::stable_memory,
    metric::{Metric, SystemUnderTest},
    system::{CLIENT, System},
    tools,
    workload::{Load, Service},
};
use crate::testbed::{
    ANCHOR, Cpus, ProxyPair, Testbed,
    pod::{DIRECTORY, Pod},
    proxies::{ADMIN, Rotation},
};
use result::{Reading, SoakResult};

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SoakOptions {
    /// For how long, as in 600s, 30m or 1h [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) time: Option<u64>,
    /// Take the programs as they are in target/release
    #[arg(long)]
    pub(crate) no_build: bool,
}

const DEFAULT_SECONDS: u64 = 3600;
/// Of what the pair can do.
const SHARE: f64 = 0.7;
/// For finding out what it can do.
const CAPACITY_SECONDS: u32 = 10;
/// Load is put on in so many pieces. Each begins with new connections, and is followed by a look at
/// the proxies.
const PIECES: u32 = 60;
/// Certificates that each proxy gets besides the first.
const ROTATIONS: u32 = 25;
/// Of its life, after which a proxy renews a certificate.
const RENEWED_AT: f64 = 0.7;
/// The shortest in which a piece is longer than what a proxy takes to notice new anchors.
const SHORTEST: u64 = 10 * PIECES as u64;

/// What is trusted, and who signs, as a change of the trust anchor goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrustPhase {
    Old,
    /// Both are trusted, the old issuer signs.
    BothAnchors,
    /// Both are trusted, the new issuer signs.
    NewIssuer,
    New,
}

/// What trust changes while the load goes on.
struct TrustRotation {
    anchors: PathBuf,
    old: PathBuf,
    new: PathBuf,
    now: TrustPhase,
}

pub(crate) fn run(root: &Path, options: &SoakOptions) -> anyhow::Result<ExitCode> {
    if !workspace::is_root() {
        bail!(
            "a soak makes network namespaces, cgroups and BPF programs, which needs root: run it with sudo"
        );
    }
    let seconds = options.time.unwrap_or(DEFAULT_SECONDS);
    if seconds < SHORTEST {
        bail!(
            "--time: {seconds} s are too few to change trust anchors in; the shortest is {SHORTEST} s"
        );
    }
    let cpus = Cpus::choose()?;
    let programs = tools::prepare(root, &[SystemUnderTest::MeshProxy], !options.no_build)?;
    let testbed = Testbed::new(programs, cpus, Interrupt::watch()?)?;
    let result = soak(&testbed, seconds)?;
    println!("\n{result}");
    Ok(if result.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn soak(testbed: &Testbed, seconds: u64) -> anyhow::Result<SoakResult> {
    let mut trust = TrustRotation::new(testbed)?;
    let between = seconds as f64 / f64::from(ROTATIONS + 1);
    let rotation = Rotation {
        lifetime: Duration::from_secs((between / RENEWED_AT) as u64),
        anchors: trust.anchors.clone(),
    };
    let mut system = System::rotating(testbed, &rotation)?;
    let as_much_as_it_can = Load::Wrk {
        connections: RATE_CONNECTIONS,
    };
    let (sample, failed) = load::measure(
        testbed,
        &mut system,
        Service::Http1,
        as_much_as_it_can,
        CAPACITY_SECONDS,
    )?;
    let capacity = sample[&Metric::Rate];
    let rate = (SHARE * capacity) as u32;
    println!(
        "{rate} requests a second on {RATE_CONNECTIONS} connections, of the {capacity:.0} that the pair can do; a certificate each {between:.0} s"
    );
    println!("  minute   requests failed    p99 ms  resident MiB     files  certificates");
    let piece = u32::try_from(seconds / u64::from(PIECES)).context("--time is too long")?;
    let mut readings = Vec::new();
    for number in 0..PIECES {
        testbed.check_interrupt()?;
        if let Some(change) = trust.at(number, &mut system)? {
            println!("          {change}");
        }
        let load = Load::FixedRate { rate };
        let (sample, failed) = load::measure(testbed, &mut system, Service::Http1, load, piece)?;
        let reading = Reading {
            requests: (sample[&Metric::Rate] * f64::from(piece)) as u64,
            failed,
            p99: sample.get(&Metric::P99).copied(),
            memory: stable_memory(testbed, &system)?,
            files: system.each(open_files)?.context("there are proxies")?,
            certificates: ProxyPair {
                outbound: certificates(&system.pods.client)?,
                inbound: certificates(&system.pods.server)?,
            },
        };
        println!("{:8.1} {reading}", f64::from((number + 1) * piece) / 60.0);
        readings.push(reading);
    }
    Ok(SoakResult::new(failed, readings))
}

fn open_files(process: u32) -> anyhow::Result<usize> {
    let directory = format!("/proc/{process}/fd");
    let files = fs::read_dir(&directory).with_context(|| format!("read {directory}"))?;
    Ok(files.count())
}

/// How many certificates the proxy of a pod got.
fn certificates(pod: &Pod) -> anyhow::Result<u64> {
    const METRIC: &str = "control_identity_cert_refreshes_total{result=\"ok\"} ";
    let mut command = pod.command(CLIENT, "curl")?;
    command.args(["-sS", "--fail"]);
    command.arg(format!("http://{}:{}/metrics", ADMIN.0, ADMIN.1));
    let metrics = ask(&mut command).context("a proxy shows no metrics")?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(METRIC));
    let count = line.with_context(|| format!("a proxy does not say {METRIC}"))?;
    count.parse().with_context(|| format!("{METRIC}{count}"))
}

impl TrustRotation {
    fn new(testbed: &Testbed) -> anyhow::Result<Self> {
        let directory = Path::new(DIRECTORY);
        let trust = Self {
            anchors: directory.join("anchors.pem"),
            old: testbed.authority(),
            new: directory.join("another-authority"),
            now: TrustPhase::Old,
        };
        testbed.generate_authority(&trust.new)?;
        trust.publish(&[&trust.old])?;
        Ok(trust)
    }

    /// What is to be trusted while a piece of the load runs, and what changes with it. Each step is
    /// one or more pieces after the one before: long enough for every proxy to have noticed, and
    /// before the last one, to have a certificate of the new issuer.
    fn at(&mut self, piece: u32, system: &mut System) -> anyhow::Result<Option<&'static str>> {
        let wanted = TrustPhase::at(piece);
        if wanted == self.now {
            return Ok(None);
        }
        self.now = wanted;
        let change = match wanted {
            TrustPhase::Old => return Ok(None),
            TrustPhase::BothAnchors => {
                self.publish(&[&self.old, &self.new])?;
                "the new trust anchor is trusted beside the old one"
            }
            TrustPhase::NewIssuer => {
                let control = system
                    .control
                    .as_mut()
                    .context("there is a control plane")?;
                let order = format!("authority {}", self.new.display());
                control.client.write_line(&order)?;
                control.server.write_line(&order)?;
                "certificates come from the new issuer"
            }
            TrustPhase::New => {
                self.publish(&[&self.new])?;
                "the old trust anchor is not trusted any more"
            }
        };
        Ok(Some(change))
    }

    /// Replaces the bundle in one step, as a mounted volume is.
    fn publish(&self, authorities: &[&Path]) -> anyhow::Result<()> {
        let mut bundle = String::new();
        for authority in authorities {
            let path = authority.join(ANCHOR);
            bundle +=
                &fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        }
        let draft = self.anchors.with_extension("draft");
        fs::write(&draft, bundle)
            .and_then(|()| fs::rename(&draft, &self.anchors))
            .with_context(|| format!("write {}", self.anchors.display()))
    }
}

impl TrustPhase {
    fn at(piece: u32) -> Self {
        match piece {
            _ if piece < PIECES / 3 => Self::Old,
            _ if piece < PIECES / 3 + 2 => Self::BothAnchors,
            _ if piece < PIECES * 2 / 3 => Self::NewIssuer,
            _ => Self::New,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_phases_last_longer_than_certificate_rotation() {
        let mut steps: Vec<(TrustPhase, u32)> = Vec::new();
        for piece in 0..PIECES {
            let now = TrustPhase::at(piece);
            match steps.last_mut() {
                Some((last, pieces)) if *last == now => *pieces += 1,
                _ => steps.push((now, 1)),
            }
        }
        let order: Vec<TrustPhase> = steps.iter().map(|(trust, _)| *trust).collect();
        assert_eq!(
            order,
            [
                TrustPhase::Old,
                TrustPhase::BothAnchors,
                TrustPhase::NewIssuer,
                TrustPhase::New
            ]
        );
        // A certificate is replaced within PIECES / ROTATIONS pieces.
        assert!(steps[2].1 > 2 * PIECES / ROTATIONS, "{steps:?}");
        assert!(steps[3].1 > 2 * PIECES / ROTATIONS, "{steps:?}");
    }
}
