//! [`Campaign`]: plays scripts one after the other, and reports those whose runs differ.

use mesh_proxy::simulation::Feature;
use mesh_simulator::check::{
    Failure, Features, MeshOptions, Place, check, replay, setting, settings,
};
use mesh_simulator::facts::{self, Aspect, Change, Facts};
use mesh_simulator::report::{Diagram, diagram, side_by_side, value};
use mesh_simulator::script::Script;
use mesh_simulator::shrink::shrink;
use mesh_simulator::world::{self, Run, Setting};
use xtask::print_lines;

use crate::stepper;

/// Failures beyond this many are counted, not shrunk and printed.
const MAX_REPORTS: usize = 10;

/// The scripts that were played, and the ones that differ.
pub(crate) struct Campaign {
    options: CampaignOptions,
    played: u64,
    exchanges: u64,
    failed: Vec<String>,
}

/// Where scripts are played, and the report of each.
pub(crate) struct CampaignOptions {
    pub(crate) places: Vec<Place>,
    pub(crate) mesh: MeshOptions,
    /// Prints observations and trace of each script, and shrinks none.
    pub(crate) replays: bool,
    /// Waits before each line of a trace that it replays.
    pub(crate) walks: bool,
    /// Prints the name of each script.
    pub(crate) is_verbose: bool,
    /// Prints of scripts that differ only the names, where, and how.
    pub(crate) is_brief: bool,
}

impl Campaign {
    pub(crate) fn new(options: CampaignOptions) -> Self {
        Self {
            options,
            played: 0,
            exchanges: 0,
            failed: Vec::new(),
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    pub(crate) fn summary(&self, seed: u64) -> String {
        let Self {
            played,
            exchanges,
            failed,
            ..
        } = self;
        let differ = failed.len();
        let mut text =
            format!("seed {seed}: {played} scripts, {exchanges} exchanges, {differ} differ");
        if !failed.is_empty() {
            text.push_str(&format!(": {}", failed.join(", ")));
        }
        text
    }

    /// Plays a script, and prints a failure.
    pub(crate) fn play(&mut self, name: &str, script: &Script, seed: u64) -> anyhow::Result<()> {
        let CampaignOptions { places, mesh, .. } = &self.options;
        if self.options.is_verbose {
            print_lines(&[name.to_owned()])?;
        }
        self.played += 1;
        let checked = check(script, seed, places, mesh)?;
        self.exchanges += checked.exchanges;
        if let Some(failure) = checked.failure {
            self.failed.push(name.to_owned());
            if self.options.is_brief {
                let (place, mesh) = (failure.place, mesh_of(&failure.setting));
                let mut lines = vec![format!("✗ {name}: {place}, {mesh}")];
                lines.extend(changes(&failure));
                print_lines(&lines)?;
            } else if self.failed.len() <= MAX_REPORTS {
                report(name, script, seed, &failure, !self.options.replays)?;
            }
        } else if self.options.replays {
            let direct = world::run(script, &setting(script, seed, 0, Place::DIRECT), false)?;
            let direct = facts::of_run(&direct.observed, script.protocol);
            for (place, setting) in settings(script, seed, places, mesh) {
                print_lines(&[format!("--- {place}, {}", mesh_of(&setting))])?;
                show(script, &direct, &setting, self.options.walks)?;
            }
        }
        Ok(())
    }
}

/// The features of a run's mesh, and what happens to it.
fn mesh_of(setting: &Setting) -> String {
    let features = Features::of(setting);
    match setting.fault {
        None => format!("features {features}"),
        Some(fault) => format!("features {features}, fault {fault}"),
    }
}

/// Prints the facts of a run beside the ones of a direct run, and its trace.
fn show(
    script: &Script,
    direct: &Facts,
    setting: &Setting,
    with_steps: bool,
) -> anyhow::Result<()> {
    let run = world::run(script, setting, true)?;
    let facts = facts::of_run(&run.observed, script.protocol);
    print_lines(&side_by_side(direct, &facts))?;
    let Diagram { head, lines } = diagram(&run.events, &run.steps);
    print_lines(&head)?;
    if with_steps {
        return stepper::walk(&lines);
    }
    print_lines(&lines)?;
    Ok(())
}

/// Prints all about a failure, with the fewest features and the smallest script that differ so if
/// it `shrinks`.
fn report(
    name: &str,
    script: &Script,
    seed: u64,
    failure: &Failure,
    shrinks: bool,
) -> anyhow::Result<()> {
    let mut last = failure.clone();
    let mut fails = |script: &Script, features: &[Feature]| {
        let options = MeshOptions {
            features: Features::These(features.to_vec()),
            has_faults: failure.setting.fault.is_some(),
        };
        let found = check(script, seed, &[failure.place], &options);
        let found = found.ok().and_then(|checked| checked.failure);
        let is_same = found.filter(|it| is_alike(it, failure));
        is_same.map(|found| last = found).is_some()
    };
    let mut features = failure.setting.settings.features.clone();
    let mut smallest = script.clone();
    if shrinks {
        for feature in features.clone() {
            let mut others = features.clone();
            others.retain(|other| *other != feature);
            if fails(script, &others) {
                features = others;
            }
        }
        smallest = shrink(script, |script| fails(script, &features));
    }
    let [direct, other] = replay(&smallest, seed, &last)?;
    let trace = |run: &Run| {
        let trace = diagram(&run.events, &run.steps);
        if shrinks {
            trace.beginning()
        } else {
            [trace.head, trace.lines].concat()
        }
    };
    let facts_of = |run: &Run| -> Facts { facts::of_run(&run.observed, smallest.protocol) };
    let mut lines = vec![
        format!("✗ {name}: runs differ at {}, seed {seed}", failure.place),
        format!("  {:?}", last.setting),
    ];
    lines.extend(changes(&last));
    lines.push("--- the smallest script that differs so".to_owned());
    lines.extend(smallest.to_string().lines().map(str::to_owned));
    lines.push("--- observations".to_owned());
    lines.extend(side_by_side(&facts_of(&direct), &facts_of(&other)));
    lines.push("--- direct".to_owned());
    lines.extend(trace(&direct));
    lines.push("--- other run".to_owned());
    lines.extend(trace(&other));
    lines.push(format!(
        "--- again: save the script, then cargo xtask simulate --script FILE --seed {seed} --place {} --features {}{}",
        failure.place,
        Features::of(&last.setting),
        if failure.setting.fault.is_some() { " --faults" } else { "" },
    ));
    print_lines(&lines)?;
    Ok(())
}

/// A line for each change, and for each invariant that is broken.
fn changes(failure: &Failure) -> Vec<String> {
    let changes = failure.changes.iter().map(|change| {
        let (left, right) = (value(change.direct.as_ref()), value(change.mesh.as_ref()));
        format!("  {}: {left} ≠ {right}", change.key)
    });
    let broken = failure.broken.iter();
    let broken = broken.map(|broken| format!("  broken: {broken}"));
    changes.chain(broken).collect()
}

/// A smaller script must leave something behind too, or differ in the most telling way.
fn is_alike(found: &Failure, failure: &Failure) -> bool {
    let Some(telling) = most_telling(&failure.changes) else {
        return !found.broken.is_empty();
    };
    let mut changes = found.changes.iter();
    changes.any(|change| {
        change.key.peer == telling.key.peer
            && change.key.aspect == telling.key.aspect
            && is_alike_value(change.direct.as_deref(), telling.direct.as_deref())
            && is_alike_value(change.mesh.as_deref(), telling.mesh.as_deref())
    })
}

/// A change of a message or of bytes rather than one of a connection; the client's first.
fn most_telling(changes: &[Change]) -> Option<&Change> {
    changes.iter().min_by_key(|change| {
        let is_about_connection = matches!(
            change.key.aspect,
            Aspect::Connections | Aspect::StoppedAt | Aspect::IdleEnding | Aspect::Order
        );
        (is_about_connection, change.key.peer)
    })
}

/// Short values must stay; content and lists may become shorter.
fn is_alike_value(found: Option<&[u8]>, value: Option<&[u8]>) -> bool {
    match (found, value) {
        (Some(found), Some(value)) => found == value || value.len() > SHORT,
        (None, None) => true,
        _ => false,
    }
}

/// Statuses and the ways of ending are not longer.
const SHORT: usize = 24;
