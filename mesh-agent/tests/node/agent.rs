//! The test's own agent: a process in a scratch "host" network namespace, with its own socket,
//! state, pins and cgroup.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use mesh_agent::ebpf::Programs;
use mesh_agent::node_api::client;
use mesh_agent::redirect::Tier;
use mesh_core::node::{NodeStatus, PodStatus, Request, Response};
use mesh_test_support::http;
use mesh_test_support::machine::Machine;
use mesh_test_support::network::Namespace;
use mesh_test_support::program::Program;
use nix::sys::signal::Signal;

/// Generous: a slow machine must not fail the test.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The node's network namespace, and the state of its agents. Removed when dropped.
pub(crate) struct Node {
    pub(crate) host: Namespace,
    machine: Machine,
}

/// A running agent; killed when dropped.
pub(crate) struct Agent {
    program: Program,
    socket: PathBuf,
    admin: SocketAddr,
    /// The log until the agent was ready.
    pub(crate) log: String,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self {
            host: Namespace::new(),
            machine: Machine::new(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.machine.path(name)
    }

    pub(crate) fn pin_dir(&self) -> PathBuf {
        self.machine.pins()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("agent.sock")
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.path("state")
    }

    pub(crate) fn start(&self, tier: Tier) -> Agent {
        self.try_start(tier)
            .unwrap_or_else(|log| panic!("the agent did not start:\n{log}"))
    }

    /// As [`Node::start`]; returns the log of an agent that exits instead.
    pub(crate) fn try_start(&self, tier: Tier) -> Result<Agent, String> {
        self.start_with(&["--tier", tier.as_str()])
    }

    pub(crate) fn start_with(&self, arguments: &[&str]) -> Result<Agent, String> {
        let mut command = self.command();
        command
            .args(["--admin-addr", "127.0.0.1:0"])
            .args(arguments);
        let program = self.host.enter(|| Program::start(&mut command));
        let ready = program.wait_for("Ready")?;
        let (_, admin) = ready.rsplit_once("admin=").unwrap();
        Ok(Agent {
            admin: admin.trim().parse().unwrap(),
            log: program.log(),
            program,
            socket: self.socket(),
        })
    }

    /// As [`Node::try_start`]; prints that the rest of the test is skipped when the agent exits.
    pub(crate) fn start_if_possible(&self, tier: Tier) -> Option<Agent> {
        let started = self.try_start(tier);
        started
            .inspect_err(|log| println!("skipped: tier {tier} does not work here: {log}"))
            .ok()
    }

    /// Starts a command beside the agent.
    pub(crate) fn start_command(&self, arguments: &[&str]) -> Program {
        let mut command = self.command();
        command.args(arguments);
        self.host.enter(|| Program::start(&mut command))
    }

    /// Runs `mesh-agent uninstall` and returns whether it succeeded.
    pub(crate) fn uninstall(&self) -> bool {
        self.uninstall_with(&[])
    }

    pub(crate) fn uninstall_with(&self, arguments: &[&str]) -> bool {
        let mut command = self.command();
        command
            .arg("uninstall")
            .args(arguments)
            .stdout(Stdio::null());
        self.host.enter(|| command.status().unwrap().success())
    }

    /// Returns the file names of the records of enrolled pods and tombstones.
    pub(crate) fn records(&self) -> Vec<String> {
        let mut names = Vec::new();
        for dir in ["pods", "tombstones"] {
            for entry in fs::read_dir(self.state_dir().join(dir)).unwrap() {
                names.push(entry.unwrap().file_name().into_string().unwrap());
            }
        }
        names.sort();
        names
    }

    /// Fails when maps or pins contain any state of a pod.
    pub(crate) fn assert_no_pod_in_the_kernel(&self) {
        let programs = Programs::open(&self.pin_dir()).unwrap();
        assert_eq!(programs.pods().unwrap(), []);
        assert_eq!(programs.counters().unwrap(), []);
        let steering = files_below(&self.pin_dir())
            .into_iter()
            .filter(|path| path.to_string_lossy().contains("steer"))
            .collect::<Vec<_>>();
        assert_eq!(steering, Vec::<PathBuf>::new());
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-agent"));
        command
            .arg("--socket")
            .arg(self.socket())
            .arg("--state-dir")
            .arg(self.state_dir())
            .arg("--pin-dir")
            .arg(self.pin_dir())
            // A test may override it with a flag.
            .env("MESH_AGENT_CGROUP_ROOT", self.machine.cgroup());
        command
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.uninstall();
    }
}

impl Agent {
    pub(crate) fn call(&self, request: &Request) -> Response {
        client::call(&self.socket, request, TIMEOUT).unwrap()
    }

    pub(crate) fn status(&self) -> NodeStatus {
        match self.call(&Request::Status) {
            Response::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn pods(&self) -> Vec<PodStatus> {
        match self.call(&Request::Pods) {
            Response::Pods(pods) => pods,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn metrics(&self, node: &Node) -> String {
        self.get(node, "/metrics")
    }

    /// Returns the admin server's response with its headers.
    pub(crate) fn get(&self, node: &Node, path: &str) -> String {
        let request = format!("GET {path}");
        let response = node.host.enter(|| http::request(self.admin, &request));
        response.unwrap()
    }

    /// Sends a signal, for example to stop the process as on a node without processor time.
    pub(crate) fn signal(&self, signal: Signal) {
        self.program.signal(signal);
    }

    /// Sends SIGKILL, and waits until the process has exited.
    pub(crate) fn kill(mut self) {
        self.program.kill();
    }

    /// Sends SIGTERM; returns whether the exit code was success.
    pub(crate) fn terminate(mut self) -> bool {
        self.program.terminate();
        self.program.exit().success()
    }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files
}
