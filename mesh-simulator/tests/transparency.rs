//! Client and server observe the same through the proxies as without them, whatever the network
//! does within its conditions.

#![expect(
    clippy::expect_used,
    reason = "a test panics when its requirements are not met"
)]

use std::collections::BTreeSet;
use std::num::NonZero;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use mesh_proxy::simulation::Feature;
use mesh_simulator::check::{Features, MeshOptions, Place, check, mesh_changes, rows, setting};
use mesh_simulator::facts::{self, Aspect};
use mesh_simulator::observation::{Ending, Observed};
use mesh_simulator::report::value;
use mesh_simulator::script::{Script, Side};
use mesh_simulator::{corpus, differences, generate, world};

/// Generated scripts that are always played, each at every place. `cargo xtask simulate` plays
/// others.
const SEEDS: Range<u64> = 0..40;

fn named() -> Vec<corpus::Named> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    corpus::read(&directory, "*").expect("the corpus is valid")
}

/// The differences of a script at any place, with all that is needed to see them again.
fn difference(name: &str, script: &Script, seed: u64) -> Option<String> {
    let options = MeshOptions {
        features: Features::Drawn,
        // In a quarter of the runs.
        has_faults: seed.is_multiple_of(4),
    };
    let failure = check(script, seed, &Place::ALL, &options)
        .expect("a set-up")
        .failure?;
    let changes = failure.changes.iter().map(|change| {
        let [left, right] = [&change.direct, &change.mesh].map(|it| value(it.as_ref()));
        format!("{}: {left} ≠ {right}\n", change.key)
    });
    let changes: String = changes.collect();
    let broken = failure.broken.join(", ");
    let fault = failure.setting.fault;
    let at = failure.place;
    Some(format!(
        "{name}, seed {seed}, {at}, fault {fault:?}:\n{changes}{broken}\n{script}"
    ))
}

/// Plays scripts with their seeds on all processors, and fails with their differences. A world has
/// one thread.
fn assert_agree(scripts: &[(String, Script, u64)]) {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let play = || {
        let mut differences = Vec::new();
        while let Some((name, script, seed)) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
            differences.extend(difference(name, script, *seed));
        }
        differences
    };
    let differences: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(play)).collect();
        let played = threads.into_iter().map(|thread| thread.join());
        played
            .flat_map(|differences| differences.expect("a world ends"))
            .collect()
    });
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn scripts_of_the_corpus_agree_with_direct_runs() {
    let named = named();
    assert!(named.len() >= 300, "{}", named.len());
    let scripts = (0..).zip(named);
    let scripts: Vec<_> = scripts
        .map(|(seed, named)| (named.name, named.script, seed))
        .collect();
    assert_agree(&scripts);
}

#[test]
fn generated_scripts_agree_with_direct_runs() {
    let scripts: Vec<_> = SEEDS
        .map(|seed| ("generated".to_owned(), generate::generate(seed), seed))
        .collect();
    assert_agree(&scripts);
}

#[test]
fn same_script_and_setting_have_the_same_trace() {
    for (n, seed) in SEEDS.step_by(4).enumerate() {
        let script = generate::generate(seed);
        let place = Place::ALL[n % Place::ALL.len()];
        let setting = setting(&script, seed, 1, place);
        let run = || world::run(&script, &setting, false).expect("a set-up");
        let (first, second) = (run(), run());
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.observed, second.observed, "seed {seed}");
    }
}

/// A script whose peers wait for something that never happens shows less than it says. A server may
/// be ready for more requests than a connection has.
#[test]
fn every_step_of_the_corpus_is_played() {
    let mut stopped = Vec::new();
    for named in named() {
        if !mesh_changes(&named.script).is_empty() {
            // A direct run knows no such change.
            continue;
        }
        let run = world::run(
            &named.script,
            &setting(&named.script, 0, 0, Place::DIRECT),
            false,
        );
        let facts = facts::of_run(&run.expect("a set-up").observed, named.script.protocol);
        let steps = facts.iter().filter(|(key, step)| {
            let step = String::from_utf8_lossy(step);
            let is_ready = key.peer == Side::Server && step.contains(": wait message");
            key.aspect == Aspect::StoppedAt && !is_ready
        });
        let steps = steps.map(|(key, step)| format!("{}: {key} {}", named.name, value(Some(step))));
        stopped.extend(steps);
    }
    assert_eq!(stopped, Vec::<String>::new());
}

/// A row that no script shows is not a difference any more, or was never one.
#[test]
fn each_row_is_shown_by_its_script() {
    let mut missing = Vec::new();
    for row in differences::all() {
        let named = named().into_iter().find(|named| named.name == row.script);
        let named = named.unwrap_or_else(|| panic!("{} is not in the corpus", row.script));
        let shown = |features| rows(&named.script, &Features::These(features)).expect("a set-up");
        let shown = [Vec::new(), Feature::ALL.to_vec()].map(shown);
        let shown: BTreeSet<&str> = shown.into_iter().flatten().collect();
        if !shown.contains(row.name) {
            missing.push(format!("{}: {} shows {shown:?}", row.name, row.script));
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

/// What the peers of a script observe without a mesh.
fn direct_run(script: &Script) -> Observed {
    let setting = setting(script, 0, 0, Place::DIRECT);
    world::run(script, &setting, false)
        .expect("a set-up")
        .observed
}

/// Each request gets the next response, on the connection where it arrives.
#[test]
fn a_server_may_respond_by_request() {
    let request = "  send \"GET / HTTP/1.1\\r\\n\\r\\n\"\n  wait message\n";
    let second = format!("  wait signal first\n{request}{request}");
    let response = |status: &str| {
        format!("response:\n  wait head\n  send \"HTTP/1.1 {status}\\r\\n\\r\\n\"\n")
    };
    let text = format!(
        "protocol http1\nclient:\n{request}  signal first\n  close\nclient:\n{second}{}{}",
        response("204 A"),
        response("304 B"),
    );
    let observed = direct_run(&Script::parse(&text).expect("a script"));
    let statuses = observed.clients.iter().map(|client| {
        let statuses = client.messages.iter();
        let fields = statuses.filter_map(|it| it.fields.first());
        fields.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    });
    let statuses: Vec<_> = statuses.collect();
    assert_eq!(statuses, [vec![b"204".to_vec()], vec![b"304".to_vec(); 2]]);
    // A server closes a connection without another request.
    let endings = observed.servers.iter().map(|server| server.ending);
    assert_eq!(Vec::from_iter(endings), [Ending::Fin, Ending::Open]);
}

#[test]
fn a_server_that_answers_otherwise_is_a_difference() {
    let text = "protocol tcp\nclient:\n  send \"a\"\n  wait end\nserver:\n  wait bytes 1\n";
    let script = |end: &str| Script::parse(&format!("{text}{end}")).expect("a script");
    let facts = |script: &Script| facts::of_run(&direct_run(script), script.protocol);
    let direct = facts(&script("  send \"b\"\n  close\n"));
    for other in [
        "  close\n",
        "  send \"c\"\n  close\n",
        "  send \"b\"\n  reset\n",
    ] {
        let changes = mesh_simulator::compare::changes(&direct, &facts(&script(other)));
        assert!(!changes.is_empty(), "{other}");
    }
}

/// The corpus has scripts that change the mesh, which
/// `scripts_of_the_corpus_agree_with_direct_runs` plays.
#[test]
fn changes_of_the_mesh_are_played() {
    let named = named().into_iter();
    let changing = named.filter(|named| !mesh_changes(&named.script).is_empty());
    let count = changing.count();
    assert!(count >= 8, "{count}");
}

/// A client that expects what does not happen, and bytes that the policy does not allow, are
/// failures.
#[test]
fn wrong_expectation_of_a_changed_mesh_fails() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let named = corpus::read(&directory, "mesh/denied-request").expect("the corpus is valid");
    let text = named[0].script.to_string().replace("403", "404");
    let script = Script::parse(&text).expect("a script");
    let checked = check(&script, 0, &[Place::ALL[2]], &MeshOptions::default()).expect("a set-up");
    let failure = checked.failure;
    let failure = failure.expect("the request is denied");
    assert_eq!(failure.changes[0].key.aspect, Aspect::StoppedAt);
}
