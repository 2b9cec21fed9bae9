//! An agent on a test's node, and the commands beside it. Pods are enrolled over its socket.

use std::process::{Command, Stdio};
use std::time::Duration;

use mesh_agent::node_api::client;
use mesh_agent::redirect::Tier;
use mesh_core::annotation;
use mesh_core::node::{Attachment, AttachmentId, Request, Response};
use mesh_test_support::program::Program;

use crate::env::{Pod, TestEnv};

/// Generous: a slow machine must not fail the test.
const TIMEOUT: Duration = Duration::from_secs(20);

impl TestEnv {
    pub(super) fn start_agent(&self, tier: Tier) -> Program {
        let mut command = self.agent_command();
        command
            .args(["--tier", tier.as_str()])
            .args(["--admin-addr", "127.0.0.1:0"])
            .arg("--cgroup-root")
            .arg(self.machine.cgroup());
        let agent = Program::start(&mut command);
        agent.wait_for("Ready").unwrap();
        agent
    }

    /// Starts a command beside the agent.
    pub(super) fn start_command(&self, arguments: &[&str]) -> Program {
        Program::start(self.agent_command().args(arguments))
    }

    /// Runs a command that fails, and returns its standard error.
    pub(super) fn failure(&self, arguments: &[&str]) -> String {
        let output = self
            .agent_command()
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    }

    fn agent_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-agent"));
        command
            .arg("--socket")
            .arg(self.machine.path("agent.sock"))
            .arg("--state-dir")
            .arg(self.machine.path("state"))
            .arg("--pin-dir")
            .arg(self.pin_dir());
        command
    }
}

impl Pod {
    /// Enrols the pod over the agent's socket.
    pub(super) fn enrol(&self) {
        let request = Request::Add(Attachment {
            id: AttachmentId {
                container_id: self.redirect.sandbox_id.clone(),
                network: "pods".to_owned(),
                interface: "eth0".to_owned(),
            },
            netns: self.redirect.netns.clone(),
            pod: self.redirect.pod.clone(),
            addresses: self.redirect.addresses.clone(),
            annotations: [(annotation::PROXY_VERSION.to_owned(), "test".to_owned())].into(),
        });
        let socket = self.env.machine.path("agent.sock");
        let response = client::call(&socket, &request, TIMEOUT).unwrap();
        assert!(matches!(response, Response::Added(_)), "{response:?}");
    }

    pub(super) fn name(&self) -> String {
        self.redirect.pod.to_string()
    }
}
