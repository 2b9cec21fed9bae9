//! A node for one test: a bridge network, a cgroup tree, pins, an agent, and pods with scripted
//! processes.
//!
//! The programs are the real ones, with paths set by their ordinary flags. Everything that a node
//! creates is removed with it, also if the test fails.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU16, Ordering};

use mesh_core::node::{Request, Tier};
use mesh_test_support::cni::Sandbox;
use mesh_test_support::command::{Words, built};
use mesh_test_support::eventually::eventually;
use mesh_test_support::machine::{Machine, remove_cgroup};
use mesh_test_support::network::Namespace;
use mesh_test_support::program::Program;
use serde_json::{Value, json};

use super::cni::{Attached, Chain};

/// An annotation that the injector sets on a pod.
const INJECTED: (&str, &str) = ("linkerd.io/proxy-version", "test");

/// Numbers the nodes of this test process; the third byte of their subnets.
static NEXT: AtomicU16 = AtomicU16::new(1);

pub(crate) struct Node {
    machine: Machine,
    pub(crate) chain: Chain,
    tier: Tier,
    /// Further flags of the agent.
    flags: RefCell<Vec<String>>,
    agent: RefCell<Option<Program>>,
    /// The logs of earlier agents.
    log: RefCell<String>,
}

pub(crate) struct Pod<'n> {
    node: &'n Node,
    name: String,
    pub(crate) namespace: Namespace,
    cgroup: PathBuf,
    pub(crate) v4: IpAddr,
    /// A second IPv4 address.
    pub(crate) second: IpAddr,
    pub(crate) v6: IpAddr,
    annotations: BTreeMap<String, String>,
    result: Value,
}

/// A container of a pod, by its name, and its user.
pub(crate) type Container = (&'static str, u32);

pub(crate) const APPLICATION: Container = ("app", 0);
/// As the injector configures it.
pub(crate) const PROXY: Container = ("linkerd-proxy", 2102);

impl Node {
    pub(crate) fn start(tier: Tier) -> Self {
        Self::start_with(tier, &[])
    }

    /// With further flags for the agent.
    pub(crate) fn start_with(tier: Tier, flags: &[&str]) -> Self {
        let machine = Machine::new();
        let node = Self {
            chain: chain(&machine, NEXT.fetch_add(1, Ordering::Relaxed)),
            machine,
            tier,
            flags: RefCell::new(owned(flags)),
            agent: RefCell::default(),
            log: RefCell::default(),
        };
        node.start_agent();
        node
    }

    pub(crate) fn cgroup(&self) -> &Path {
        self.machine.cgroup()
    }

    pub(crate) fn pins(&self) -> PathBuf {
        self.machine.pins()
    }

    /// Starts the agent and waits until it responds on its socket.
    pub(crate) fn start_agent(&self) {
        self.spawn_agent();
        eventually("the agent reports its status", || {
            if let Some(agent) = self.agent.borrow_mut().as_mut()
                && let Some(status) = agent.exit_status()
            {
                panic!("the agent ended ({status}):\n{}", agent.log());
            }
            self.try_request(&Request::Status)
                .is_some_and(|answer| answer.get("status").is_some())
        });
    }

    /// Starts the agent and does not wait for it.
    pub(crate) fn spawn_agent(&self) {
        let mut command = self.agent_command(&[]);
        command
            .args(["--admin-addr", "127.0.0.1:0"])
            .args(["--tier", &self.tier.to_string()])
            .args(self.flags.borrow().iter());
        *self.agent.borrow_mut() = Some(Program::start(&mut command));
    }

    /// Uninstalls the agent from this node as an administrator does.
    pub(crate) fn uninstall(&self) -> std::io::Result<Output> {
        self.agent_command(&["uninstall"]).output()
    }

    fn agent_command(&self, subcommand: &[&str]) -> Command {
        let mut command = Command::new(built("mesh-agent"));
        command
            .args(subcommand)
            .arg("--cgroup-root")
            .arg(self.cgroup())
            .arg("--pin-dir")
            .arg(self.pins())
            .arg("--socket")
            .arg(self.machine.path("agent.sock"))
            .arg("--state-dir")
            .arg(self.machine.path("state"));
        command
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn kill_agent(&self) {
        if let Some(mut agent) = self.agent.borrow_mut().take() {
            agent.kill();
            *self.log.borrow_mut() += &agent.log();
        }
    }

    /// Kills the agent with SIGKILL and starts it again.
    pub(crate) fn restart_agent(&self) {
        self.kill_agent();
        self.start_agent();
    }

    /// Kills the agent with SIGKILL and starts it again with other flags.
    pub(crate) fn restart_agent_with(&self, flags: &[&str]) {
        *self.flags.borrow_mut() = owned(flags);
        self.restart_agent();
    }

    /// Whether the running agent has logged a text.
    pub(crate) fn agent_has_logged(&self, text: &str) -> bool {
        let agent = self.agent.borrow();
        agent
            .as_ref()
            .is_some_and(|agent| agent.log().contains(text))
    }

    /// Returns the logs of all agents of the node.
    pub(crate) fn agent_log(&self) -> String {
        let agent = self.agent.borrow();
        let log = agent.as_ref().map(Program::log);
        self.log.borrow().clone() + &log.unwrap_or_default()
    }

    /// Sends a request to the agent and returns its response.
    pub(crate) fn request(&self, request: &Request) -> Value {
        self.try_request(request)
            .unwrap_or_else(|| panic!("the agent does not respond\n{}", self.agent_log()))
    }

    fn try_request(&self, request: &Request) -> Option<Value> {
        let mut stream = UnixStream::connect(self.machine.path("agent.sock")).ok()?;
        let line = serde_json::to_string(request).expect("a request is JSON");
        stream.write_all(format!("{line}\n").as_bytes()).ok()?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).ok()?;
        serde_json::from_str(&answer).ok()
    }

    /// A pod without the mesh.
    pub(crate) fn plain_pod(&self, name: &str) -> Pod<'_> {
        self.pod(name, &[])
    }

    /// A pod with the injector's annotation and further annotations.
    pub(crate) fn meshed_pod(&self, name: &str, annotations: &[(&str, &str)]) -> Pod<'_> {
        self.pod(name, &[annotations, &[INJECTED]].concat())
    }

    /// A pod with the injector's annotation and a network that is not enrolled yet.
    pub(crate) fn pod_before_enrolment(&self, name: &str) -> Pod<'_> {
        let (_, others) = self
            .chain
            .plugins
            .split_last()
            .expect("the chain ends with mesh-cni");
        self.pod_through(others, name, &[INJECTED])
    }

    fn pod(&self, name: &str, annotations: &[(&str, &str)]) -> Pod<'_> {
        self.pod_through(&self.chain.plugins, name, annotations)
    }

    fn pod_through(&self, plugins: &[Value], name: &str, annotations: &[(&str, &str)]) -> Pod<'_> {
        let annotations = annotations
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let uid = format!("{}-{name}", self.machine.name());
        let cgroup = self.cgroup().join(format!("pod{uid}"));
        fs::create_dir(&cgroup).expect("a cgroup for the pod");
        let mut pod = Pod {
            node: self,
            name: name.to_owned(),
            namespace: Namespace::named(uid),
            cgroup,
            v4: [0, 0, 0, 0].into(),
            second: [0, 0, 0, 0].into(),
            v6: [0; 16].into(),
            annotations,
            result: Value::Null,
        };
        let netns = pod.namespace.path();
        let added = self
            .chain
            .add_through(plugins, pod.attached(&netns), Value::Null);
        pod.result = added.unwrap_or_else(|error| panic!("CNI ADD of pod {name}: {error}"));
        (pod.v4, pod.second) = (
            pod.address(IpAddr::is_ipv4, 0),
            pod.address(IpAddr::is_ipv4, 1),
        );
        pod.v6 = pod.address(IpAddr::is_ipv6, 0);
        pod
    }

    /// Everything pinned below the node's directory.
    pub(crate) fn pinned(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut directories = vec![self.pins()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    directories.push(path);
                } else {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill_agent();
        let _best_effort = self.uninstall();
        if std::thread::panicking() {
            println!("agents:\n{}", self.log.borrow());
        }
    }
}

impl Pod<'_> {
    fn attached<'p>(&'p self, netns: &'p Path) -> Attached<'p> {
        let sandbox = Sandbox {
            container_id: self.namespace.name(),
            netns,
            namespace: "test",
            pod: &self.name,
            uid: self.namespace.name(),
        };
        Attached {
            sandbox,
            annotations: &self.annotations,
        }
    }

    /// Enrols a running pod.
    pub(crate) fn enrol(&self) {
        let added = self.enrol_elsewhere(&self.namespace.path());
        added.unwrap_or_else(|error| panic!("enrol pod {}: {error}", self.name));
    }

    /// Runs the plugin for another network namespace in the pod's name.
    pub(crate) fn enrol_elsewhere(&self, netns: &Path) -> Result<Value, Value> {
        let chain = &self.node.chain;
        let own = chain.plugins.last().expect("the chain ends with mesh-cni");
        let (own, pod) = (std::slice::from_ref(own), self.attached(netns));
        chain.add_through(own, pod, self.result.clone())
    }

    /// The nth address of a family, in the order of the chain's result.
    fn address(&self, family: fn(&IpAddr) -> bool, nth: usize) -> IpAddr {
        let ips = self.result["ips"]
            .as_array()
            .expect("the chain gave addresses");
        let addresses = ips
            .iter()
            .filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok());
        addresses
            .filter(family)
            .nth(nth)
            .expect("two IPv4 addresses and one IPv6 address")
    }

    /// Starts a probe as an application of the pod.
    pub(crate) fn app(&self, probe: impl Words) -> Program {
        self.probe(APPLICATION, "", probe)
    }

    /// Starts a probe in the place of the proxy.
    pub(crate) fn proxy(&self, probe: impl Words) -> Program {
        self.probe(PROXY, "", probe)
    }

    /// Starts a probe in a container of the pod, with further options of `probe enter`.
    pub(crate) fn probe(
        &self,
        (name, uid): Container,
        options: impl Words,
        probe: impl Words,
    ) -> Program {
        let mut command = Command::new(built("probe"));
        command
            .args(["enter", "--uid", &uid.to_string()])
            .arg("--netns")
            .arg(self.namespace.path())
            .arg("--cgroup")
            .arg(self.cgroup.join(name))
            .args(options.words())
            .arg("--")
            .args(probe.words());
        Program::start(&mut command)
    }

    /// Starts a listening probe with these options and waits until it listens on every address.
    pub(crate) fn serve(
        &self,
        container: Container,
        options: impl Words,
        addresses: impl Words,
    ) -> Program {
        let addresses = addresses.words();
        let probe = [vec!["listen"], options.words(), addresses.clone()].concat();
        let server = self.probe(container, "", probe);
        for address in addresses {
            let event = server.next_event();
            assert!(
                event.get("listening").is_some(),
                "listening on {address}: {event}"
            );
        }
        server
    }

    /// The first three numbers of the node's IPv4 subnet, as in `10.241.7`, and the last of them
    /// alone.
    pub(crate) fn subnet(&self) -> (String, u8) {
        let IpAddr::V4(v4) = self.v4 else {
            panic!("the first address is IPv4: {}", self.v4)
        };
        let [a, b, c, _] = v4.octets();
        (format!("{a}.{b}.{c}"), c)
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        // Kills the remaining processes, as a kubelet does.
        let _best_effort = fs::write(self.cgroup.join("cgroup.kill"), "1");
        let netns = self.namespace.path();
        if !self.result.is_null()
            && let Err(error) = self.node.chain.del(self.attached(&netns), &self.result)
            && !std::thread::panicking()
        {
            panic!("CNI DEL of pod {}: {error}", self.name);
        }
        let removed = remove_cgroup(&self.cgroup);
        if !std::thread::panicking() {
            removed.expect("the cgroup of the pod can be removed");
        }
    }
}

fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}

fn chain(machine: &Machine, number: u16) -> Chain {
    let name = machine.name();
    let v4 = format!("10.241.{number}.0/24");
    let bridge = json!({
        "type": "bridge", "bridge": name, "isGateway": true, "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "dataDir": machine.path("ipam"),
            "ranges": [
                [{ "subnet": v4, "rangeStart": format!("10.241.{number}.10"), "rangeEnd": format!("10.241.{number}.99") }],
                [{ "subnet": v4, "rangeStart": format!("10.241.{number}.100"), "rangeEnd": format!("10.241.{number}.199") }],
                [{ "subnet": format!("fd00:241:{number}::/64") }],
            ],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
        },
    });
    let mesh = json!({
        "type": "mesh-cni",
        "socket": machine.path("agent.sock"),
        "pinDir": machine.pins(),
        "stateDir": machine.path("state"),
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    });
    let own = built("mesh-cni")
        .parent()
        .expect("a program is in a directory")
        .to_owned();
    Chain {
        name: name.to_owned(),
        plugins: vec![bridge, mesh],
        path: vec![
            PathBuf::from("/usr/lib/cni"),
            PathBuf::from("/opt/cni/bin"),
            own,
        ],
    }
}
