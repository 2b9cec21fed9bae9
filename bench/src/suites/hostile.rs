//! hostile: traffic of our own that is allowed frame by frame and costly, over connections that are
//! made anew as often as they are ended. Beside it an honest client must hardly notice, and what
//! the attackers sent must have cost the proxies little.
//!
//! `mesh-bench attack` sends it; `judgement` says what is held against what.

mod judgement;

use std::{fs, net::SocketAddr, path::Path};

use anyhow::Context;

use self::judgement::{Alone, Report, Seen, Sent};
use super::{
    honest,
    outcome::Outcome,
    range::{Application, Position, Range},
};
use crate::testbed::{Both, process::Process};

/// How long each attack lasts.
const SECONDS: u32 = 15;
/// Attackers, each with one connection at a time.
const CONNECTIONS: u32 = 8;

/// What `mesh-bench attack` knows, and what is behind the proxies that it attacks: something that
/// takes the protocol, and is not what the honest client waits for.
const ATTACKS: [(&str, Application); 11] = [
    ("zero-window-update", Application::Http2),
    ("half-closed-data", Application::Http2),
    ("empty-data", Application::Http2),
    ("reset-data", Application::Http2),
    ("hpack-bomb", Application::Http2),
    ("tiny-chunks", Application::Sink),
    ("tiny-data", Application::Http2),
    ("rapid-reset", Application::Http2),
    ("continuation", Application::Http2),
    ("settings-flood", Application::Http2),
    ("ping-flood", Application::Http2),
];

/// Where the honest client is, and what is known of it.
struct Bystander {
    target: SocketAddr,
    alone: Alone,
}

/// Runs every attack in one position, and fills a folder with a table of what came of them.
pub(super) fn run(
    range: &Range<'_>,
    position: Position,
    name: &str,
    folder: &Path,
) -> anyhow::Result<Outcome> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let bystander = Bystander::new(range, position, name)?;
    let mut report = Report::new(&bystander.alone);
    for (kind, application) in ATTACKS {
        // An attack that cannot be made is a failed case, and Ctrl-C ends attackers too.
        range.check_interrupt()?;
        let target = range.target(application, position);
        let seen = attack(range, kind, target, name, &bystander);
        report.add(kind, &bystander.alone, seen);
    }
    report.write(folder.join("summary.md"))
}

/// One attack, and the honest client beside it.
fn attack(
    range: &Range<'_>,
    kind: &str,
    target: SocketAddr,
    name: &str,
    bystander: &Bystander,
) -> anyhow::Result<Seen> {
    let mut command = range.own_client()?;
    command
        .args(["attack", kind, "--target", &target.to_string()])
        .args(["--connections", &CONNECTIONS.to_string()])
        .args(["--seconds", &SECONDS.to_string()]);
    let before = range.run_times()?;
    let attackers = Process::start(&format!("{name}-{kind}"), &mut command)?;
    // They are to keep the honest client from the proxies' CPU, not from its own, which they share.
    attackers.step_back()?;
    let honest = honest::beside(range, bystander.target, name, SECONDS);
    let sent = Sent::read(&attackers.output()?)?;
    let honest = honest.context("the honest client")?;
    let used = used_since(range, before)?;
    let spent = bystander.alone.subtracted(used, &honest);
    Ok(Seen {
        honest,
        sent,
        spent,
    })
}

impl Bystander {
    /// Watches the honest client before any attack.
    fn new(range: &Range<'_>, position: Position, name: &str) -> anyhow::Result<Self> {
        let target = range.target(Application::Web, position);
        let before = range.run_times()?;
        let honest = honest::alone(range, target, name)?;
        let alone = Alone::new(honest, used_since(range, before)?);
        Ok(Self { target, alone })
    }
}

/// The CPU seconds that the proxies have used since they had used `before`.
fn used_since(range: &Range<'_>, before: Both<f64>) -> anyhow::Result<Both<f64>> {
    let now = range.run_times()?;
    Ok(Both {
        out: now.out - before.out,
        inward: now.inward - before.inward,
    })
}
