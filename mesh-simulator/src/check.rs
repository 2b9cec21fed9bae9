//! [`check`]: compares runs of a script under other conditions, or through the mesh, with direct
//! runs of it.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use mesh_proxy::simulation::{self, Fault, Feature, SetUpError};
use mesh_simnet::{Conditions, Pieces};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::compare::{self, Case};
use crate::facts::{self, Aspect, Change, Facts};
use crate::requests::Requests;
use crate::script::{Protocol, Script, Side, Step};
use crate::world::{self, Position, Run, Setting, Settings};
use crate::{copies, retries};

/// Runs that every other run is compared with: the first under ideal conditions.
const FIRST_RUNS: u64 = 3;
/// The most of these runs, before a difference counts: the network's choices decide rare ones.
pub const MAX_RUNS: u64 = 40;

/// Pieces of a run: a megabyte in single bytes would take seconds.
const MAX_PIECES: u64 = 5_000;

/// A delay of this many milliseconds is long.
const LONG_DELAY: u64 = 100;
/// The smallest buffers where delays are long: the messages of a handshake fit in. A run would end
/// before the proxies have connected otherwise.
const MIN_CAPACITY: usize = 4096;
/// Longer than on any network here. The defaults of a second and less are for the network of a
/// cluster, and a direct connection has no such limit.
const CONNECT_TIMEOUT: &str = "60s";

/// A difference that no row of the table allows.
#[derive(Clone, Debug)]
pub struct Failure {
    pub place: Place,
    pub setting: Setting,
    pub changes: Vec<Change>,
    /// The invariants that the run has broken.
    pub broken: Vec<String>,
}

/// The runs that [`check`] has made.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The number of runs, direct ones included.
    pub exchanges: u64,
    /// The first run that differs from direct ones, breaks an invariant or leaves something behind.
    pub failure: Option<Failure>,
}

/// Runs of one script at one place, made when they are needed.
#[derive(Debug)]
pub struct Runs<'a> {
    script: &'a Script,
    requests: Requests,
    seed: u64,
    place: Place,
    facts: Vec<Facts>,
    /// The number of runs, with the ones that were compared.
    exchanges: u64,
}

impl<'a> Runs<'a> {
    pub fn new(script: &'a Script, seed: u64, place: Place) -> Self {
        Self {
            script,
            requests: Requests::of(script),
            seed,
            place,
            facts: Vec::new(),
            exchanges: 0,
        }
    }

    pub fn script(&self) -> &'a Script {
        self.script
    }

    /// At least `count` runs.
    fn run(&mut self, count: u64) -> Result<(), SetUpError> {
        for n in self.facts.len() as u64..count {
            let setting = setting(self.script, self.seed, n, self.place);
            let (_, facts) = self.play(&setting)?;
            self.facts.push(facts);
        }
        Ok(())
    }

    fn play(&mut self, setting: &Setting) -> Result<(Run, Facts), SetUpError> {
        self.exchanges += 1;
        let run = world::run(self.script, setting, false)?;
        let facts = facts::of_run(&run.observed, self.script.protocol);
        Ok((run, facts))
    }

    /// Plays the script in a setting. Returns the changes that nothing explains, and the invariants
    /// that are broken. The runs must be direct; one that differs is compared with `most` of them.
    ///
    /// # Errors
    ///
    /// A proxy cannot be set up.
    pub fn judge(
        &mut self,
        setting: &Setting,
        most: u64,
    ) -> Result<(Vec<Change>, Vec<String>), SetUpError> {
        let mesh_changes = mesh_changes(self.script);
        let is_read = self.script.protocol == Protocol::Tcp || !setting.settings.is_opaque;
        let has_effect = |it: &simulation::Change| is_read && it.has_effect(setting.position);
        if !mesh_changes.iter().all(has_effect) {
            return Ok((Vec::new(), Vec::new()));
        }
        let (run, facts) = self.play(setting)?;
        let features = &setting.settings.features;
        let mut broken = run.broken;
        broken.extend(retries::after_response(&self.requests, &run.observed));
        // Proxies that end close connections, which no direct run does.
        if setting.fault == Some(Fault::Drain) {
            return Ok((Vec::new(), broken));
        }
        if !run.copies.is_empty() {
            self.run(FIRST_RUNS)?;
            broken.extend(copies::broken(&self.requests, &self.facts, &run.copies));
        }
        let has_retries = features.contains(&Feature::Retries)
            || mesh_changes.contains(&simulation::Change::Retry);
        if has_retries {
            self.run(FIRST_RUNS)?;
            if retries::are_there(&self.requests, &facts) || retries::were_lost(&self.facts, &facts)
            {
                let most = retries::most(self.script, setting.position);
                let rules = retries::broken(&self.requests, most, &self.facts, &facts);
                broken.extend(rules);
                if mesh_changes.is_empty() {
                    return Ok((Vec::new(), broken));
                }
            }
        }
        let changes = match mesh_changes.as_slice() {
            [] => self.unexplained(setting.position, features, &facts, most)?,
            _ => incomplete(&facts),
        };
        Ok((changes, broken))
    }

    /// The changes of a run through the mesh that none of these runs, which are direct, shows, and
    /// no row allows.
    ///
    /// # Errors
    ///
    /// A proxy cannot be set up.
    pub fn unexplained(
        &mut self,
        position: Position,
        features: &[Feature],
        mesh: &Facts,
        most: u64,
    ) -> Result<Vec<Change>, SetUpError> {
        self.least_changes(most, |runs| {
            let case = Case {
                protocol: runs.script.protocol,
                position,
                features,
                requests: &runs.requests,
            };
            compare::unexplained(case, &runs.facts, mesh)
        })
    }

    /// The changes of another run that none of these runs shows.
    ///
    /// # Errors
    ///
    /// A proxy cannot be set up.
    pub fn unlike(&mut self, other: &Facts) -> Result<Vec<Change>, SetUpError> {
        self.least_changes(MAX_RUNS, |runs| compare::least_changes(&runs.facts, other))
    }

    fn least_changes(
        &mut self,
        most: u64,
        compare: impl Fn(&Self) -> Vec<Change>,
    ) -> Result<Vec<Change>, SetUpError> {
        let mut count = FIRST_RUNS;
        loop {
            self.run(count)?;
            let changes = compare(self);
            if changes.is_empty() || count >= most {
                return Ok(changes);
            }
            count = (count * 2).min(most);
        }
    }
}

/// The changes of the mesh that a script makes. Its direct runs cannot be compared with the others:
/// instead, its clients must complete all of their steps.
pub fn mesh_changes(script: &Script) -> Vec<simulation::Change> {
    let all = simulation::Change::ALL.into_iter();
    let is_made = |change: &simulation::Change| {
        let mut steps = script.parts().flatten();
        steps.any(|step| matches!(step, Step::Signal(name) if name == change.as_str()))
    };
    all.filter(is_made).collect()
}

/// The steps that clients have not completed.
fn incomplete(facts: &Facts) -> Vec<Change> {
    let steps = facts.iter().filter(|(key, _)| {
        key.peer == Side::Client && matches!(key.aspect, Aspect::StoppedAt | Aspect::Refused)
    });
    let steps = steps.map(|(key, step)| Change {
        key: key.clone(),
        direct: None,
        mesh: Some(step.clone()),
    });
    steps.collect()
}

/// Where the proxies of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub position: Position,
    /// Whether they forward bytes without detecting a protocol.
    pub is_opaque: bool,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let place = Self::ALL
            .into_iter()
            .find(|place| place.to_string() == name);
        place.ok_or_else(|| {
            let names = Self::ALL.map(|place| place.to_string()).join(", ");
            format!("places are {names}")
        })
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self.position {
            Position::Direct => "direct",
            Position::Outbound => "outbound",
            Position::Inbound => "inbound",
            Position::Both => "both",
        })?;
        f.write_str(if self.is_opaque { "-opaque" } else { "" })
    }
}

impl Place {
    pub const DIRECT: Self = Self::detecting(Position::Direct);

    /// Every place, direct first.
    pub const ALL: [Self; 7] = [
        Self::DIRECT,
        Self::at(Position::Outbound, false),
        Self::at(Position::Inbound, false),
        Self::at(Position::Both, false),
        Self::at(Position::Outbound, true),
        Self::at(Position::Inbound, true),
        Self::at(Position::Both, true),
    ];

    /// Proxies that detect the protocol.
    pub const fn detecting(position: Position) -> Self {
        Self::at(position, false)
    }

    const fn at(position: Position, is_opaque: bool) -> Self {
        Self {
            position,
            is_opaque,
        }
    }
}

/// The n-th setting of a seed: the first one is ideal, and the others are drawn.
pub fn setting(script: &Script, seed: u64, n: u64, place: Place) -> Setting {
    // Neighbouring seeds must not share their settings.
    let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n);
    let conditions = if n == 0 {
        Conditions::IDEAL
    } else {
        let mut drawn = Conditions::draw(&mut SmallRng::seed_from_u64(seed));
        drawn.pieces = at_most(drawn.pieces, MAX_PIECES, script);
        if *drawn.delay.end() >= LONG_DELAY {
            drawn.send_capacity = drawn.send_capacity.max(MIN_CAPACITY);
            drawn.receive_capacity = drawn.receive_capacity.max(MIN_CAPACITY);
        }
        drawn
    };
    Setting {
        seed,
        conditions,
        position: place.position,
        settings: Settings {
            client: variable("LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT"),
            server: variable("LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT"),
            is_opaque: place.is_opaque,
            features: Vec::new(),
        },
        fault: None,
    }
}

/// What the mesh of a run does beside forwarding, and what happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshOptions {
    pub features: Features,
    /// Whether the seed draws a fault for each place.
    pub has_faults: bool,
}

impl Default for MeshOptions {
    fn default() -> Self {
        Self {
            features: Features::Drawn,
            has_faults: false,
        }
    }
}

impl MeshOptions {
    /// Adds to the setting of a script what has an effect there.
    fn add_to(&self, script: &Script, setting: &mut Setting) {
        self.features.add_to(script, setting);
        // A script that changes the mesh needs its control plane.
        if self.has_faults && mesh_changes(script).is_empty() {
            let random = &mut SmallRng::seed_from_u64(setting.seed.rotate_left(32));
            let fault = Fault::ALL[random.random_range(0..Fault::ALL.len())];
            setting.fault = (setting.position != Position::Direct).then_some(fault);
        }
    }
}

/// The features that the mesh of a run has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Features {
    /// As the seed draws them: none in half of the runs.
    Drawn,
    These(Vec<Feature>),
}

/// The text for a mesh without features.
const NO_FEATURES: &str = "none";

impl FromStr for Features {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |name: &str| {
            let found = Feature::ALL.into_iter().find(|it| it.as_str() == name);
            found.ok_or_else(|| {
                let names = Feature::ALL.map(Feature::as_str).join(", ");
                format!("features are {names}, separated by commas; or {NO_FEATURES}")
            })
        };
        let names = text.split(',').filter(|_| text != NO_FEATURES);
        Ok(Self::These(names.map(parse).collect::<Result<_, _>>()?))
    }
}

impl Display for Features {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drawn => f.write_str("drawn"),
            Self::These(features) if features.is_empty() => f.write_str(NO_FEATURES),
            Self::These(features) => {
                let names: Vec<&str> = features.iter().map(|it| it.as_str()).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

impl Features {
    /// The features of the mesh of a run.
    pub fn of(setting: &Setting) -> Self {
        Self::These(setting.settings.features.clone())
    }

    /// Adds the features to the setting of a script that have an effect there.
    fn add_to(&self, script: &Script, setting: &mut Setting) {
        let features: Vec<Feature> = match self {
            Self::Drawn => {
                // The choices of the network must not depend on them.
                let mut random = SmallRng::seed_from_u64(!setting.seed);
                let share = if random.random() { 0.3 } else { 0.0 };
                let all = Feature::ALL.into_iter();
                all.filter(|_| random.random_bool(share)).collect()
            }
            Self::These(features) => features.clone(),
        };
        let is_opaque = setting.settings.is_opaque;
        // A client whose proxy refuses its protocol does not complete its steps.
        let is_served = script.protocol != Protocol::Tcp || mesh_changes(script).is_empty();
        let has_effect = |feature: &Feature| {
            feature.has_effect(setting.position)
                && (*feature != Feature::RateLimit || is_served && !is_opaque)
        };
        setting.settings.features = features.into_iter().filter(has_effect).collect();
    }
}

/// The setting of a time limit for connecting.
fn variable(name: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), CONNECT_TIMEOUT.to_owned())]
}

/// Makes pieces so large that the bytes of a script are not more than `most` pieces.
fn at_most(pieces: Pieces, most: u64, script: &Script) -> Pieces {
    let sent: u64 = script.parts().flatten().map(Step::sent).sum();
    let smallest = usize::try_from(sent / most).unwrap_or(usize::MAX);
    match pieces {
        Pieces::UpTo(largest) => Pieces::UpTo(largest.max(2 * smallest)),
        pieces => pieces,
    }
}

/// Plays a script at each place, under conditions that the seed draws, with a mesh of these
/// options, until a run fails.
///
/// # Errors
///
/// A proxy cannot be set up.
pub fn check(
    script: &Script,
    seed: u64,
    places: &[Place],
    options: &MeshOptions,
) -> Result<Checked, SetUpError> {
    let mut direct = Runs::new(script, seed, Place::DIRECT);
    let mut failure = None;
    for (place, setting) in settings(script, seed, places, options) {
        let (changes, broken) = direct.judge(&setting, MAX_RUNS)?;
        if !changes.is_empty() || !broken.is_empty() {
            failure = Some(Failure {
                place,
                setting,
                changes,
                broken,
            });
            break;
        }
    }
    Ok(Checked {
        exchanges: direct.exchanges,
        failure,
    })
}

/// The settings that check a script. A place has the same one, whatever other places are played.
pub fn settings(
    script: &Script,
    seed: u64,
    places: &[Place],
    options: &MeshOptions,
) -> impl Iterator<Item = (Place, Setting)> {
    let all = (MAX_RUNS..).zip(Place::ALL);
    all.filter(|(_, place)| places.contains(place))
        .map(move |(n, place)| {
            let mut setting = setting(script, seed, n, place);
            options.add_to(script, &mut setting);
            (place, setting)
        })
}

/// The names of the rows that a script needs at any place, under ideal conditions, with these
/// features.
///
/// # Errors
///
/// A proxy cannot be set up.
pub fn rows(script: &Script, features: &Features) -> Result<BTreeSet<&'static str>, SetUpError> {
    let play = |place| -> Result<(Facts, Vec<Feature>), SetUpError> {
        let mut setting = setting(script, 0, 0, place);
        features.add_to(script, &mut setting);
        let run = world::run(script, &setting, false)?;
        let facts = facts::of_run(&run.observed, script.protocol);
        Ok((facts, setting.settings.features))
    };
    let (direct, _) = play(Place::DIRECT)?;
    let requests = Requests::of(script);
    let mut rows = BTreeSet::new();
    for place in Place::ALL {
        let (facts, features) = play(place)?;
        let case = Case {
            protocol: script.protocol,
            position: place.position,
            features: &features,
            requests: &requests,
        };
        rows.extend(compare::rows(case, &direct, &facts));
    }
    Ok(rows)
}

/// Runs a script again as a failure has it: directly, and where it failed. Both runs keep their
/// events.
///
/// # Errors
///
/// A proxy cannot be set up.
pub fn replay(script: &Script, seed: u64, failure: &Failure) -> Result<[Run; 2], SetUpError> {
    let direct = world::run(script, &setting(script, seed, 0, Place::DIRECT), true)?;
    let other = world::run(script, &failure.setting, true)?;
    Ok([direct, other])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_named_and_drawn_by_the_seed() {
        let parse = |text: &str| text.parse::<Features>();
        let some = Features::These(vec![Feature::Tap, Feature::Mirror]);
        assert_eq!(parse("tap,mirror"), Ok(some.clone()));
        assert_eq!(some.to_string(), "tap,mirror");
        assert_eq!(parse("none"), Ok(Features::These(Vec::new())));
        let error = parse("tap,").expect_err("an empty name");
        assert!(error.contains("rate-limit"), "{error}");

        let script = Script::parse("protocol tcp\nclient:\nserver:\n").expect("a script");
        let drawn = |n, place| {
            let mut setting = setting(&script, 1, n, place);
            Features::Drawn.add_to(&script, &mut setting);
            setting.settings.features
        };
        let both: Vec<_> = (0..100).map(|n| drawn(n, Place::ALL[3])).collect();
        for feature in Feature::ALL {
            assert!(
                both.iter().any(|drawn| drawn.contains(&feature)),
                "{feature}"
            );
        }
        assert!(both.iter().filter(|drawn| drawn.is_empty()).count() > 30);
        assert!((0..100).all(|n| drawn(n, Place::DIRECT).is_empty()));
    }

    #[test]
    fn large_scripts_have_large_pieces() {
        let script = |size| {
            let text = format!("protocol tcp\nclient:\nsend \"x\" * {size}\nserver:\n");
            Script::parse(&text).expect("a script")
        };
        let pieces = |size| at_most(Pieces::UpTo(1), 100, &script(size));
        assert_eq!(pieces(99), Pieces::UpTo(1));
        assert_eq!(pieces(1000), Pieces::UpTo(20));
        let mixed = at_most(Pieces::Mixed, 100, &script(1000));
        assert_eq!(mixed, Pieces::Mixed);
    }
}
