//! The node agent that redirects the connections of a pair of pods, driven over its socket as the
//! CNI plugin does.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use xtask::command::captured_stdout;

use super::pod::{self, Pod, Pods};
use super::process::{Process, run, wait_until};
use super::{DIRECTORY, Testbed};

/// How connections are redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    Full,
    Iptables,
}

/// Ports that are not redirected in either pod.
#[derive(Debug, Default)]
pub(crate) struct SkippedPorts {
    pub(crate) inbound: Vec<u16>,
    pub(crate) outbound: Vec<u16>,
}

/// A running agent. Dropping it uninstalls the redirection.
pub(crate) struct Agent {
    process: Process,
    program: PathBuf,
    paths: AgentPaths,
}

/// The paths passed to an agent.
struct AgentPaths {
    cgroup: PathBuf,
    directory: PathBuf,
    pins: PathBuf,
}

impl Tier {
    fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Iptables => "iptables",
        }
    }
}

impl Agent {
    /// Starts an agent for these pods and enrols them.
    pub(crate) fn start(
        testbed: &Testbed,
        pods: &Pods,
        tier: Tier,
        skipped: &SkippedPorts,
    ) -> anyhow::Result<Self> {
        let name = format!("agent-{}", tier.name());
        let paths = AgentPaths {
            cgroup: testbed.cgroup.clone(),
            directory: Path::new(DIRECTORY).join(&name),
            pins: Path::new(pod::PINS).join(format!("{}-{}", pod::NAME, tier.name())),
        };
        std::fs::create_dir_all(&paths.directory)?;
        let cgroup = testbed.cgroup.join(&name);
        std::fs::create_dir_all(&cgroup)?;
        let mut command = pod::within(&cgroup);
        command
            .arg(&testbed.programs.agent)
            .args(paths.flags())
            .args(["--admin-addr", "127.0.0.1:0", "--tier", tier.name()]);
        let mut agent = Self {
            process: Process::start(&name, &mut command)?,
            program: testbed.programs.agent.clone(),
            paths,
        };
        wait_until("the agent responds", || {
            if let Some(status) = agent.process.exit_status()? {
                bail!(
                    "the agent exited early: {status}\n{}",
                    agent.process.printed()
                );
            }
            Ok(agent.request(&json!({ "op": "status" })).ok())
        })
        .with_context(|| agent.process.command_and_log())?;
        agent.enrol_pair(pods, skipped)?;
        Ok(agent)
    }

    /// Enrols both pods.
    pub(crate) fn enrol_pair(&self, pods: &Pods, skipped: &SkippedPorts) -> anyhow::Result<()> {
        self.enrol(&pods.client, skipped)?;
        self.enrol(&pods.server, skipped)
    }

    fn enrol(&self, pod: &Pod, skipped: &SkippedPorts) -> anyhow::Result<()> {
        let response = self.request(&json!({
            "op": "add",
            "containerId": pod.name,
            "network": "bench",
            "interface": "eth0",
            "netns": format!("/run/netns/{}", pod.name),
            "pod": { "namespace": "bench", "name": pod.name, "uid": pod.name },
            "addresses": [pod.ip],
            "annotations": {
                "linkerd.io/proxy-version": "bench",
                "config.linkerd.io/skip-inbound-ports": list(&skipped.inbound),
                "config.linkerd.io/skip-outbound-ports": list(&skipped.outbound),
            },
        }))?;
        match response.get("added") {
            Some(_) => Ok(()),
            None => bail!("the agent failed to enrol {}: {response}", pod.name),
        }
    }

    /// Sends a request and returns the response; each is one line of JSON.
    fn request(&self, request: &Value) -> anyhow::Result<Value> {
        let mut stream = UnixStream::connect(self.paths.socket())?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut response = String::new();
        BufReader::new(stream).read_line(&mut response)?;
        serde_json::from_str(&response).context("parse the agent's response")
    }

    /// Adds dummy entries to the map of enrolled pods, to measure the lookup in a large map. The
    /// agent is killed first, since it would remove unknown entries; its pinned programs stay
    /// active.
    pub(crate) fn enrol_dummy_pods(&mut self, pods: u32) -> anyhow::Result<()> {
        self.process.kill();
        let table = self.paths.pins.join("v1/maps/PODS");
        let mut dump = Command::new("bpftool");
        dump.args(["--json", "map", "dump", "pinned"]).arg(&table);
        let dumped = captured_stdout(&mut dump).context("dump the map of pods with bpftool")?;
        let dumped: Value = serde_json::from_str(&dumped).context("parse the output of bpftool")?;
        let value: Vec<&str> = dumped[0]["value"]
            .as_array()
            .context("no pod is enrolled")?
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let value = value.join(" ");
        let mut batch = String::new();
        for number in 0..pods {
            // Cookies of network namespaces count up from one, so that these do not collide.
            let cookie = u64::MAX - u64::from(number);
            let key: Vec<String> = cookie.to_ne_bytes().iter().map(u8::to_string).collect();
            batch += &format!(
                "map update pinned {} key {} value {value}\n",
                table.display(),
                key.join(" ")
            );
        }
        let file = self.paths.directory.join("crowd");
        std::fs::write(&file, batch)?;
        run(Command::new("bpftool").arg("batch").arg("file").arg(&file))
    }
}

fn list(ports: &[u16]) -> String {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    ports.join(",")
}

impl AgentPaths {
    fn socket(&self) -> PathBuf {
        self.directory.join("agent.sock")
    }

    fn flags(&self) -> [PathBuf; 8] {
        [
            "--cgroup-root".into(),
            self.cgroup.clone(),
            "--pin-dir".into(),
            self.pins.clone(),
            "--socket".into(),
            self.socket(),
            "--state-dir".into(),
            self.directory.join("state"),
        ]
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The daemon would reinstall the redirection.
        self.process.kill();
        let mut uninstall = Command::new(&self.program);
        uninstall.arg("uninstall").args(self.paths.flags());
        if let Err(error) = run(&mut uninstall) {
            eprintln!("    the redirection of the pods could not be removed: {error:#}");
        }
    }
}
