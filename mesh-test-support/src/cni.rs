//! The container runtime's side of CNI.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::command::feed;

/// A pod's sandbox that is attached to a network by its interface `eth0`.
#[derive(Clone, Copy)]
pub struct Sandbox<'a> {
    pub container_id: &'a str,
    pub netns: &'a Path,
    pub namespace: &'a str,
    pub pod: &'a str,
    pub uid: &'a str,
}

impl Sandbox<'_> {
    /// Sets the variables of the sandbox.
    pub fn describe(&self, plugin: &mut Command) {
        let Self {
            namespace,
            pod,
            uid,
            ..
        } = self;
        plugin
            .env("CNI_CONTAINERID", self.container_id)
            .env("CNI_NETNS", self.netns)
            .env("CNI_IFNAME", "eth0")
            .env(
                "CNI_ARGS",
                format!(
                    "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod};K8S_POD_UID={uid}"
                ),
            );
    }
}

/// Runs a plugin with this configuration and returns its result, or its error if it fails.
pub fn call(plugin: &mut Command, config: &Value) -> Result<Value, Value> {
    let output = feed(plugin, &config.to_string());
    let answer = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    if output.status.success() {
        Ok(answer)
    } else {
        Err(answer)
    }
}
