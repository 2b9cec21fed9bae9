//! Keeps the plugin installed while the agent runs: checks whenever the configuration directory
//! changes, and periodically.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::node::{CniStatus, RepairKind};
use mesh_runtime::log::chain;
use tokio::time::{Instant, sleep, timeout};

use super::watch::DirectoryWatch;
use super::{ChainReport, Installer, PluginFile};

/// For changes that inotify does not report (a directory created later, another file system mounted
/// over it) and for failed attempts.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Programs that write a file in place need some time, and a partial file would count as invalid.
const SETTLE_DELAY: Duration = Duration::from_millis(50);
/// With more writes than this within [`CONTENTION_WINDOW`], another program is removing the entry
/// as fast as the agent adds it.
const CONTENTION_WRITES: usize = 5;
const CONTENTION_WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Outcome {
    pub status: CniStatus,
    pub warnings: Vec<String>,
    pub has_written: bool,
    /// The damage, and the damaged file.
    pub repairs: Vec<(RepairKind, String)>,
}

/// The installation after the previous check; a difference from it is damage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PreviousState {
    chained_in: Option<String>,
    /// Whether this agent installed the plugin: a program of an earlier agent is not damage.
    by_this_agent: bool,
}

/// Recent writes of the entry. Pure: each call passes the time.
#[derive(Debug, Default)]
struct WriteContention {
    writes: VecDeque<Instant>,
}

impl WriteContention {
    fn record(&mut self, now: Instant) {
        self.writes.push_back(now);
    }

    fn is_active(&mut self, now: Instant) -> bool {
        self.writes
            .retain(|written| now.duration_since(*written) < CONTENTION_WINDOW);
        self.writes.len() > CONTENTION_WRITES
    }
}

/// Never returns. Passes the result of each check to `report`. `chained_in` is the configuration
/// where an earlier agent of this boot added the entry.
pub async fn keep_installed(
    installer: Arc<Installer>,
    chained_in: Option<String>,
    report: impl Fn(Outcome),
) {
    let mut contention = WriteContention::default();
    let mut logged = None;
    let mut previous = PreviousState {
        chained_in,
        by_this_agent: false,
    };
    let mut is_first = true;
    loop {
        // Before the check, so that changes between the check and the next wait are noticed.
        let watch = DirectoryWatch::new(installer.conf_dir());
        let outcome = check(&installer, is_first, &previous, &mut contention).await;
        is_first = false;
        if outcome.status.chained {
            previous = PreviousState {
                chained_in: outcome.status.file.clone(),
                by_this_agent: true,
            };
        }
        log_changes(&outcome, &mut logged);
        report(outcome);
        match watch {
            Ok(watch) if !contention.is_active(Instant::now()) => {
                // Until something changes, at most for the interval.
                let _ = timeout(CHECK_INTERVAL, watch.changed()).await;
                sleep(SETTLE_DELAY).await;
            }
            _ => sleep(CHECK_INTERVAL).await,
        }
    }
}

async fn check(
    installer: &Arc<Installer>,
    is_first: bool,
    previous: &PreviousState,
    contention: &mut WriteContention,
) -> Outcome {
    let (installer, previous) = (Arc::clone(installer), previous.clone());
    let conf_dir = installer.conf_dir().to_owned();
    let checked = tokio::task::spawn_blocking(move || {
        // The file first: an entry without its plugin prevents every pod of the node from starting.
        let found = match installer.install_plugin(is_first) {
            Ok(found) => found,
            Err(error) => return (Err(error), Vec::new()),
        };
        if found != PluginFile::Intact {
            tracing::info!(?found, "Installed the CNI plugin's program");
        }
        let mut repairs = Vec::new();
        let program = installer.bin_dir.join(super::PLUGIN).display().to_string();
        repairs.extend(program_damage(&previous, found).map(|kind| (kind, program)));
        let chain_report = installer.ensure_chained();
        if let Ok(chain_report) = &chain_report {
            let exists = |file: &str| conf_dir_has(&installer, file);
            repairs.extend(chain_damage(
                &previous,
                chain_report.written.as_deref(),
                exists,
            ));
        }
        (chain_report, repairs)
    })
    .await;
    let (chain_report, repairs) = match checked {
        Ok((Ok(chain_report), repairs)) => (chain_report, repairs),
        Ok((Err(error), repairs)) => (failure_report(&conf_dir, chain(&error)), repairs),
        Err(error) => (failure_report(&conf_dir, error.to_string()), Vec::new()),
    };
    let now = Instant::now();
    if chain_report.written.is_some() {
        contention.record(now);
    }
    let mut warnings = chain_report.notes;
    if contention.is_active(now) {
        warnings.push(format!(
            "another program removes mesh-cni from {} repeatedly; it is added again only every {} seconds, and meshed pods that start in between \
             wait until they are enrolled in place (Cilium: set cni.exclusive to false)",
            chain_report.status.file.as_deref().unwrap_or("the CNI configuration"),
            CHECK_INTERVAL.as_secs()
        ));
    }
    Outcome {
        has_written: chain_report.written.is_some(),
        status: chain_report.status,
        warnings,
        repairs,
    }
}

fn conf_dir_has(installer: &Installer, file: &str) -> bool {
    installer.conf_dir().join(file).exists()
}

/// Distinguishes damage of the plugin's program from its first installation.
fn program_damage(previous: &PreviousState, found: PluginFile) -> Option<RepairKind> {
    match found {
        PluginFile::Intact => None,
        PluginFile::NotExecutable => Some(RepairKind::PluginNotExecutable),
        PluginFile::Missing => previous
            .chained_in
            .is_some()
            .then_some(RepairKind::PluginMissing),
        PluginFile::Altered => previous.by_this_agent.then_some(RepairKind::PluginAltered),
    }
}

/// Distinguishes removal of the entry from its first installation.
fn chain_damage(
    previous: &PreviousState,
    written: Option<&str>,
    exists: impl Fn(&str) -> bool,
) -> Option<(RepairKind, String)> {
    let (before, now) = (previous.chained_in.as_deref()?, written?);
    Some(if before == now {
        (RepairKind::PluginUnchained, now.to_owned())
    } else if exists(before) {
        let detail = format!("{now} sorts before {before}");
        (RepairKind::PluginShadowed, detail)
    } else {
        let detail = format!("{before} was replaced by {now}");
        (RepairKind::PluginUnchained, detail)
    })
}

fn failure_report(conf_dir: &Path, reason: String) -> ChainReport {
    ChainReport {
        status: CniStatus {
            conf_dir: conf_dir.to_owned(),
            reason,
            ..CniStatus::default()
        },
        written: None,
        notes: Vec::new(),
    }
}

fn log_changes(outcome: &Outcome, logged: &mut Option<(CniStatus, Vec<String>)>) {
    let status = &outcome.status;
    let file = status.file.as_deref().unwrap_or_default();
    if outcome.has_written {
        tracing::info!(
            file,
            network = status.network.as_deref(),
            plugins = status.plugins.join(", "),
            "Chained mesh-cni into the node's CNI configuration"
        );
    }
    let current = Some((status.clone(), outcome.warnings.clone()));
    if *logged == current {
        return;
    }
    let before = logged.take();
    let known = before.as_ref().map_or(&[][..], |(_, warnings)| warnings);
    for warning in &outcome.warnings {
        if !known.contains(warning) {
            tracing::warn!("{warning}");
        }
    }
    let is_new_status = before.is_none_or(|(before, _)| before != *status);
    if is_new_status && !status.chained {
        tracing::warn!(
            directory = %status.conf_dir.display(),
            reason = status.reason,
            "mesh-cni is not chained into the node's CNI configuration; meshed pods that start now wait until they are enrolled in place"
        );
    } else if is_new_status && !outcome.has_written {
        tracing::info!(
            file,
            plugins = status.plugins.join(", "),
            "mesh-cni is in the node's CNI configuration"
        );
    }
    *logged = current;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_distinguished_from_installation_and_upgrade() {
        use PluginFile::{Altered, Intact, Missing, NotExecutable};
        use RepairKind::{PluginAltered, PluginMissing, PluginNotExecutable};
        let never = PreviousState::default();
        let by_earlier = PreviousState {
            chained_in: Some("10-x.conflist".to_owned()),
            by_this_agent: false,
        };
        let by_this_agent = PreviousState {
            by_this_agent: true,
            ..by_earlier.clone()
        };
        for (previous, found, expected) in [
            (&never, Missing, None),
            (&never, Altered, None),
            (&never, NotExecutable, Some(PluginNotExecutable)),
            (&by_earlier, Missing, Some(PluginMissing)),
            (&by_earlier, Altered, None),
            (&by_this_agent, Missing, Some(PluginMissing)),
            (&by_this_agent, Altered, Some(PluginAltered)),
            (&by_this_agent, Intact, None),
        ] {
            let damage = program_damage(previous, found);
            assert_eq!(damage, expected, "{previous:?} {found:?}");
        }
        let damage = |previous: &PreviousState, written, exists: bool| {
            chain_damage(previous, written, |_| exists)
        };
        assert_eq!(damage(&never, Some("10-x.conflist"), true), None);
        assert_eq!(damage(&by_this_agent, None, true), None);
        let found = |written, exists| damage(&by_earlier, Some(written), exists).unwrap();
        let check = |written, exists, kind, detail: &str| {
            assert_eq!(found(written, exists), (kind, detail.to_owned()));
        };
        let unchained = RepairKind::PluginUnchained;
        check("10-x.conflist", true, unchained, "10-x.conflist");
        let shadowed = "05-y.conflist sorts before 10-x.conflist";
        check("05-y.conflist", true, RepairKind::PluginShadowed, shadowed);
        let replaced = "10-x.conflist was replaced by 05-y.conflist";
        check("05-y.conflist", false, unchained, replaced);
    }

    #[tokio::test(start_paused = true)]
    async fn many_writes_within_a_minute_are_contention() {
        let mut contention = WriteContention::default();
        for _ in 0..CONTENTION_WRITES {
            contention.record(Instant::now());
        }
        assert!(!contention.is_active(Instant::now()));
        contention.record(Instant::now());
        assert!(contention.is_active(Instant::now()));
        sleep(CONTENTION_WINDOW).await;
        assert!(!contention.is_active(Instant::now()));
    }
}
