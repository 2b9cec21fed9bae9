//! A node for one test: a bridge network, a cgroup tree, pins, an agent, and pods with scripted
//! processes.
//!
//! The programs are the real ones, with paths set by their ordinary flags. Everything that a node
//! creates is named after it and removed with it, also if the test fails.

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
use serde_json::{Value, json};

use super::cni::{Chain, Sandbox};
use super::process::{Process, run};
use super::program;

/// An annotation that the injector sets on a pod.
const INJECTED: (&str, &str) = ("linkerd.io/proxy-version", "test");

/// Numbers the nodes of this test process; the third byte of their subnets.
static NEXT: AtomicU16 = AtomicU16::new(1);

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) cgroup: PathBuf,
    pub(crate) pins: PathBuf,
    pub(crate) chain: Chain,
    tier: Tier,
    /// Further flags of the agent.
    flags: RefCell<Vec<String>>,
    agent: RefCell<Option<Process>>,
}

pub(crate) struct Pod<'n> {
    node: &'n Node,
    name: String,
    uid: String,
    pub(crate) netns: PathBuf,
    pub(crate) cgroup: PathBuf,
    pub(crate) v4: IpAddr,
    /// A second IPv4 address.
    pub(crate) second: IpAddr,
    pub(crate) v6: IpAddr,
    annotations: BTreeMap<String, String>,
    result: Value,
}

impl Node {
    pub(crate) fn start(tier: Tier) -> Self {
        Self::start_with(tier, &[])
    }

    /// With further flags for the agent.
    pub(crate) fn start_with(tier: Tier, flags: &[&str]) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mt{:x}-{number}", std::process::id() & 0xffff);
        let dir = tempfile::Builder::new()
            .prefix(&name)
            .tempdir()
            .expect("a temporary directory");
        let cgroup = cgroup2_mount().join(&name);
        fs::create_dir(&cgroup).expect("a cgroup of its own");
        let pins = PathBuf::from("/sys/fs/bpf").join(&name);
        let chain = chain(&name, number, dir.path(), &pins);
        let node = Self {
            name,
            dir,
            cgroup,
            pins,
            chain,
            tier,
            flags: RefCell::new(flags.iter().map(|flag| (*flag).to_owned()).collect()),
            agent: RefCell::default(),
        };
        node.start_agent();
        node
    }

    /// Starts the agent and waits until it responds on its socket.
    pub(crate) fn start_agent(&self) {
        self.spawn_agent();
        let ready = || {
            self.try_request(&Request::Status)
                .is_some_and(|answer| answer.get("status").is_some())
        };
        super::wait_until("the agent reports its status", ready, || self.agent_log());
    }

    /// Starts the agent and does not wait for it.
    pub(crate) fn spawn_agent(&self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("agent.log"));
        let agent = Process::spawn_logged(
            Command::new(program("mesh-agent"))
                .arg("--cgroup-root")
                .arg(&self.cgroup)
                .arg("--pin-dir")
                .arg(&self.pins)
                .arg("--socket")
                .arg(self.socket())
                .arg("--state-dir")
                .arg(self.dir.path().join("state"))
                .args([
                    "--admin-addr",
                    "127.0.0.1:0",
                    "--tier",
                    &self.tier.to_string(),
                ])
                .args(self.flags.borrow().iter()),
            &log.expect("a log file"),
        );
        *self.agent.borrow_mut() = Some(agent);
    }

    /// Uninstalls the agent from this node as an administrator does.
    pub(crate) fn uninstall(&self) -> std::io::Result<Output> {
        Command::new(program("mesh-agent"))
            .arg("uninstall")
            .arg("--cgroup-root")
            .arg(&self.cgroup)
            .arg("--pin-dir")
            .arg(&self.pins)
            .arg("--socket")
            .arg(self.socket())
            .arg("--state-dir")
            .arg(self.dir.path().join("state"))
            .output()
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn kill_agent(&self) {
        *self.agent.borrow_mut() = None;
    }

    /// Kills the agent with SIGKILL and starts it again.
    pub(crate) fn restart_agent(&self) {
        self.kill_agent();
        self.start_agent();
    }

    /// Kills the agent with SIGKILL and starts it again with other flags.
    pub(crate) fn restart_agent_with(&self, flags: &[&str]) {
        *self.flags.borrow_mut() = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.restart_agent();
    }

    pub(crate) fn agent_log(&self) -> String {
        fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    /// Sends a request to the agent and returns its response.
    pub(crate) fn request(&self, request: &Request) -> Value {
        self.try_request(request)
            .unwrap_or_else(|| panic!("the agent does not respond\n{}", self.agent_log()))
    }

    fn try_request(&self, request: &Request) -> Option<Value> {
        let mut stream = UnixStream::connect(self.socket()).ok()?;
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
        let uid = format!("{}-{name}", self.name);
        let cgroup = self.cgroup.join(format!("pod{uid}"));
        fs::create_dir(&cgroup).expect("a cgroup for the pod");
        run("ip", &["netns", "add", &uid]).expect("a network namespace");
        let netns = PathBuf::from("/run/netns").join(&uid);
        run("ip", &["-n", &uid, "link", "set", "lo", "up"]).expect("loopback");
        let mut pod = Pod {
            node: self,
            name: name.to_owned(),
            uid,
            netns,
            cgroup,
            v4: [0, 0, 0, 0].into(),
            second: [0, 0, 0, 0].into(),
            v6: [0; 16].into(),
            annotations,
            result: Value::Null,
        };
        match self.chain.add_through(plugins, &pod.sandbox(), Value::Null) {
            Ok(result) => pod.result = result,
            Err(error) => panic!("CNI ADD of pod {name}: {error}\n{}", self.agent_log()),
        }
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
        let mut directories = vec![self.pins.clone()];
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
        let _best_effort = (
            self.uninstall(),
            run("ip", &["link", "del", &self.name]),
            fs::remove_dir(&self.cgroup),
        );
    }
}

impl Pod<'_> {
    fn sandbox(&self) -> Sandbox<'_> {
        Sandbox {
            container_id: &self.uid,
            netns: &self.netns,
            pod: &self.name,
            uid: &self.uid,
            annotations: &self.annotations,
        }
    }

    /// Enrols a running pod.
    pub(crate) fn enrol(&self) {
        let chain = &self.node.chain;
        let (own, _) = chain
            .plugins
            .split_last()
            .expect("the chain ends with mesh-cni");
        let added = chain.add_through(
            std::slice::from_ref(own),
            &self.sandbox(),
            self.result.clone(),
        );
        added.unwrap_or_else(|error| {
            panic!(
                "enrol pod {}: {error}\n{}",
                self.name,
                self.node.agent_log()
            )
        });
    }

    /// Runs the plugin for another network namespace in the pod's name.
    pub(crate) fn enrol_elsewhere(&self, netns: &Path) -> Result<Value, Value> {
        let chain = &self.node.chain;
        let (own, _) = chain
            .plugins
            .split_last()
            .expect("the chain ends with mesh-cni");
        let sandbox = Sandbox {
            netns,
            ..self.sandbox()
        };
        chain.add_through(std::slice::from_ref(own), &sandbox, self.result.clone())
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

    /// Starts a probe in the container `container` of the pod as user `uid`.
    pub(crate) fn probe_as(&self, container: &str, uid: u32, args: &[&str]) -> Process {
        self.spawn(container, uid, &[], args)
    }

    /// As [`Pod::probe_as`], with further options of `probe enter`.
    pub(crate) fn probe_with(
        &self,
        container: &str,
        uid: u32,
        options: &[&str],
        args: &[&str],
    ) -> Process {
        self.spawn(container, uid, options, args)
    }

    /// Runs a program, which need not be a probe, inside the pod's network namespace.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let entering = ["netns", "exec", &self.uid, program];
        run("ip", &[&entering[..], args].concat())
    }

    /// Starts a probe as an application of the pod.
    pub(crate) fn app(&self, args: &[&str]) -> Process {
        self.spawn("app", 0, &[], args)
    }

    /// Starts a probe in a network namespace of its own below the pod's cgroup.
    pub(crate) fn nested(&self, args: &[&str]) -> Process {
        self.spawn("app", 0, &["--new-netns"], args)
    }

    /// The name of its network namespace, for `ip`.
    pub(crate) fn namespace(&self) -> &str {
        &self.uid
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

    fn spawn(&self, container: &str, uid: u32, options: &[&str], args: &[&str]) -> Process {
        Process::spawn(
            Command::new(program("probe"))
                .args(["enter", "--uid", &uid.to_string()])
                .arg("--netns")
                .arg(&self.netns)
                .arg("--cgroup")
                .arg(self.cgroup.join(container))
                .args(options)
                .arg("--")
                .args(args),
        )
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        // Kills the remaining processes, as a kubelet does.
        let _best_effort = fs::write(self.cgroup.join("cgroup.kill"), "1");
        if !self.result.is_null()
            && let Err(error) = self.node.chain.del(&self.sandbox(), &self.result)
            && !std::thread::panicking()
        {
            panic!("CNI DEL of pod {}: {error}", self.name);
        }
        let _best_effort = run("ip", &["netns", "del", &self.uid]);
        remove_cgroup(&self.cgroup);
    }
}

/// Removes a pod's cgroup with its containers; the kernel refuses while a process is still exiting.
fn remove_cgroup(pod: &Path) {
    let containers: Vec<PathBuf> = fs::read_dir(pod)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    for dir in containers.iter().map(PathBuf::as_path).chain([pod]) {
        super::wait_until(
            "the cgroup is empty",
            || fs::remove_dir(dir).is_ok() || !dir.exists(),
            String::new,
        );
    }
}

fn chain(name: &str, number: u16, dir: &Path, pins: &Path) -> Chain {
    let v4 = format!("10.241.{number}.0/24");
    let bridge = json!({
        "type": "bridge", "bridge": name, "isGateway": true, "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "dataDir": dir.join("ipam"),
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
        "socket": dir.join("agent.sock"),
        "pinDir": pins,
        "stateDir": dir.join("state"),
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    });
    let own = program("mesh-cni")
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

/// Returns the mount point of the cgroup v2 hierarchy, which also exists on hosts with v1
/// controllers.
pub(crate) fn cgroup2_mount() -> PathBuf {
    let mounts = fs::read_to_string("/proc/mounts").expect("/proc/mounts");
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))
        .expect("cgroup2 is mounted");
    PathBuf::from(line.split(' ').nth(1).expect("a mount has a mount point"))
}
