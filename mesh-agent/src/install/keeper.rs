//! Keeps the plugin installed while the agent runs: looks whenever something in the configuration
//! directory changes, and now and then all the same.

use std::{collections::VecDeque, path::Path, sync::Arc, time::Duration};

use mesh_core::node::{CniStatus, RepairKind};
use mesh_runtime::log::chain;
use tokio::time::{Instant, sleep, timeout};

use super::{Installer, Look, PluginFile, watch::DirectoryWatch};

/// For what inotify does not see (a directory that is made later, another file system mounted over
/// it) and for attempts that failed.
const SLOW_LOOK: Duration = Duration::from_secs(10);
/// Whoever writes a file in place needs a moment, and half a file must not be taken for a broken
/// one.
const SETTLING: Duration = Duration::from_millis(50);
/// More often than this within [`CONTEST_WINDOW`], and another program takes the entry out as fast
/// as we put it in.
const CONTEST_WRITES: usize = 5;
const CONTEST_WINDOW: Duration = Duration::from_secs(60);

/// What a look means for the rest of the agent.
#[derive(Debug)]
pub struct Outcome {
    pub status: CniStatus,
    pub warnings: Vec<String>,
    /// Was our entry written?
    pub has_written: bool,
    /// What had been damaged, and in which file.
    pub repairs: Vec<(RepairKind, String)>,
}

/// How the installation was left by the last look: what is different now is damage, and not a first
/// installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Left {
    /// The configuration with our entry in it.
    chained_in: Option<String>,
    /// By this very agent: the program of an earlier one is not damage.
    by_us: bool,
}

/// When our entry was written lately. Pure: time comes with each call.
#[derive(Debug, Default)]
struct Contest {
    writes: VecDeque<Instant>,
}

impl Contest {
    fn note(&mut self, now: Instant) {
        self.writes.push_back(now);
    }

    fn is_on(&mut self, now: Instant) -> bool {
        self.writes
            .retain(|written| now.duration_since(*written) < CONTEST_WINDOW);
        self.writes.len() > CONTEST_WRITES
    }
}

/// Never returns. Each look's outcome goes to `report`. `chained_in` is the configuration that an
/// earlier agent of this boot left our entry in.
pub async fn keep(installer: Arc<Installer>, chained_in: Option<String>, report: impl Fn(Outcome)) {
    let mut contest = Contest::default();
    let mut said = None;
    let mut left = Left {
        chained_in,
        by_us: false,
    };
    let mut is_first = true;
    loop {
        // Before the look, so that nothing between the look and the next wait is missed.
        let watch = DirectoryWatch::new(installer.conf_dir());
        let outcome = look(&installer, is_first, &left, &mut contest).await;
        is_first = false;
        if outcome.status.chained {
            left = Left {
                chained_in: outcome.status.file.clone(),
                by_us: true,
            };
        }
        say(&outcome, &mut said);
        report(outcome);
        match watch {
            Ok(watch) if !contest.is_on(Instant::now()) => {
                // Until something changes; elapsed is the slow look.
                let _ = timeout(SLOW_LOOK, watch.changed()).await;
                sleep(SETTLING).await;
            }
            _ => sleep(SLOW_LOOK).await,
        }
    }
}

async fn look(
    installer: &Arc<Installer>,
    is_first: bool,
    left: &Left,
    contest: &mut Contest,
) -> Outcome {
    let (installer, left) = (Arc::clone(installer), left.clone());
    let conf_dir = installer.conf_dir().to_owned();
    let looked = tokio::task::spawn_blocking(move || {
        // The file first: an entry whose plugin is missing stops every pod of the node.
        let found = match installer.install_plugin(is_first) {
            Ok(found) => found,
            Err(error) => return (Err(error), Vec::new()),
        };
        if found != PluginFile::Intact {
            tracing::info!(?found, "Installed the CNI plugin's program");
        }
        let mut repairs = Vec::new();
        let program = installer.bin_dir.join(super::PLUGIN).display().to_string();
        repairs.extend(damage_of_program(&left, found).map(|kind| (kind, program)));
        let look = installer.look();
        if let Ok(look) = &look {
            let is_there = |file: &str| conf_dir_has(&installer, file);
            repairs.extend(damage_of_chain(&left, look.written.as_deref(), is_there));
        }
        (look, repairs)
    })
    .await;
    let (look, repairs) = match looked {
        Ok((Ok(look), repairs)) => (look, repairs),
        Ok((Err(error), repairs)) => (failed(&conf_dir, chain(&error)), repairs),
        Err(error) => (failed(&conf_dir, error.to_string()), Vec::new()),
    };
    let now = Instant::now();
    if look.written.is_some() {
        contest.note(now);
    }
    let mut warnings = look.notes;
    if contest.is_on(now) {
        warnings.push(format!(
            "another program takes mesh-cni out of {} again and again; it is put back every {} seconds only, and meshed pods that start in between \
             wait until they are enrolled in place (Cilium: set cni.exclusive to false)",
            look.status.file.as_deref().unwrap_or("the CNI configuration"),
            SLOW_LOOK.as_secs()
        ));
    }
    Outcome {
        has_written: look.written.is_some(),
        status: look.status,
        warnings,
        repairs,
    }
}

fn conf_dir_has(installer: &Installer, file: &str) -> bool {
    installer.conf_dir().join(file).exists()
}

/// Was the plugin's program damaged, or only not installed yet?
fn damage_of_program(left: &Left, found: PluginFile) -> Option<RepairKind> {
    match found {
        PluginFile::Intact => None,
        PluginFile::NotExecutable => Some(RepairKind::PluginNotExecutable),
        PluginFile::Missing => left
            .chained_in
            .is_some()
            .then_some(RepairKind::PluginMissing),
        PluginFile::Altered => left.by_us.then_some(RepairKind::PluginAltered),
    }
}

/// Was our entry taken out of the chain, or put there for the first time?
fn damage_of_chain(
    left: &Left,
    written: Option<&str>,
    is_there: impl Fn(&str) -> bool,
) -> Option<(RepairKind, String)> {
    let (before, now) = (left.chained_in.as_deref()?, written?);
    Some(if before == now {
        (RepairKind::PluginUnchained, now.to_owned())
    } else if is_there(before) {
        let detail = format!("{now} came before {before}");
        (RepairKind::PluginShadowed, detail)
    } else {
        let detail = format!("{before} was replaced by {now}");
        (RepairKind::PluginUnchained, detail)
    })
}

fn failed(conf_dir: &Path, reason: String) -> Look {
    Look {
        status: CniStatus {
            conf_dir: conf_dir.to_owned(),
            reason,
            ..CniStatus::default()
        },
        written: None,
        notes: Vec::new(),
    }
}

/// Logs what is new since the last time.
fn say(outcome: &Outcome, said: &mut Option<(CniStatus, Vec<String>)>) {
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
    let news = Some((status.clone(), outcome.warnings.clone()));
    if *said == news {
        return;
    }
    let before = said.take();
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
    *said = news;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_from_a_first_installation_and_from_an_upgrade() {
        use PluginFile::{Altered, Intact, Missing, NotExecutable};
        use RepairKind::{PluginAltered, PluginMissing, PluginNotExecutable};
        let never = Left::default();
        let by_earlier = Left {
            chained_in: Some("10-x.conflist".to_owned()),
            by_us: false,
        };
        let by_us = Left {
            by_us: true,
            ..by_earlier.clone()
        };
        for (left, found, expected) in [
            (&never, Missing, None),
            (&never, Altered, None),
            (&never, NotExecutable, Some(PluginNotExecutable)),
            (&by_earlier, Missing, Some(PluginMissing)),
            (&by_earlier, Altered, None),
            (&by_us, Missing, Some(PluginMissing)),
            (&by_us, Altered, Some(PluginAltered)),
            (&by_us, Intact, None),
        ] {
            assert_eq!(
                damage_of_program(left, found),
                expected,
                "{left:?} {found:?}"
            );
        }
        let damage =
            |left: &Left, written, is_there: bool| damage_of_chain(left, written, |_| is_there);
        assert_eq!(damage(&never, Some("10-x.conflist"), true), None);
        assert_eq!(damage(&by_us, None, true), None);
        let found = |written, is_there| damage(&by_earlier, Some(written), is_there).unwrap();
        assert_eq!(
            found("10-x.conflist", true),
            (RepairKind::PluginUnchained, "10-x.conflist".to_owned())
        );
        let shadowed = "05-y.conflist came before 10-x.conflist".to_owned();
        assert_eq!(
            found("05-y.conflist", true),
            (RepairKind::PluginShadowed, shadowed)
        );
        let replaced = "10-x.conflist was replaced by 05-y.conflist".to_owned();
        assert_eq!(
            found("05-y.conflist", false),
            (RepairKind::PluginUnchained, replaced)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn many_writes_within_a_minute_are_a_contest() {
        let mut contest = Contest::default();
        for _ in 0..CONTEST_WRITES {
            contest.note(Instant::now());
        }
        assert!(!contest.is_on(Instant::now()));
        contest.note(Instant::now());
        assert!(contest.is_on(Instant::now()));
        sleep(CONTEST_WINDOW).await;
        assert!(!contest.is_on(Instant::now()));
    }
}
