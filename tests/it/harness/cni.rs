//! The container runtime's side of CNI: runs a chain of plugins for a network namespace.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// A network: its name, its plugins in order, and the directories of their programs.
pub(crate) struct Chain {
    pub(crate) name: String,
    pub(crate) plugins: Vec<Value>,
    pub(crate) path: Vec<PathBuf>,
}

/// The sandbox that is attached to the network.
pub(crate) struct Sandbox<'a> {
    pub(crate) container_id: &'a str,
    pub(crate) netns: &'a Path,
    pub(crate) pod: &'a str,
    pub(crate) uid: &'a str,
    pub(crate) annotations: &'a BTreeMap<String, String>,
}

impl Chain {
    /// Runs ADD through `plugins` with `previous` as the result so far. Returns the last result, or
    /// the error of the plugin that failed.
    pub(crate) fn add_through(
        &self,
        plugins: &[Value],
        sandbox: &Sandbox<'_>,
        mut previous: Value,
    ) -> Result<Value, Value> {
        for plugin in plugins {
            previous = self.call("ADD", plugin, sandbox, &previous)?;
        }
        Ok(previous)
    }

    /// Runs DEL through the chain in reverse order. Like a runtime it continues after an error, and
    /// returns the first.
    pub(crate) fn del(&self, sandbox: &Sandbox<'_>, previous: &Value) -> Result<(), Value> {
        let mut outcome = Ok(());
        for plugin in self.plugins.iter().rev() {
            let step = self.call("DEL", plugin, sandbox, previous).map(|_empty| ());
            outcome = outcome.and(step);
        }
        outcome
    }

    fn call(
        &self,
        command: &str,
        plugin: &Value,
        sandbox: &Sandbox<'_>,
        previous: &Value,
    ) -> Result<Value, Value> {
        let kind = plugin["type"].as_str().expect("a plugin has a type");
        let program = self
            .path
            .iter()
            .map(|dir| dir.join(kind))
            .find(|path| path.exists());
        let program =
            program.unwrap_or_else(|| panic!("CNI plugin {kind} not found in {:?}", self.path));
        let mut config = plugin.clone();
        config["cniVersion"] = json!("1.0.0");
        config["name"] = json!(self.name);
        if !previous.is_null() {
            config["prevResult"] = previous.clone();
        }
        if plugin["capabilities"]["io.kubernetes.cri.pod-annotations"] == json!(true) {
            config["runtimeConfig"] =
                json!({ "io.kubernetes.cri.pod-annotations": sandbox.annotations });
        }
        let mut child = Command::new(&program)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", sandbox.container_id)
            .env("CNI_NETNS", sandbox.netns)
            .env("CNI_IFNAME", "eth0")
            .env(
                "CNI_PATH",
                std::env::join_paths(&self.path).expect("no colon in the paths"),
            )
            .env(
                "CNI_ARGS",
                format!(
                    "IgnoreUnknown=1;K8S_POD_NAMESPACE=test;K8S_POD_NAME={};K8S_POD_UID={}",
                    sandbox.pod, sandbox.uid
                ),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        child
            .stdin
            .take()
            .expect("stdin is piped")
            .write_all(config.to_string().as_bytes())
            .expect("the plugin reads its configuration");
        let output = child.wait_with_output().expect("the plugin ends");
        let answer = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        if output.status.success() {
            Ok(answer)
        } else {
            Err(answer)
        }
    }
}
