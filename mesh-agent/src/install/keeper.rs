//! Keeps the plugin installed while the agent runs: looks whenever something in the configuration directory changes, and now and then all the same.

use std::{collections::VecDeque, path::Path, sync::Arc, time::Duration};

use mesh_core::node::CniStatus;
use mesh_runtime::log::chain;
use tokio::time::{Instant, sleep, timeout};

use super::{Installer, Look, watch::DirectoryWatch};

/// For what inotify does not see (a directory that is made later, another file system mounted over it) and for attempts that failed.
const SLOW_LOOK: Duration = Duration::from_secs(10);
/// Whoever writes a file in place needs a moment, and half a file must not be taken for a broken one.
const SETTLING: Duration = Duration::from_millis(50);
/// More often than this within [`CONTEST_WINDOW`], and another program takes the entry out as fast as we put it in.
const CONTEST_WRITES: usize = 5;
const CONTEST_WINDOW: Duration = Duration::from_secs(60);

/// What a look means for the rest of the agent.
#[derive(Debug)]
pub struct Outcome {
    pub status: CniStatus,
    pub warnings: Vec<String>,
    /// Was our entry written?
    pub has_written: bool,
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

/// Never returns. Each look's outcome goes to `report`.
pub async fn keep(installer: Arc<Installer>, report: impl Fn(Outcome)) {
    let mut contest = Contest::default();
    let mut said = None;
    let mut is_first = true;
    loop {
        // Before the look, so that nothing between the look and the next wait is missed.
        let watch = DirectoryWatch::new(installer.conf_dir());
        let outcome = look(&installer, is_first, &mut contest).await;
        is_first = false;
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

async fn look(installer: &Arc<Installer>, is_first: bool, contest: &mut Contest) -> Outcome {
    let installer = Arc::clone(installer);
    let conf_dir = installer.conf_dir().to_owned();
    let looked = tokio::task::spawn_blocking(move || {
        // The file first: an entry whose plugin is missing stops every pod of the node.
        if installer.install_plugin(is_first)? {
            tracing::info!("Installed the CNI plugin's program");
        }
        installer.look()
    })
    .await;
    let look = match looked {
        Ok(Ok(look)) => look,
        Ok(Err(error)) => failed(&conf_dir, chain(&error)),
        Err(error) => failed(&conf_dir, error.to_string()),
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
    }
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
