//! [`run`]: plays a script on a simulated network, and returns what its peers have observed.

mod bounds;
mod panics;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use mesh_proxy::simulation::{
    self, CHANGE_TIME, Change, Fault, Feature, MIRROR, MOVED_SERVER, Placement, SetUpError, place,
};
pub use mesh_proxy::simulation::{Position, Settings};
use mesh_simnet::{Conditions, Event, Network, Role, usage};
use tokio::task::spawn_local;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::message::{self, Message};
use crate::observation::{BegunStep, Observation, Observed};
use crate::peer::{ACCEPTED, Hosts, Peers, Receiver, Socket};
use crate::script::{Protocol, Script, Server};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const PORT: u16 = 80;

/// Everything in flight at the end of the proxies arrives within this time.
const AFTER_SHUTDOWN: Duration = Duration::from_secs(10);
/// The longest run. Scripts that pause may take this long.
const MAX_TIME: Duration = Duration::from_secs(4 * 3600);

/// What differs between two runs of one script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Determines every choice of the network within its conditions, and of the proxies.
    pub seed: u64,
    pub conditions: Conditions,
    pub position: Position,
    /// How the proxies treat connections.
    pub settings: Settings,
    /// What happens to the control plane when the server accepts its first connection: the proxies
    /// know then what they need.
    pub fault: Option<Fault>,
}

/// A run of a script.
#[derive(Clone, Debug)]
pub struct Run {
    pub observed: Observed,
    /// The copies of requests that a mirror has read.
    pub copies: Vec<Message>,
    /// What has happened on the network, if the run was to keep it.
    pub events: Vec<Event>,
    /// The steps that the peers have begun, in their order.
    pub steps: Vec<BegunStep>,
    /// The same for every run with the same script and setting.
    pub hash: u64,
    /// The invariants of docs/simulation.md that the run has broken.
    pub broken: Vec<String>,
}

/// Plays a script. `keeps_events` keeps what happens on the network, for a diagram.
///
/// # Errors
///
/// A variable of the settings is invalid.
pub fn run(script: &Script, setting: &Setting, keeps_events: bool) -> Result<Run, SetUpError> {
    let recording = panics::record();
    let mut run = simulation::run(setting.seed, async || {
        play(script, setting, keeps_events).await
    })?;
    run.broken.extend(recording.take());
    Ok(run)
}

async fn play(script: &Script, setting: &Setting, keeps_events: bool) -> Result<Run, SetUpError> {
    let network = Network::new(setting.seed, setting.conditions.clone(), keeps_events);
    let carrier = network.clone();
    spawn_local(async move { carrier.run().await });
    let server = SocketAddr::new(SERVER, PORT);
    let placement = place(
        &network,
        CLIENT,
        server,
        setting.position,
        &setting.settings,
    )?;
    let made: Rc<Made> = Rc::default();
    let mut listeners = Vec::new();
    if script.server != Server::Refuses {
        for host in [SERVER, MOVED_SERVER.into()] {
            let process = network.process(host, Role::Application);
            // The hosts have no other listeners.
            listeners.extend(process.listen(PORT).map(|socket| Listener {
                socket,
                before_move: (host == SERVER).then(|| Rc::clone(&made)),
            }));
        }
    }
    let mirrors = setting.settings.features.contains(&Feature::Mirror);
    let mirror = mirrors.then(|| MirrorHost::start(&network, script.protocol, setting.seed));
    let peers = Peers::start(script, Applications(network.clone()), listeners);
    change_mesh(&placement, &peers, &made);
    let fault = placement.mesh().zip(setting.fault);
    let fault = fault.map(|(mesh, fault)| {
        let signals = peers.signals();
        AbortOnDropHandle::new(spawn_local(async move {
            signals.wait(ACCEPTED).await;
            mesh.strike(fault).await;
        }))
    });
    let held = usage::start();
    peers.settle(MAX_TIME).await;
    let used = usage::get();
    let mut broken = forwarded_despite_denial(&made, peers.received()());
    broken.extend(bounds::exceeded(script, setting, held, used));
    let steps = peers.signals().take_begun();
    let observed = peers.observe();
    let (hash, events) = network.trace(|trace| (trace.hash(), trace.events().to_vec()));
    if made.stale_connections.get() > 0 {
        broken.push("connections to the address before the move".to_owned());
    }
    if !setting.settings.is_opaque && !made.has_moved.get() {
        broken.extend(wrong_identities(setting.position, &observed.servers));
    }
    // It would keep its connections.
    let copies = mirror.map(MirrorHost::copies).unwrap_or_default();
    drop(fault);
    broken.extend(leaks(&network, placement).await);
    Ok(Run {
        observed,
        copies,
        events,
        steps,
        hash,
        broken,
    })
}

/// The host that gets copies of requests, as the seed draws it.
enum MirrorHost {
    /// It refuses connections.
    Refuses,
    /// It closes or keeps them, and reads nothing.
    Accepts {
        _accepting: AbortOnDropHandle<()>,
    },
    Reads(Receiver),
}

impl MirrorHost {
    fn start(network: &Network, protocol: Protocol, seed: u64) -> Self {
        let process = network.process(MIRROR.ip(), Role::Application);
        let listener = (!seed.is_multiple_of(4)).then(|| process.listen(MIRROR.port()));
        // The host has no other listener.
        let Some(Ok(socket)) = listener else {
            return Self::Refuses;
        };
        let accept = |socket: mesh_simnet::Listener, keeps: bool| {
            AbortOnDropHandle::new(spawn_local(async move {
                let mut kept = Vec::new();
                loop {
                    let accepted = socket.accept().await;
                    kept.extend(keeps.then_some(accepted));
                }
            }))
        };
        match seed % 4 {
            rest @ (1 | 2) => Self::Accepts {
                _accepting: accept(socket, rest == 2),
            },
            _ => {
                let before_move = None;
                let listener = Listener {
                    socket,
                    before_move,
                };
                Self::Reads(Receiver::start::<Applications>(protocol, listener))
            }
        }
    }

    /// The copies that it has read. Closes its connections.
    fn copies(self) -> Vec<Message> {
        match self {
            Self::Refuses | Self::Accepts { .. } => Vec::new(),
            Self::Reads(receiver) => {
                let observations = receiver.observe().into_iter();
                observations.flat_map(|it| it.messages).collect()
            }
        }
    }
}

/// The changes of the mesh that invariants depend on.
#[derive(Default)]
struct Made {
    /// The bytes that servers had received when the policy denied their clients.
    received_before_denial: Cell<Option<usize>>,
    /// The server is outside the mesh.
    has_moved: Cell<bool>,
    /// All proxies have received the server's address outside the mesh.
    is_move_known: Cell<bool>,
    /// Connections to the address before the move that came after this.
    stale_connections: Cell<usize>,
}

/// Changes the mesh when a script sets the signal that is named after the change.
fn change_mesh(placement: &Placement, peers: &Peers, made: &Rc<Made>) {
    let make = Rc::new(RefCell::new(placement.changes()));
    for change in Change::ALL {
        let (signals, make) = (peers.signals(), Rc::clone(&make));
        let (received, made) = (peers.received(), Rc::clone(made));
        spawn_local(async move {
            signals.wait(change.as_str()).await;
            (make.borrow_mut())(change);
            match change {
                Change::Deny => {
                    sleep(CHANGE_TIME).await;
                    made.received_before_denial.set(Some(received()));
                }
                Change::Move => {
                    made.has_moved.set(true);
                    sleep(CHANGE_TIME).await;
                    made.is_move_known.set(true);
                }
                Change::Retry | Change::Drain => {}
            }
        });
    }
}

/// What servers have received after the policy denied their clients.
fn forwarded_despite_denial(made: &Made, received: usize) -> Vec<String> {
    let before = made.received_before_denial.get();
    let forwarded = before.map(|before| received - before);
    let forwarded = forwarded.filter(|bytes| *bytes > 0);
    let text = forwarded.map(|bytes| format!("{bytes} bytes forwarded despite the policy"));
    text.into_iter().collect()
}

/// Requests whose client the server's proxy does not name as it should: each by the identity of the
/// client's proxy, if it has one, and none otherwise. Requests have no name where the proxy has
/// only forwarded bytes.
fn wrong_identities(position: Position, servers: &[Observation]) -> Vec<String> {
    if !position.has_server_proxy() {
        return Vec::new();
    }
    let requests = servers.iter().flat_map(|server| &server.messages);
    let requests = requests.filter(|request| !request.fields.is_empty());
    let named: Vec<Option<&[u8]>> = requests
        .map(|request| message::value(&request.fields, "l5d-client-id"))
        .collect();
    let expected = position
        .has_client_proxy()
        .then_some(simulation::CLIENT_ID.as_bytes());
    let is_anonymous = named.iter().all(Option::is_none);
    let wrong = named
        .iter()
        .filter(|name| **name != expected && !is_anonymous);
    wrong
        .map(|name| {
            let name = String::from_utf8_lossy(name.unwrap_or_default());
            format!("a request of the client {name:?}")
        })
        .collect()
}

/// Shuts the proxies down. Returns what remains then.
async fn leaks(network: &Network, placement: Placement) -> Vec<String> {
    let mut leaks = placement.stop().await;
    sleep(AFTER_SHUTDOWN).await;
    let connections = network.open_connections();
    if connections > 0 {
        leaks.push(format!("{connections} connections"));
    }
    leaks
}

/// The hosts of client and server, whatever proxies are between them.
#[derive(Clone)]
struct Applications(Network);

/// A listening application.
struct Listener {
    socket: mesh_simnet::Listener,
    /// For the address that the server moves away from.
    before_move: Option<Rc<Made>>,
}

impl Hosts for Applications {
    type Listener = Listener;

    async fn connect(&self) -> io::Result<Socket> {
        let process = self.0.process(CLIENT, Role::Application);
        let stream = process.connect(SocketAddr::new(SERVER, PORT)).await?;
        Ok(Socket::Simulated(stream))
    }

    async fn accept(listener: &Listener) -> io::Result<Socket> {
        let accepted = listener.socket.accept().await;
        if let Some(made) = &listener.before_move
            && made.is_move_known.get()
        {
            made.stale_connections.set(made.stale_connections.get() + 1);
        }
        Ok(Socket::Simulated(accepted.stream))
    }
}
