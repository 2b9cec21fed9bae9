//! `cargo xtask soak`: loads the pair of proxies for an hour at a share of its capacity, while
//! certificates are renewed repeatedly and the trust anchor is rotated. No request may fail, and
//! neither memory nor open files may grow.

mod result;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use xtask::interrupt::Interrupt;
use xtask::{duration, workspace};

use super::load::{self, RATE_CONNECTIONS};
use super::memory::stable_memory;
use super::metric::{Metric, SystemUnderTest};
use super::system::System;
use super::tools;
use super::workload::{Load, Service};
use crate::testbed::pod::Pod;
use crate::testbed::proxies::{self, ProxySettings, Rotation};
use crate::testbed::{ANCHOR, Cpus, DIRECTORY, ProxyPair, Testbed};
use result::{Reading, SoakResult};

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SoakOptions {
    /// Duration, as in 600s, 30m or 1h [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) time: Option<u64>,
    /// Use the existing programs in target/release
    #[arg(long)]
    pub(crate) no_build: bool,
}

const DEFAULT_SECONDS: u64 = 3600;
/// Share of the pair's capacity.
const SHARE: f64 = 0.7;
/// Duration of the capacity measurement.
const CAPACITY_SECONDS: u32 = 10;
/// Number of pieces of load. Each begins with new connections and is followed by a reading of the
/// proxies.
const PIECES: u32 = 60;
/// Certificate renewals of each proxy.
const ROTATIONS: u32 = 25;
/// A proxy renews a certificate after this fraction of its lifetime.
const RENEWED_AT: f64 = 0.7;
/// Minimum duration in seconds: a piece must be longer than a proxy needs to reload trust anchors.
const SHORTEST: u64 = 10 * PIECES as u64;

/// The phases of a trust anchor rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrustPhase {
    Old,
    /// Both are trusted, the old issuer signs.
    BothAnchors,
    /// Both are trusted, the new issuer signs.
    NewIssuer,
    New,
}

/// Rotates the trust anchor during the load.
struct TrustRotation {
    anchors: PathBuf,
    old: PathBuf,
    new: PathBuf,
    now: TrustPhase,
}

pub(crate) fn run(root: &Path, options: &SoakOptions) -> anyhow::Result<ExitCode> {
    if !workspace::is_root() {
        bail!(
            "a soak creates network namespaces, cgroups and BPF programs and needs root: run it with sudo"
        );
    }
    let seconds = options.time.unwrap_or(DEFAULT_SECONDS);
    if seconds < SHORTEST {
        bail!(
            "--time: {seconds} s are too short to rotate trust anchors; the minimum is {SHORTEST} s"
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
    let settings = ProxySettings {
        rotation: Some(&rotation),
        ..ProxySettings::default()
    };
    let mut system = System::start_with(testbed, SystemUnderTest::MeshProxy, &settings)?;
    let full_load = Load::Wrk {
        connections: RATE_CONNECTIONS,
    };
    let (sample, failed) = load::measure(
        testbed,
        &mut system,
        Service::Http1,
        full_load,
        CAPACITY_SECONDS,
    )?;
    let capacity = sample[&Metric::Rate];
    let rate = (SHARE * capacity) as u32;
    println!(
        "{rate} requests a second on {RATE_CONNECTIONS} connections, of a capacity of {capacity:.0}; a new certificate every {between:.0} s"
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
            files: system
                .each(open_files)?
                .context("the system has no proxies")?,
            certificates: ProxyPair::new(&system.pods.client, &system.pods.server)
                .try_map(certificates)?,
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

/// Returns the number of certificates that the proxy of a pod has obtained.
fn certificates(pod: &Pod) -> anyhow::Result<u64> {
    const METRIC: &str = "control_identity_cert_refreshes_total{result=\"ok\"} ";
    let metrics = proxies::metrics(pod)?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(METRIC));
    let count = line.with_context(|| format!("the proxy's metrics lack {METRIC}"))?;
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

    /// Enters the trust phase of a piece and returns a description of the change. Phases are at
    /// least one piece long, so that every proxy reloads the anchors in time, and obtains a
    /// certificate of the new issuer before the last phase.
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
                "both trust anchors are trusted"
            }
            TrustPhase::NewIssuer => {
                let control = system.control()?;
                let command = format!("authority {}", self.new.display());
                control.client.write_line(&command)?;
                control.server.write_line(&command)?;
                "certificates come from the new issuer"
            }
            TrustPhase::New => {
                self.publish(&[&self.new])?;
                "only the new trust anchor is trusted"
            }
        };
        Ok(Some(change))
    }

    /// Replaces the bundle atomically, as the kubelet updates a mounted volume.
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
        let command: Vec<TrustPhase> = steps.iter().map(|(trust, _)| *trust).collect();
        assert_eq!(
            command,
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
