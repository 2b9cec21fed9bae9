//! The test's own agent: a process in a scratch "host" network namespace, with its own socket,
//! state, pins and cgroup.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use mesh_agent::ebpf::Programs;
use mesh_agent::node_api::client;
use mesh_agent::redirect::Tier;
use mesh_core::node::{NodeStatus, PodStatus, Request, Response};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::network::{Netns, unique};

/// Generous: a slow machine must not fail the test.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The node's network namespace, and the state of its agents. Removed when dropped.
pub(crate) struct Node {
    pub(crate) host: Netns,
    pub(crate) dir: TempDir,
    pub(crate) pin_dir: PathBuf,
    cgroup: PathBuf,
}

/// A running agent; killed when dropped.
pub(crate) struct Agent {
    child: Child,
    socket: PathBuf,
    /// The log until the agent was ready.
    pub(crate) log: String,
}

impl Node {
    pub(crate) fn new() -> Self {
        let name = unique("mesh-test-");
        let cgroup = cgroup2_mount().join(&name);
        fs::create_dir(&cgroup).unwrap();
        Self {
            host: Netns::new(),
            dir: tempfile::tempdir().unwrap(),
            pin_dir: Path::new("/sys/fs/bpf").join(&name),
            cgroup,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
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
        let mut child = self.host.run_in(|| {
            self.command()
                .args(["--admin-addr", "127.0.0.1:0"])
                .args(arguments)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut log = String::new();
        while !log.contains("Ready") {
            if lines.read_line(&mut log).unwrap() == 0 {
                let _ = child.wait();
                return Err(log);
            }
        }
        keep_reading(lines);
        Ok(Agent {
            child,
            socket: self.socket(),
            log,
        })
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
        self.host.run_in(|| command.status().unwrap().success())
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
        let programs = Programs::open(&self.pin_dir).unwrap();
        assert_eq!(programs.pods().unwrap(), []);
        assert_eq!(programs.counters().unwrap(), []);
        let steering = files_below(&self.pin_dir)
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
            .arg(&self.pin_dir)
            // A test may override it with a flag.
            .env("MESH_AGENT_CGROUP_ROOT", &self.cgroup);
        command
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.uninstall();
        let _ = fs::remove_dir(&self.pin_dir);
        let _ = fs::remove_dir(&self.cgroup);
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
        let (_, rest) = self.log.rsplit_once("admin=").unwrap();
        let address: SocketAddr = rest.trim().parse().unwrap();
        node.host.run_in(|| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream
                .write_all(
                    format!("GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n")
                        .as_bytes(),
                )
                .unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        })
    }

    /// Sends a signal, for example to stop the process as on a node without processor time.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, signal).unwrap();
    }

    /// Sends SIGKILL, and waits until the process has exited.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM; returns whether the exit code was success.
    pub(crate) fn terminate(mut self) -> bool {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap().success()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the agent's log: an agent blocks when it cannot write it.
fn keep_reading(lines: BufReader<ChildStdout>) {
    thread::spawn(move || lines.lines().map_while(Result::ok).for_each(drop));
}

pub(crate) fn cgroup2_mount() -> PathBuf {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let path = fields.next()?;
        (fields.next()? == "cgroup2").then(|| path.to_owned())
    });
    mount.expect("cgroup2 is mounted").into()
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
