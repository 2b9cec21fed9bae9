//! CNI runtime: executes a chain of plugins for a pod, as containerd does. The chain is `ptp` (a
//! routed link with addresses from `host-local`), `portmap` (host ports) and `mesh-cni` (the
//! redirection to the proxy). Each plugin receives the result of its predecessor; DEL runs them in
//! reverse order.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::manifest::ObjectKey;
use crate::node_paths::NodePaths;
use crate::settings::Settings;

/// The CNI version of the chain, which the plugins of Debian 12 support.
const VERSION: &str = "1.0.0";
const INTERFACE: &str = "eth0";
/// Capabilities of plugins. The runtime passes arguments for them.
const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
const PORT_MAPPINGS: &str = "portMappings";

/// The CNI network of a node, with its plugins in order.
#[derive(Clone, Debug)]
pub struct CniChain {
    network: String,
    plugins: Vec<Map<String, Value>>,
    path: String,
}

/// A pod sandbox to add or delete. It is stored in a file, so that it can be deleted after a crash.
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
        "CNI plugin {plugin} not found in {path}; install containernetworking-plugins, or set its directory with --cni-path"
    )]
    NoPlugin { plugin: String, path: String },
    #[error("run CNI plugin {plugin}")]
    Run { plugin: String, source: io::Error },
    #[error("CNI plugin {plugin} failed {command} for pod {pod}: {message}")]
    Failed {
        plugin: String,
        command: &'static str,
        pod: ObjectKey,
        message: String,
    },
    #[error("CNI plugin {plugin} returned an invalid result: {result:?}")]
    InvalidResult { plugin: String, result: String },
}

impl CniChain {
    pub fn new(paths: &NodePaths, settings: &Settings) -> Self {
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
                "ipam": { "type": "host-local", "dataDir": paths.ipam(), "ranges": ranges, "routes": routes },
            }),
            json!({ "type": "portmap", "capabilities": { PORT_MAPPINGS: true }, "snat": true }),
            json!({
                "type": "mesh-cni",
                "socket": paths.agent_socket(),
                "pinDir": paths.pin_dir(),
                "stateDir": paths.agent_state(),
                "capabilities": { POD_ANNOTATIONS: true },
            }),
        ];
        let path: Vec<String> = settings
            .plugin_path()
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        Self {
            network: paths.network_name(),
            plugins: plugins.into_iter().filter_map(into_map).collect(),
            path: path.join(":"),
        }
    }

    /// Runs the chain and returns the addresses of the pod. Sets up the loopback device first, as
    /// all runtimes do.
    pub async fn add(&self, sandbox: &Sandbox) -> Result<Vec<IpAddr>, CniError> {
        let loopback = into_map(json!({ "type": "loopback" })).unwrap_or_default();
        self.call("ADD", &loopback, sandbox, "lo", None).await?;
        let mut result = None;
        for plugin in &self.plugins {
            result = self.call("ADD", plugin, sandbox, INTERFACE, result).await?;
        }
        Ok(addresses(&result.unwrap_or_default()))
    }

    /// Runs DEL of all plugins, even if some fail, and returns the first error.
    pub async fn delete(&self, sandbox: &Sandbox) -> Result<(), CniError> {
        let mut outcome = Ok(());
        for plugin in self.plugins.iter().rev() {
            let result = self.call("DEL", plugin, sandbox, INTERFACE, None).await;
            outcome = outcome.and(result.map(drop));
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
            // The write fails if the plugin responds without reading all of its input.
            let _ = stdin.write_all(config.as_bytes()).await;
        }
        let output = child.wait_with_output().await.map_err(run_error)?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(CniError::Failed {
                plugin: name.to_owned(),
                command,
                pod: ObjectKey::new(&sandbox.namespace, &sandbox.name),
                message: error_message(&text, &String::from_utf8_lossy(&output.stderr)),
            });
        }
        if text.trim().is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|_invalid| CniError::InvalidResult {
                plugin: name.to_owned(),
                result: text.trim().to_owned(),
            })
    }

    fn find(&self, plugin: &str) -> Result<PathBuf, CniError> {
        self.path
            .split(':')
            .map(|directory| Path::new(directory).join(plugin))
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

/// Returns the configuration of a plugin: its entry of the chain with version, network name and
/// previous result, and the arguments of its capabilities.
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

/// Returns the addresses of a CNI result in order.
fn addresses(result: &Value) -> Vec<IpAddr> {
    let ips = result["ips"].as_array().into_iter().flatten();
    ips.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok())
        .collect()
}

/// Returns the message of a CNI error, or the output of the plugin if it is not a CNI error.
fn error_message(stdout: &str, stderr: &str) -> String {
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
    fn plugin_receives_capabilities_and_previous_result() {
        let plugin = |text: &str| into_map(serde_json::from_str(text).unwrap()).unwrap();
        let wants = plugin(
            r#"{"type":"mesh-cni","capabilities":{"io.kubernetes.cri.pod-annotations":true}}"#,
        );
        let config = configuration("n", &wants, &sandbox(), Some(json!({"ips": []})));
        assert_eq!(config["runtimeConfig"][POD_ANNOTATIONS]["a"], "b");
        assert_eq!(config["prevResult"], json!({"ips": []}));
        assert_eq!(config["name"], "n");
        assert_eq!(config["cniVersion"], "1.0.0");
        let plain = configuration("n", &plugin(r#"{"type":"ptp"}"#), &sandbox(), None);
        assert_eq!(plain.get("runtimeConfig"), None);
        assert_eq!(plain.get("prevResult"), None);
    }

    #[test]
    fn addresses_and_errors_are_parsed() {
        let result = json!({"ips": [{"address": "10.240.0.5/24"}, {"address": "fd6d::5/64", "interface": 1}]});
        let expect: Vec<IpAddr> = vec!["10.240.0.5".parse().unwrap(), "fd6d::5".parse().unwrap()];
        assert_eq!(addresses(&result), expect);
        assert_eq!(addresses(&json!({})), [] as [IpAddr; 0]);
        let error = r#"{"code":7,"msg":"no","details":"because"}"#;
        assert_eq!(error_message(error, ""), "no: because");
        assert_eq!(error_message("", "panic: x\n"), "panic: x");
    }
}
