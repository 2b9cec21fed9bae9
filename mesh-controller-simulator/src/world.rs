//! [`run`]: starts the API server, the controllers and their clients, and plays a script.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use mesh_control_plane::simulation::Served;
use mesh_simnet::{Conditions, Fault, Network, Pieces, Role};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::api::{ApiServer, Received};
use crate::client::{Client, TARGETS};
use crate::oracle::{self, Problem};
use crate::process::{API_SERVER, Controlled, Controller, Exits, PROCESSES, REPLACEABLE, host};
use crate::record::{Record, Reviewed, Seen};
use crate::script::{Action, Script};
use crate::store::Id;
use crate::{objects, review};

/// What a run has shown.
#[derive(Debug)]
pub struct Run {
    /// The same for every run of the same script.
    pub hash: u64,
    /// The broken promises.
    pub problems: Vec<Problem>,
    pub record: Record,
}

/// How long after the last fault every client has the state of a fresh controller, and every object
/// its status: the longest silence of a watch or a response that is waited for (65 s), the longest
/// delay of a retry (15 s), the interval of checks for an older state (30 s), a new holder of the
/// Lease (15 s), a comparison of all statuses (10 s), and the requests themselves.
pub const BOUND: Duration = Duration::from_secs(150);

/// The fresh ones at the end.
const FRESH: [Controller; 3] = [
    Controller::Destination,
    Controller::Policy,
    Controller::Injector,
];

/// How long a fresh controller may take to serve.
const START: Duration = Duration::from_secs(20);

/// How long after the old writers were killed the fresh one has compared all statuses.
const TAKE_OVER: Duration = Duration::from_secs(40);

/// Runs a script in a world of its own.
///
/// # Panics
///
/// The world panics, or is called within a runtime.
pub fn run(script: &Script) -> Run {
    let record = mesh_simnet::world::run(script.seed, async || play(script).await);
    let problems = oracle::judge(&record);
    Run {
        hash: hash(&record),
        problems,
        record,
    }
}

async fn play(script: &Script) -> Record {
    let start = Instant::now();
    let mut random = SmallRng::seed_from_u64(script.seed ^ 0x5eed);
    let network = Network::new(script.seed, conditions(&mut random), false);
    let carrying = network.clone();
    spawn_local(async move { carrying.run().await });
    let api = ApiServer::new(script.seed, objects::fixed());
    spawn_local(
        api.clone()
            .serve(network.process(API_SERVER.into(), Role::Application)),
    );
    let exits = Exits::default();
    let process = |(number, controller)| {
        api.name_process(host(number), number);
        Controlled::new(&network, number, controller, start, &exits)
    };
    let processes: Vec<Controlled> = PROCESSES.into_iter().enumerate().map(process).collect();
    let mut steps = script.steps.iter().peekable();
    while let Some(first) = steps.next_if(|step| step.at.is_zero()) {
        act(&first.action, &api, &network, &processes);
    }
    processes.iter().for_each(Controlled::start);
    let clients: Vec<Client> = processes
        .iter()
        .flat_map(|it| subscribe(it, start))
        .collect();
    spawn_local(review::keep_reviewing(processes[REPLACEABLE - 1].clone()));
    for step in steps {
        sleep_until(start + step.at).await;
        act(&step.action, &api, &network, &processes);
    }
    sleep_until(start + script.end() + BOUND).await;

    let fresh = FRESH.into_iter().zip(REPLACEABLE..);
    let fresh: Vec<Controlled> = fresh.map(|(it, number)| process((number, it))).collect();
    fresh.iter().for_each(Controlled::start);
    let judges: Vec<Client> = fresh.iter().flat_map(|it| subscribe(it, start)).collect();
    sleep(START).await;
    let ends = clients.iter().map(|client| {
        let same = judges.iter().find(|judge| judge.target == client.target);
        (
            client.target,
            client.process,
            client.state(),
            same.and_then(Client::state),
        )
    });
    let ends = ends.collect();
    let all = || processes.iter().chain(&fresh);
    let mut reviews = Vec::new();
    for injector in all().filter(|it| it.controller() == Controller::Injector) {
        reviews.push((injector.number(), review_now(injector).await));
    }
    let judged = reviews.pop().and_then(|(_, review)| review);
    let reviews = reviews
        .into_iter()
        .map(|(number, review)| (number, review, judged.clone()))
        .collect();
    let unready = all().filter(|it| !it.is_ready()).map(Controlled::number);
    let unready = unready.collect();
    let taken_over = start.elapsed();
    let writers = processes.iter();
    writers
        .filter(|it| it.controller() != Controller::Injector)
        .for_each(Controlled::kill);
    sleep(TAKE_OVER).await;
    let seen = clients.iter().chain(&judges).map(|client| Seen {
        target: client.target,
        process: client.process,
        observed: client.observed(),
    });
    let exits = exits.borrow().clone();
    let starts = all().flat_map(|it| it.starts().into_iter().map(move |at| (it.number(), at)));
    let starts = starts.collect();
    Record {
        changes: api.history().changes().to_vec(),
        requests: api.requests().clone(),
        claims: api.claims().clone(),
        writes: api.writes().clone(),
        restorations: api.restorations(),
        clients: seen.collect(),
        ends,
        reviews,
        exits,
        starts,
        unready,
        taken_over,
        network: network.trace(mesh_simnet::Trace::hash),
    }
}

async fn review_now(process: &Controlled) -> Option<Reviewed> {
    let Served::Webhook(reviewer) = process.serving()?.served else {
        return None;
    };
    let review = review::review(&*reviewer);
    timeout(Duration::from_secs(10), review).await.ok()
}

fn subscribe(process: &Controlled, start: Instant) -> Vec<Client> {
    let own = TARGETS.iter().filter(|(of, _)| *of == process.controller());
    own.map(|(_, target)| {
        let client = Client::new(*target, process);
        spawn_local(client.clone().run(process.clone(), start));
        client
    })
    .collect()
}

/// The network is mostly good: the simulator of proxies covers bad ones.
fn conditions(random: &mut SmallRng) -> Conditions {
    let pieces = match random.random_range(0..8) {
        0 => Pieces::Mixed,
        1..3 => Pieces::UpTo(4096),
        _ => Pieces::Whole,
    };
    let delay = match random.random_range(0..3) {
        0 => 0..=0,
        1 => 0..=5,
        _ => 1..=200,
    };
    Conditions {
        pieces,
        delay,
        ..Conditions::IDEAL
    }
}

fn act(action: &Action, api: &ApiServer, network: &Network, processes: &[Controlled]) {
    let id = |object: &usize| Id::of(&objects::object(*object, 0));
    match action {
        Action::Write {
            object,
            generation,
            skipped,
        } => api.write(objects::object(*object, *generation), *skipped),
        Action::Delete { object, skipped } => api.delete(&id(object), *skipped),
        Action::Touch { object } => api.touch(&id(object)),
        Action::Respond {
            to,
            with,
            percent,
            lasting,
        } => api.answer_for(*to, *with, *percent, *lasting),
        Action::CutWatches { how, percent } => api.cut_watches(*how, *percent),
        Action::Compact => api.compact(),
        Action::Restart { down, undone } => api.restart(*down, *undone),
        Action::Lag { undone, lasting } => api.lag(*undone, *lasting),
        Action::Partition { process, lasting } => {
            let host = host(*process);
            network.set_fault(host, Some(Fault::Vanished));
            let (network, lasting) = (network.clone(), *lasting);
            spawn_local(async move {
                sleep(lasting).await;
                network.set_fault(host, None);
            });
        }
        Action::Kill { process, down } | Action::Stop { process, down } => {
            let (process, down) = (processes[*process].clone(), *down);
            match action {
                Action::Stop { .. } => process.terminate(),
                _ => process.kill(),
            }
            spawn_local(async move {
                sleep(down).await;
                process.start();
            });
        }
        Action::Unserve { resource, lasting } => api.unserve(*resource, *lasting),
    }
}

fn hash(record: &Record) -> u64 {
    let mut hasher = DefaultHasher::new();
    record.network.hash(&mut hasher);
    for Received {
        process,
        class,
        path,
        sent,
        at,
        outcome,
    } in &record.requests
    {
        (process, class, path, sent, at, outcome).hash(&mut hasher);
    }
    for seen in &record.clients {
        seen.observed.hash(&mut hasher);
    }
    for claim in &record.claims {
        (claim.at, claim.sent, claim.process, claim.holds).hash(&mut hasher);
    }
    for write in &record.writes {
        (write.at, write.sent, write.process, write.id.to_string()).hash(&mut hasher);
    }
    hasher.finish()
}
