//! `--planted`: searches for planted bugs on all processors, and reports each.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use mesh_planted::Bug;
use mesh_simulator::corpus::Named;
use mesh_simulator::planted::{self, Finder, Outcome, REQUIRED};
use parking_lot::Mutex;
use xtask::print_lines;

/// A run that takes longer does not end.
const MAX_RUN: Duration = Duration::from_secs(120);
/// How often that is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What a thread reports.
struct Event {
    thread: usize,
    bug: Bug,
    kind: EventKind,
}

enum EventKind {
    /// A script is about to be played.
    Playing(String),
    Ended(anyhow::Result<Outcome>),
}

/// The bugs that no thread has taken, and the scripts.
struct Work {
    queue: Mutex<Vec<Bug>>,
    scripts: Vec<Named>,
    generates: bool,
    /// For each bug.
    limit: Duration,
}

/// The state of a thread.
#[derive(Default)]
struct Thread {
    playing: Option<Playing>,
    /// Its run does not end, and another thread does its work.
    is_lost: bool,
}

struct Playing {
    bug: Bug,
    script: String,
    scripts: usize,
    began: Instant,
    script_began: Instant,
}

/// Searches for one bug, or for all. The exit code is 1 if too few are found.
///
/// With a pattern, only scripts of the corpus whose names match are played.
pub(crate) fn run(
    corpus: &Path,
    pattern: Option<&str>,
    bug: Option<Bug>,
    limit: Duration,
) -> anyhow::Result<ExitCode> {
    let bugs = bug.map_or_else(|| Bug::ALL.to_vec(), |bug| vec![bug]);
    let work = Arc::new(Work {
        queue: Mutex::new(bugs.iter().rev().copied().collect()),
        scripts: planted::scripts(corpus, pattern.unwrap_or("*"))?,
        generates: pattern.is_none(),
        limit,
    });
    let (sender, events) = mpsc::channel();
    let mut threads = Vec::new();
    let count = thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..count.min(bugs.len()) {
        start(&work, &sender, &mut threads);
    }
    let mut outcomes: Vec<(Bug, Outcome)> = Vec::new();
    while outcomes.len() < bugs.len() {
        let ended = match events.recv_timeout(CHECK_INTERVAL) {
            Ok(event) if threads[event.thread].is_lost => None,
            Ok(event) => threads[event.thread].note(event)?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let endless = threads.iter_mut().find_map(Thread::endless_run);
                if endless.is_some() {
                    start(&work, &sender, &mut threads);
                }
                endless
            }
        };
        if let Some((bug, outcome)) = ended {
            print_lines(&[line(bug, &outcome)])?;
            outcomes.push((bug, outcome));
        }
    }
    outcomes.sort_by_key(|(bug, _)| *bug);
    print_lines(&planted::table(&outcomes))?;
    let is_missed = |(_, outcome): &&(Bug, Outcome)| matches!(outcome, Outcome::Missed { .. });
    let missed = outcomes.iter().filter(is_missed);
    let missed: Vec<&str> = missed.map(|(bug, _)| bug.name()).collect();
    let found = outcomes.len() - missed.len();
    let mut summary = format!("{found} of {} planted bugs found", outcomes.len());
    if !missed.is_empty() {
        summary += &format!("; missed: {}", missed.join(", "));
    }
    print_lines(&[summary])?;
    let is_enough = found * 100 >= outcomes.len() * REQUIRED;
    Ok(ExitCode::from(u8::from(!is_enough)))
}

/// Starts a thread that takes bugs until none is left.
fn start(work: &Arc<Work>, events: &Sender<Event>, threads: &mut Vec<Thread>) {
    let (work, events, thread) = (Arc::clone(work), events.clone(), threads.len());
    threads.push(Thread::default());
    thread::spawn(move || {
        let mut finder = Finder::new(&work.scripts, work.generates);
        let next = || work.queue.lock().pop();
        while let Some(bug) = next() {
            let send = |kind| {
                // The receiver has all results when it is dropped.
                let _sent = events.send(Event { thread, bug, kind });
            };
            let begin = |script: &str| send(EventKind::Playing(script.to_owned()));
            let outcome = finder.find(bug, work.limit, &begin);
            send(EventKind::Ended(outcome.context("set up a run")));
        }
    });
}

impl Thread {
    /// Returns the result of a search that has ended.
    fn note(&mut self, event: Event) -> anyhow::Result<Option<(Bug, Outcome)>> {
        let now = Instant::now();
        match event.kind {
            EventKind::Playing(script) => {
                let before = self.playing.take().filter(|it| it.bug == event.bug);
                let (began, scripts) = before.map_or((now, 0), |it| (it.began, it.scripts));
                self.playing = Some(Playing {
                    bug: event.bug,
                    script,
                    scripts: scripts + 1,
                    began,
                    script_began: now,
                });
                Ok(None)
            }
            EventKind::Ended(outcome) => {
                self.playing = None;
                let outcome = outcome.with_context(|| format!("search for {}", event.bug))?;
                Ok(Some((event.bug, outcome)))
            }
        }
    }

    /// Returns the bug whose run does not end. The thread is lost then.
    fn endless_run(&mut self) -> Option<(Bug, Outcome)> {
        let is_endless = |playing: &mut Playing| playing.script_began.elapsed() > MAX_RUN;
        let playing = self.playing.take_if(is_endless)?;
        self.is_lost = true;
        let outcome = Outcome::endless(playing.script, playing.scripts, playing.began.elapsed());
        Some((playing.bug, outcome))
    }
}

fn line(bug: Bug, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Found(found) => format!(
            "✓ {bug}: {} at {}, script {}, {:.1} s: {}",
            found.script,
            found.place,
            found.scripts,
            found.time.as_secs_f64(),
            found.what,
        ),
        Outcome::Missed { scripts, time } => {
            let time = time.as_secs_f64();
            format!("✗ {bug}: not found by {scripts} scripts in {time:.0} s")
        }
    }
}
