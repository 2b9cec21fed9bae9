//! `--node`: plays a sample of the corpus on sockets of the kernel, between pods of a local node,
//! and compares each run with simulated runs at the same place.

use std::io;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use mesh_local::node_paths::{Name, NodePaths};
use mesh_simulator::check::{MAX_RUNS, Place, Runs, mesh_changes};
use mesh_simulator::corpus::Named;
use mesh_simulator::facts::{self, Change, Facts};
use mesh_simulator::pods::{self, Pod};
use mesh_simulator::report::value;
use mesh_simulator::script::{Script, Step};
use mesh_simulator::world::Position;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;
use xtask::print_lines;

/// Where runs on a node have their proxies: its ports are not opaque.
const PLACES: [Position; 4] = Position::ALL;

/// Scripts that pause longer in all, in milliseconds, are not played: here a pause takes its time.
const MAX_PAUSES: u64 = 10_000;

/// A run that differs is played again, so that it differs this many times before it counts. A busy
/// machine delays peers longer than any simulated network: a client that is silent for longer than
/// the proxy waits for it, for example, makes the proxy ask the server.
const ROUNDS: usize = 3;

/// Runs start one after the other, so that they do not delay each other.
const BETWEEN_STARTS: Duration = Duration::from_millis(50);

/// The server's port of the first run; each run has another one.
const FIRST_PORT: u16 = 20_000;

/// The scripts of a seed's sample that take little time, and do not change the mesh.
pub(crate) fn draw(mut scripts: Vec<Named>, count: usize, seed: u64) -> Vec<Named> {
    scripts.retain(|named| {
        pauses(&named.script) <= MAX_PAUSES && mesh_changes(&named.script).is_empty()
    });
    scripts.shuffle(&mut SmallRng::seed_from_u64(seed));
    scripts.truncate(count);
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    scripts
}

fn pauses(script: &Script) -> u64 {
    let steps = script.parts().flatten();
    let pauses = steps.map(|step| match step {
        Step::Pause(milliseconds) => *milliseconds,
        _ => 0,
    });
    pauses.sum()
}

/// Plays scripts at each place. Returns whether all agree with the simulation.
pub(crate) fn play(node: &Name, scripts: &[Named], seed: u64) -> anyhow::Result<bool> {
    let pods = Pods::find(node)?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start a runtime")?;
    let tasks = LocalSet::new();
    let mut ports = FIRST_PORT..=u16::MAX;
    let at_all = |named| PLACES.map(|position| (named, position));
    let mut runs: Vec<(&Named, Position)> = scripts.iter().flat_map(at_all).collect();
    let mut reports = Vec::new();
    for _ in 0..ROUNDS {
        let observed = tasks.block_on(&runtime, play_all(&pods, &runs, &mut ports))?;
        let mut differing = Vec::new();
        reports.clear();
        for ((named, position), facts) in runs.into_iter().zip(observed) {
            let place = Place::detecting(position);
            let changes = changes(&named.script, seed, place, &facts)?;
            if !changes.is_empty() {
                differing.push((named, position));
                reports.extend(report(&named.name, place, &changes));
            }
        }
        runs = differing;
    }
    reports.push(format!(
        "seed {seed}: {} scripts at {} places on the node {node}, {} runs differ from the simulation",
        scripts.len(),
        PLACES.len(),
        runs.len(),
    ));
    print_lines(&reports)?;
    Ok(runs.is_empty())
}

/// The pairs of client and server: one in the mesh, one outside it.
struct Pods {
    meshed: [Rc<Pod>; 2],
    plain: [Rc<Pod>; 2],
}

impl Pods {
    fn find(node: &Name) -> anyhow::Result<Self> {
        let node = NodePaths::new(node.clone());
        let pair = |namespace| -> anyhow::Result<[Rc<Pod>; 2]> {
            let find = |name| Pod::find(&node, namespace, name);
            Ok([Rc::new(find("client")?), Rc::new(find("server")?)])
        };
        Ok(Self {
            meshed: pair("shop")?,
            plain: pair("plain")?,
        })
    }

    fn at(&self, position: Position) -> [Rc<Pod>; 2] {
        let pair = |is_meshed| if is_meshed { &self.meshed } else { &self.plain };
        let [client, _] = pair(position.has_client_proxy());
        let [_, server] = pair(position.has_server_proxy());
        [Rc::clone(client), Rc::clone(server)]
    }
}

/// Plays scripts at the same time. Returns the facts of each.
async fn play_all(
    pods: &Pods,
    runs: &[(&Named, Position)],
    ports: &mut RangeInclusive<u16>,
) -> anyhow::Result<Vec<Facts>> {
    let mut started = Vec::new();
    for (named, position) in runs {
        let port = ports.next().context("no port is left")?;
        let (script, pods) = (named.script.clone(), pods.at(*position));
        started.push(spawn_local(async move {
            let observed = pods::play(&script, pods, port).await?;
            io::Result::Ok(facts::of_run(&observed, script.protocol))
        }));
        sleep(BETWEEN_STARTS).await;
    }
    let mut observed = Vec::new();
    for (run, (named, position)) in started.into_iter().zip(runs) {
        let facts = run.await.context("a run has panicked")?;
        let place = Place::detecting(*position);
        observed.push(facts.with_context(|| format!("play {} at {place}", named.name))?);
    }
    Ok(observed)
}

/// How a run differs from the most similar simulated one at its place. A run that is transparent
/// does not: it may have other timing than any simulated run.
fn changes(script: &Script, seed: u64, place: Place, facts: &Facts) -> anyhow::Result<Vec<Change>> {
    let mut direct = Runs::new(script, seed, Place::DIRECT);
    if direct
        .unexplained(place.position, &[], facts, MAX_RUNS)?
        .is_empty()
    {
        return Ok(Vec::new());
    }
    Ok(Runs::new(script, seed, place).unlike(facts)?)
}

fn report(name: &str, place: Place, changes: &[Change]) -> Vec<String> {
    let mut lines = vec![format!("✗ {name} at {place}")];
    lines.extend(changes.iter().map(|change| {
        let (simulated, real) = (value(change.direct.as_ref()), value(change.mesh.as_ref()));
        format!("  {}: simulated {simulated}, real {real}", change.key)
    }));
    lines
}
