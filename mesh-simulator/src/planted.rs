//! [`Finder`]: plays scripts with a bug planted into the proxies, until a run shows it.

mod document;
mod known;

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::Duration;

use mesh_planted::{Bug, plant};
use mesh_proxy::simulation::SetUpError;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::check::{self, Place, Runs, setting};
use crate::corpus::{self, CorpusError, Named};
use crate::generate;
use crate::script::Protocol;
use crate::world::Setting;

pub use self::document::render;
pub use self::known::{KNOWN, Known};

/// The share of the bugs that must be found, in percent.
pub const REQUIRED: usize = 90;

/// The most direct runs that a run with a bug is compared with. More would be needed for a script
/// that chance decides; its run without the bug would differ, too.
const MAX_RUNS: u64 = 10;
/// The seed of the settings of the corpus.
const SEED: u64 = 1;
/// Settings beyond the ones of direct runs.
const FIRST_DRAWN: u64 = 100;

/// A round through the corpus.
struct Round {
    /// The number of the setting: the ideal one, or a drawn one.
    setting: u64,
    /// Whether only the place with all proxies is played, or only the others.
    is_first: Option<bool>,
}

/// Most bugs are found by the first round.
const ROUNDS: [Round; 4] = [
    Round {
        setting: 0,
        is_first: Some(true),
    },
    Round {
        setting: 0,
        is_first: Some(false),
    },
    Round {
        setting: FIRST_DRAWN,
        is_first: None,
    },
    Round {
        setting: FIRST_DRAWN + 1,
        is_first: None,
    },
];

impl Round {
    fn places(&self, protocol: Protocol) -> impl Iterator<Item = Place> {
        let is_first = self.is_first;
        let all = places(protocol).enumerate();
        let played = all.filter(move |(n, _)| is_first.is_none_or(|it| it == (*n == 0)));
        played.map(|(_, place)| place)
    }
}

/// A run that shows a bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub script: String,
    pub place: Place,
    /// The number of the setting.
    pub setting: u64,
    /// How many scripts were played, this one included.
    pub scripts: usize,
    /// The time of the processor.
    pub time: Duration,
    /// What differs, or is broken.
    pub what: String,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Found(Found),
    Missed { scripts: usize, time: Duration },
}

impl Outcome {
    /// A run of a script that does not end.
    pub fn endless(script: String, scripts: usize, time: Duration) -> Self {
        Self::Found(Found {
            script,
            place: Place::DIRECT,
            setting: 0,
            scripts,
            time,
            what: "the run does not end".to_owned(),
        })
    }
}

/// The rows of [`KNOWN`] for outcomes, as its source has them.
pub fn table(outcomes: &[(Bug, Outcome)]) -> Vec<String> {
    let rows = outcomes.iter().filter_map(|(bug, outcome)| match outcome {
        Outcome::Found(found) => Some(format!(
            "    known(Bug::{bug:?}, {:?}, \"{}\", {}),",
            found.script, found.place, found.setting
        )),
        Outcome::Missed { .. } => None,
    });
    rows.collect()
}

/// The scripts of searches, in their order, with their direct runs.
pub struct Finder<'a> {
    corpus: Vec<Candidate<'a>>,
    /// Whether generated scripts follow the corpus.
    generates: bool,
}

struct Candidate<'a> {
    named: &'a Named,
    direct: Runs<'a>,
}

/// Reads the scripts of the corpus whose names match, for searches. Scripts that have found a bug
/// come first, in the order of [`KNOWN`], then the others, in turns from all directories.
///
/// # Errors
///
/// A script cannot be read.
pub fn scripts(directory: &Path, pattern: &str) -> Result<Vec<Named>, CorpusError> {
    let mut all = corpus::read(directory, pattern)?;
    let known = |name: &str| KNOWN.iter().position(|known| known.script == name);
    let mut seen = BTreeMap::<String, usize>::new();
    let mut keys = BTreeMap::new();
    for named in &all {
        let directory = named
            .name
            .rsplit_once('/')
            .map_or("", |(directory, _)| directory);
        let turn = seen.entry(directory.to_owned()).or_default();
        *turn += 1;
        let key = (known(&named.name).unwrap_or(usize::MAX), *turn);
        keys.insert(named.name.clone(), key);
    }
    all.sort_by_key(|named| keys.get(&named.name).copied());
    Ok(all)
}

impl<'a> Finder<'a> {
    pub fn new(scripts: &'a [Named], generates: bool) -> Self {
        let candidate = |named: &'a Named| Candidate {
            named,
            direct: Runs::new(&named.script, SEED, Place::DIRECT),
        };
        Self {
            corpus: scripts.iter().map(candidate).collect(),
            generates,
        }
    }

    /// Searches until a run shows the bug, or it has used the processor for `limit`: the corpus
    /// under ideal conditions, then under drawn ones, then generated scripts. `begin` is called
    /// before each script.
    ///
    /// # Errors
    ///
    /// A proxy cannot be set up.
    pub fn find(
        &mut self,
        bug: Bug,
        limit: Duration,
        begin: &dyn Fn(&str),
    ) -> Result<Outcome, SetUpError> {
        let start = processor_time();
        let mut scripts = 0;
        let found = |name: &str, at: (Place, u64), scripts, what| {
            Outcome::Found(Found {
                script: name.to_owned(),
                place: at.0,
                setting: at.1,
                scripts,
                time: processor_time() - start,
                what,
            })
        };
        for round in ROUNDS {
            for Candidate { named, direct } in &mut self.corpus {
                scripts += 1;
                begin(&named.name);
                for place in round.places(named.script.protocol) {
                    let setting = setting(&named.script, SEED, round.setting, place);
                    if let Some(what) = shows(bug, direct, &setting)? {
                        let at = (place, round.setting);
                        return Ok(found(&named.name, at, scripts, what));
                    }
                }
                if processor_time() - start > limit {
                    let time = processor_time() - start;
                    return Ok(Outcome::Missed { scripts, time });
                }
            }
        }
        let seeds = 0..if self.generates { u64::MAX } else { 0 };
        for seed in seeds {
            let script = generate::generate(seed);
            let mut direct = Runs::new(&script, seed, Place::DIRECT);
            scripts += 1;
            let name = format!("{GENERATED}{seed}");
            begin(&name);
            for (n, place) in (FIRST_DRAWN..).zip(places(script.protocol)) {
                let setting = setting(&script, seed, n, place);
                if let Some(what) = shows(bug, &mut direct, &setting)? {
                    return Ok(found(&name, (place, n), scripts, what));
                }
            }
            if processor_time() - start > limit {
                break;
            }
        }
        let time = processor_time() - start;
        Ok(Outcome::Missed { scripts, time })
    }

    /// Whether the run of a [`Known`] shows its bug.
    ///
    /// # Errors
    ///
    /// A proxy cannot be set up.
    pub fn confirm(&mut self, known: &Known) -> Result<bool, SetUpError> {
        let Ok(place) = known.place.parse() else {
            return Ok(false);
        };
        let shown = |direct: &mut Runs<'_>, seed| {
            let setting = setting(direct.script(), seed, known.setting, place);
            shows(known.bug, direct, &setting)
        };
        let shown = match known.script.strip_prefix(GENERATED) {
            Some(seed) => {
                let seed = seed.parse().unwrap_or_default();
                let script = generate::generate(seed);
                shown(&mut Runs::new(&script, seed, Place::DIRECT), seed)
            }
            None => {
                let mut all = self.corpus.iter_mut();
                let candidate = all.find(|candidate| candidate.named.name == known.script);
                match candidate {
                    Some(candidate) => shown(&mut candidate.direct, SEED),
                    None => Ok(None),
                }
            }
        };
        Ok(shown?.is_some())
    }
}

/// The time that this thread has used the processor. Zero if the kernel does not tell.
fn processor_time() -> Duration {
    let duration = |time: TimeVal| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
        let rest = u64::try_from(time.tv_usec()).unwrap_or_default();
        Duration::from_secs(seconds) + Duration::from_micros(rest)
    };
    let usage = getrusage(UsageWho::RUSAGE_THREAD);
    usage.map_or(Duration::ZERO, |usage| {
        duration(usage.user_time()) + duration(usage.system_time())
    })
}

/// Names of generated scripts begin so, and end with their seed.
const GENERATED: &str = "seed ";

/// Bytes without detection matter least to protocols that are detected.
fn places(protocol: Protocol) -> impl Iterator<Item = Place> {
    let all = Place::ALL.into_iter().rev();
    let (opaque, detected): (Vec<_>, Vec<_>) = all
        .filter(|place| *place != Place::DIRECT)
        .partition(|place| place.is_opaque);
    let opaque = opaque
        .into_iter()
        .filter(move |_| protocol == Protocol::Tcp);
    detected.into_iter().chain(opaque)
}

/// Plays a script with the bug, and, if that run differs or breaks an invariant, without it.
/// Returns the difference, if there is none without the bug.
fn shows(bug: Bug, direct: &mut Runs<'_>, setting: &Setting) -> Result<Option<String>, SetUpError> {
    let judged = {
        let _planted = plant(bug);
        panic::catch_unwind(AssertUnwindSafe(|| direct.judge(setting, MAX_RUNS)))
    };
    let (changes, broken) = match judged {
        Ok(judged) => judged?,
        // The world's own task has panicked. Complete direct runs are kept.
        Err(_panic) => (Vec::new(), vec!["panic".to_owned()]),
    };
    let what = match (changes.first(), broken.first()) {
        (Some(change), _) => change.key.to_string(),
        (None, Some(broken)) => broken.clone(),
        (None, None) => return Ok(None),
    };
    let (changes, broken) = direct.judge(setting, check::MAX_RUNS)?;
    let is_sound = changes.is_empty() && broken.is_empty();
    Ok(is_sound.then_some(what))
}
