//! A chain of CNI plugins, which it runs for a sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use mesh_test_support::cni;
use serde_json::{Value, json};

/// A network: its name, its plugins in order, and the directories of their programs.
pub(crate) struct Chain {
    pub(crate) name: String,
    pub(crate) plugins: Vec<Value>,
    pub(crate) path: Vec<PathBuf>,
}

/// The pod whose sandbox is attached to the network.
#[derive(Clone, Copy)]
pub(crate) struct Attached<'a> {
    pub(crate) sandbox: cni::Sandbox<'a>,
    pub(crate) annotations: &'a BTreeMap<String, String>,
}

impl Chain {
    /// Runs ADD through `plugins` with `previous` as the result so far. Returns the last result, or
    /// the error of the plugin that failed.
    pub(crate) fn add_through(
        &self,
        plugins: &[Value],
        pod: Attached<'_>,
        mut previous: Value,
    ) -> Result<Value, Value> {
        for plugin in plugins {
            previous = self.call("ADD", plugin, pod, &previous)?;
        }
        Ok(previous)
    }

    /// Runs DEL through the chain in reverse order. Like a runtime it continues after an error, and
    /// returns the first.
    pub(crate) fn del(&self, pod: Attached<'_>, previous: &Value) -> Result<(), Value> {
        let mut outcome = Ok(());
        for plugin in self.plugins.iter().rev() {
            let step = self.call("DEL", plugin, pod, previous).map(|_empty| ());
            outcome = outcome.and(step);
        }
        outcome
    }

    fn call(
        &self,
        command: &str,
        plugin: &Value,
        pod: Attached<'_>,
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
                json!({ "io.kubernetes.cri.pod-annotations": pod.annotations });
        }
        let path = std::env::join_paths(&self.path).expect("no colon in the paths");
        let mut plugin = Command::new(program);
        plugin.env("CNI_COMMAND", command).env("CNI_PATH", path);
        pod.sandbox.describe(&mut plugin);
        cni::call(&mut plugin, &config)
    }
}
