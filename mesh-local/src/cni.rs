//! The runtime's side of CNI: calls a chain of plugins for a pod, as containerd would.
//!
//! The chain is `ptp` (a routed link, addresses from `host-local`), `portmap` (host ports) and
//! `mesh-cni` (the redirection to the proxy). Each plugin gets the result of the one before it; DEL
//! goes through them backwards.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::{instance::Instance, manifest::Key, settings::Settings};

/// The version the chain speaks; Debian 12's plugins know it.
const VERSION: &str = "1.0.0";
const INTERFACE: &str = "eth0";
/// What the runtime passes on when a plugin declares that it wants it.
const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
const PORT_MAPPINGS: &str = "portMappings";

/// The network of a node: its plugins, in order.
#[derive(Clone, Debug)]
pub struct Chain {
    network: String,
    plugins: Vec<Map<String, Value>>,
    path: String,
}

/// A pod sandbox, to be added or deleted. Kept in a file, so that it can be deleted after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    pub container_id: String,
    pub netns: PathBuf,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
    pub port_mappings: Vec<PortMapping>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    pub protocol: String,
}

#[derive(Debug, thiserror::Error)]
pub enum CniError {
    #[error(
        "the CNI plugin {plugin} is in none of {path}; install containernetworking-plugins, or say where it is with --cni-path"
    )]
    NoPlugin { plugin: String, path: String },
    #[error("run the CNI plugin {plugin}")]
    Run {
        plugin: String,
        #[source]
        source: io::Error,
    },
    #[error("the CNI plugin {plugin} refused {command} for pod {pod}: {message}")]
    Refused {
        plugin: String,
        command: &'static str,
        pod: Key,
        message: String,
    },
    #[error("the CNI plugin {plugin} answered something that is no CNI result: {answer:?}")]
    Answer { plugin: String, answer: String },
}

impl Chain {
    pub fn new(instance: &Instance, settings: &Settings) -> Self {
        let network = &settings.network;
        let mut ranges = vec![json!([{ "subnet": network.pods_v4.to_string() }])];
        let mut routes = vec![json!({ "dst": "0.0.0.0/0" })];
        if let Some(v6) = network.pods_v6 {
            ranges.push(json!([{ "subnet": v6.to_string() }]));
            routes.push(json!({ "dst": "::/0" }));
        }
        let plugins = [
            json!({
                "type": "ptp",
                "ipam": { "type": "host-local", "dataDir": instance.ipam(), "ranges": ranges, "routes": routes },
            }),
            json!({ "type": "portmap", "capabilities": { PORT_MAPPINGS: true }, "snat": true }),
            json!({
                "type": "mesh-cni",
                "socket": instance.agent_socket(),
                "pinDir": instance.pin_dir(),
                "stateDir": instance.agent_state(),
                "capabilities": { POD_ANNOTATIONS: true },
            }),
        ];
        let path: Vec<String> = settings
            .plugin_path()
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        Self {
            network: instance.network_name(),
            plugins: plugins.into_iter().filter_map(into_map).collect(),
            path: path.join(":"),
        }
    }

    /// Runs the whole chain and returns the addresses the pod got. The loopback device is brought
    /// up first, as every runtime does.
    pub async fn add(&self, sandbox: &Sandbox) -> Result<Vec<IpAddr>, CniError> {
        let loopback = into_map(json!({ "type": "loopback" })).unwrap_or_default();
        self.call("ADD", &loopback, sandbox, "lo", None).await?;
        let mut result = None;
        for plugin in &self.plugins {
            result = self.call("ADD", plugin, sandbox, INTERFACE, result).await?;
        }
        Ok(addresses(&result.unwrap_or_default()))
    }

    /// Undoes the chain. Every plugin is asked, whatever the others say; the first refusal is
    /// returned.
    pub async fn delete(&self, sandbox: &Sandbox) -> Result<(), CniError> {
        let mut outcome = Ok(());
        for plugin in self.plugins.iter().rev() {
            let answer = self.call("DEL", plugin, sandbox, INTERFACE, None).await;
            outcome = outcome.and(answer.map(drop));
        }
        outcome
    }

    async fn call(
        &self,
        command: &'static str,
        plugin: &Map<String, Value>,
        sandbox: &Sandbox,
        interface: &str,
        previous: Option<Value>,
    ) -> Result<Option<Value>, CniError> {
        let name = plugin
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let program = self.find(name)?;
        let run_error = |source| CniError::Run {
            plugin: name.to_owned(),
            source,
        };
        let mut child = Command::new(program)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &sandbox.container_id)
            .env("CNI_NETNS", &sandbox.netns)
            .env("CNI_IFNAME", interface)
            .env("CNI_ARGS", sandbox.args())
            .env("CNI_PATH", &self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(run_error)?;
        let config = configuration(&self.network, plugin, sandbox, previous).to_string();
        if let Some(mut stdin) = child.stdin.take() {
            // A plugin that does not read it all has answered already.
            let _ = stdin.write_all(config.as_bytes()).await;
        }
        let output = child.wait_with_output().await.map_err(run_error)?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(CniError::Refused {
                plugin: name.to_owned(),
                command,
                pod: Key::new(&sandbox.namespace, &sandbox.name),
                message: refusal(&text, &String::from_utf8_lossy(&output.stderr)),
            });
        }
        if text.trim().is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|_invalid| CniError::Answer {
                plugin: name.to_owned(),
                answer: text.trim().to_owned(),
            })
    }

    fn find(&self, plugin: &str) -> Result<PathBuf, CniError> {
        self.path
            .split(':')
            .map(|folder| Path::new(folder).join(plugin))
            .find(|path| path.is_file())
            .ok_or_else(|| CniError::NoPlugin {
                plugin: plugin.to_owned(),
                path: self.path.clone(),
            })
    }
}

impl Sandbox {
    fn args(&self) -> String {
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            self.namespace, self.name, self.container_id, self.uid
        )
    }
}

/// What a plugin reads: its entry of the chain, completed, and of the runtime's knowledge what it
/// declares to want.
fn configuration(
    network: &str,
    plugin: &Map<String, Value>,
    sandbox: &Sandbox,
    previous: Option<Value>,
) -> Value {
    let mut config = plugin.clone();
    let wants = |capability: &str| {
        plugin
            .get("capabilities")
            .is_some_and(|all| all[capability] == true)
    };
    let mut runtime = Map::new();
    if wants(POD_ANNOTATIONS) {
        runtime.insert(POD_ANNOTATIONS.into(), json!(sandbox.annotations));
    }
    if wants(PORT_MAPPINGS) {
        runtime.insert(PORT_MAPPINGS.into(), json!(sandbox.port_mappings));
    }
    if !runtime.is_empty() {
        config.insert("runtimeConfig".into(), runtime.into());
    }
    config.insert("cniVersion".into(), VERSION.into());
    config.insert("name".into(), network.into());
    if let Some(previous) = previous {
        config.insert("prevResult".into(), previous);
    }
    config.into()
}

/// The addresses of a CNI result, in its order.
fn addresses(result: &Value) -> Vec<IpAddr> {
    let ips = result["ips"].as_array().into_iter().flatten();
    ips.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok())
        .collect()
}

/// The text of a CNI error, or whatever the plugin said.
fn refusal(stdout: &str, stderr: &str) -> String {
    let error: Option<Value> = serde_json::from_str(stdout).ok();
    let field = |name: &str| {
        error.as_ref()?[name]
            .as_str()
            .filter(|text| !text.is_empty())
    };
    match (field("msg"), field("details")) {
        (Some(message), Some(details)) => format!("{message}: {details}"),
        (Some(message), None) => message.to_owned(),
        _ => format!("{} {}", stdout.trim(), stderr.trim())
            .trim()
            .to_owned(),
    }
}

fn into_map(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox() -> Sandbox {
        Sandbox {
            container_id: "c1".into(),
            netns: "/run/x".into(),
            namespace: "shop".into(),
            name: "web".into(),
            uid: "u1".into(),
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            port_mappings: Vec::new(),
        }
    }

    #[test]
    fn a_plugin_gets_what_it_declares_and_the_result_before_it() {
        let plugin = |text: &str| into_map(serde_json::from_str(text).unwrap()).unwrap();
        let wants = plugin(
            r#"{"type":"mesh-cni","capabilities":{"io.kubernetes.cri.pod-annotations":true}}"#,
        );
        let config = configuration("n", &wants, &sandbox(), Some(json!({"ips": []})));
        assert_eq!(config["runtimeConfig"][POD_ANNOTATIONS]["a"], "b");
        assert_eq!(config["prevResult"], json!({"ips": []}));
        assert_eq!(
            (config["name"].as_str(), config["cniVersion"].as_str()),
            (Some("n"), Some("1.0.0"))
        );
        let plain = configuration("n", &plugin(r#"{"type":"ptp"}"#), &sandbox(), None);
        assert_eq!(plain.get("runtimeConfig"), None);
        assert_eq!(plain.get("prevResult"), None);
    }

    #[test]
    fn addresses_and_refusals() {
        let result = json!({"ips": [{"address": "10.240.0.5/24"}, {"address": "fd6d::5/64", "interface": 1}]});
        let expect: Vec<IpAddr> = vec!["10.240.0.5".parse().unwrap(), "fd6d::5".parse().unwrap()];
        assert_eq!(addresses(&result), expect);
        assert_eq!(addresses(&json!({})), [] as [IpAddr; 0]);
        assert_eq!(
            refusal(r#"{"code":7,"msg":"no","details":"because"}"#, ""),
            "no: because"
        );
        assert_eq!(refusal("", "panic: x\n"), "panic: x");
    }
}
