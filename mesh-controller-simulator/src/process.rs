//! The processes of a world: controllers that are started, killed and stopped.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use clap::Parser as _;
use mesh_cluster::daemon::Daemon;
use mesh_cluster::simulation::Dial;
use mesh_control_plane::config::{Cli, Command};
use mesh_control_plane::simulation::{self, Served};
use mesh_runtime::admin::Readiness;
use mesh_runtime::signal::Termination;
use mesh_runtime::task::Supervisor;
use mesh_simnet::{Network, Role};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::PORT;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    Destination,
    Policy,
    Injector,
}

/// A process, and the ones that replace it. Clones are the same one.
#[derive(Clone)]
pub struct Controlled(Rc<Inner>);

struct Inner {
    number: usize,
    controller: Controller,
    dial: Dial,
    running: RefCell<Option<Running>>,
    /// When it was started, since the world began.
    starts: RefCell<Vec<Duration>>,
    exits: Exits,
}

/// Processes that have ended by themselves.
pub type Exits = Rc<RefCell<Vec<String>>>;

struct Running {
    served: Rc<RefCell<Option<Served>>>,
    readiness: Readiness,
    supervisor: Supervisor,
    terminate: Option<oneshot::Sender<()>>,
    main: AbortHandle,
    down: CancellationToken,
}

/// What a process serves, until it is down.
pub struct Serving {
    pub served: Served,
    pub down: CancellationToken,
}

/// The processes of a world, by number.
pub const PROCESSES: [Controller; 4] = [
    Controller::Destination,
    Controller::Policy,
    Controller::Policy,
    Controller::Injector,
];

/// The number of processes that a script may kill.
pub const REPLACEABLE: usize = PROCESSES.len();

/// The address of the API server.
pub const API_SERVER: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);

/// Returns the address of a process.
pub fn host(number: usize) -> IpAddr {
    let number = u8::try_from(number).unwrap_or(u8::MAX);
    Ipv4Addr::new(10, 254, 0, number.saturating_add(1)).into()
}

impl Controlled {
    /// Creates a process that does not run.
    pub fn new(
        network: &Network,
        number: usize,
        controller: Controller,
        start: Instant,
        exits: &Exits,
    ) -> Self {
        let dial = Dial {
            process: network.process(host(number), Role::Application),
            server: SocketAddr::new(API_SERVER.into(), PORT),
            start,
        };
        Self(Rc::new(Inner {
            number,
            controller,
            dial,
            running: RefCell::default(),
            starts: RefCell::default(),
            exits: exits.clone(),
        }))
    }

    pub fn number(&self) -> usize {
        self.0.number
    }

    pub fn controller(&self) -> Controller {
        self.0.controller
    }

    /// When it was started.
    pub fn starts(&self) -> Vec<Duration> {
        self.0.starts.borrow().clone()
    }

    pub fn is_running(&self) -> bool {
        self.0.running.borrow().is_some()
    }

    pub fn is_ready(&self) -> bool {
        let running = self.0.running.borrow();
        running.as_ref().is_some_and(|it| it.readiness.is_ready())
    }

    /// Starts it, unless it runs.
    pub fn start(&self) {
        if self.is_running() {
            return;
        }
        let now = self.0.dial.start.elapsed();
        self.0.starts.borrow_mut().push(now);
        let (terminate, terminated) = oneshot::channel();
        let daemon = Daemon::simulated(Termination::simulated(terminated));
        let (supervisor, readiness) = (daemon.supervisor.clone(), daemon.readiness.clone());
        let served = Rc::new(RefCell::new(None));
        let down = CancellationToken::new();
        let (process, slot, ended) = (self.clone(), served.clone(), down.clone());
        let command = self.command();
        let main = spawn_local(async move {
            let serve = |served| *slot.borrow_mut() = Some(served);
            let result = simulation::run(daemon, command, serve).await;
            process.ended(result.err().map(|error| error.to_string()));
            ended.cancel();
        });
        *self.0.running.borrow_mut() = Some(Running {
            served,
            readiness,
            supervisor,
            terminate: Some(terminate),
            main: main.abort_handle(),
            down,
        });
    }

    /// SIGKILL.
    pub fn kill(&self) {
        let Some(running) = self.0.running.take() else {
            return;
        };
        running.main.abort();
        running.supervisor.kill();
        running.down.cancel();
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        let mut running = self.0.running.borrow_mut();
        let terminate = running.as_mut().and_then(|it| it.terminate.take());
        if let Some(terminate) = terminate {
            // A process that has just ended gets no signal.
            let _ended = terminate.send(());
        }
    }

    /// Returns what it serves, if it does.
    pub fn serving(&self) -> Option<Serving> {
        let running = self.0.running.borrow();
        let running = running.as_ref()?;
        let served = running.served.borrow().clone()?;
        Some(Serving {
            served,
            down: running.down.clone(),
        })
    }

    fn ended(&self, error: Option<String>) {
        let Some(running) = self.0.running.take() else {
            return;
        };
        running.supervisor.kill();
        if let Some(error) = error {
            let (controller, number) = (self.controller(), self.number());
            let exit = format!("process {number} ({controller:?}) has ended: {error}");
            self.0.exits.borrow_mut().push(exit);
        } else if running.terminate.is_some() {
            let exit = format!("process {} has ended without a signal", self.number());
            self.0.exits.borrow_mut().push(exit);
        }
    }

    fn command(&self) -> Command {
        let name = format!("--replica-name=replica-{}", self.0.number);
        let arguments: &[&str] = match self.0.controller {
            Controller::Destination => &["destination", &name],
            Controller::Policy => &["policy", &name],
            Controller::Injector => &["proxy-injector"],
        };
        let arguments = ["mesh-controller"].iter().chain(arguments);
        let mut command = Cli::parse_from(arguments).command;
        let cluster = match &mut command {
            Command::Destination(config) => &mut config.source.cluster,
            Command::Policy(config) => &mut config.source.cluster,
            Command::ProxyInjector(config) => &mut config.cluster,
            other => unreachable!("{other:?} is not simulated"),
        };
        cluster.simulated = Some(self.0.dial.clone());
        command
    }
}
