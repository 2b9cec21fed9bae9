//! The container runtime's part of CNI: runs the plugins of a conflist as libcni does.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use mesh_test_support::cni::{Sandbox, call};
use mesh_test_support::machine::unique_name;
use mesh_test_support::network::Namespace;
use serde_json::{Value, json};

use crate::agent::Node;

/// Debian's containernetworking-plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// The latest version that they support; they reject later ones.
const PLUGINS_LATEST: &str = "1.0.0";

pub(crate) struct Pod {
    pub(crate) netns: Namespace,
    pub(crate) id: String,
    annotations: BTreeMap<String, String>,
    host_port: u16,
}

/// A conflist: bridge with host-local, portmap, mesh-cni.
pub(crate) struct Network<'a> {
    node: &'a Node,
    version: &'static str,
    plugins: Vec<Value>,
}

/// What a plugin printed, and whether it succeeded.
pub(crate) type PluginResult = Result<Value, Value>;

impl Pod {
    /// Creates a pod with a proxy and these settings.
    pub(crate) fn meshed(settings: &[(&str, &str)]) -> Self {
        let mut pod = Self::plain();
        pod.annotations
            .insert("linkerd.io/proxy-version".into(), "test".into());
        for (key, value) in settings {
            let key = format!("config.linkerd.io/{key}");
            pod.annotations.insert(key, (*value).into());
        }
        pod
    }

    /// Creates a pod with annotations, but none of the mesh.
    pub(crate) fn plain() -> Self {
        let id = unique_name();
        Self {
            netns: Namespace::new(),
            host_port: 10_000 + u16::try_from(id.len()).unwrap(),
            id,
            annotations: BTreeMap::from([("example.com/a".into(), "b".into())]),
        }
    }
}

impl<'a> Network<'a> {
    pub(crate) fn new(node: &'a Node, version: &'static str) -> Self {
        let plugins = json!([
            {
                "type": "bridge",
                "bridge": "mesh-test0",
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": "10.241.1.0/24"}], [{"subnet": "fd00:241:1::/64"}]],
                    "dataDir": node.path("ipam"),
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {
                "type": "mesh-cni",
                "socket": node.socket(),
                "pinDir": node.pin_dir(),
                "stateDir": node.state_dir(),
                "timeoutSeconds": 20,
                "capabilities": {"io.kubernetes.cri.pod-annotations": true},
            },
        ]);
        Self {
            node,
            version,
            plugins: plugins.as_array().unwrap().clone(),
        }
    }

    /// Runs ADD of the whole chain. Returns the results of portmap and of mesh-cni.
    pub(crate) fn add(&self, pod: &Pod) -> (Value, PluginResult) {
        let mut previous = None;
        let [others @ .., mesh] = &self.plugins[..] else {
            panic!("no plugins");
        };
        for plugin in others {
            previous = Some(self.run("ADD", plugin, pod, previous.as_ref()).unwrap());
        }
        let previous = self.in_own_version(previous.unwrap());
        let result = self.run("ADD", mesh, pod, Some(&previous));
        (previous, result)
    }

    /// Runs ADD of the whole chain, which must succeed. Returns the result of portmap.
    pub(crate) fn add_enrolled(&self, pod: &Pod) -> Value {
        let (previous, result) = self.add(pod);
        result.unwrap();
        previous
    }

    /// Runs DEL of the whole chain, in reverse, with the result of ADD if it is known.
    pub(crate) fn del(&self, pod: &Pod, previous: Option<&Value>) {
        for plugin in self.plugins.iter().rev() {
            self.run("DEL", plugin, pod, previous).unwrap();
        }
    }

    /// Runs one command of mesh-cni alone.
    pub(crate) fn mesh(&self, command: &str, pod: &Pod, previous: Option<&Value>) -> PluginResult {
        self.run(command, self.mesh_plugin(), pod, previous)
    }

    /// Runs STATUS or GC of mesh-cni; `keep` are the pods whose attachments are valid.
    pub(crate) fn mesh_without_pod(&self, command: &str, keep: &[&Pod]) -> PluginResult {
        let mut config = self.config(self.mesh_plugin(), self.version);
        let valid: Vec<Value> = keep
            .iter()
            .map(|pod| json!({"containerID": pod.id, "ifname": "eth0"}))
            .collect();
        config["cni.dev/valid-attachments"] = valid.into();
        let mut process = self.process(self.mesh_plugin(), command);
        self.finish(&mut process, &config)
    }

    pub(crate) fn change(&mut self, key: &str, value: Value) {
        self.plugins.last_mut().unwrap()[key] = value;
    }

    fn mesh_plugin(&self) -> &Value {
        self.plugins.last().unwrap()
    }

    fn run(
        &self,
        command: &str,
        plugin: &Value,
        pod: &Pod,
        previous: Option<&Value>,
    ) -> PluginResult {
        let mut config = self.config(plugin, self.version_for(plugin));
        if let Some(previous) = previous {
            config["prevResult"] = previous.clone();
            config["prevResult"]["cniVersion"] = self.version_for(plugin).into();
        }
        for (capability, argument) in [
            ("io.kubernetes.cri.pod-annotations", json!(pod.annotations)),
            (
                "portMappings",
                json!([{"hostPort": pod.host_port, "containerPort": 8080, "protocol": "tcp"}]),
            ),
        ] {
            if plugin["capabilities"][capability] == true {
                config["runtimeConfig"][capability] = argument;
            }
        }
        let mut process = self.process(plugin, command);
        let sandbox = Sandbox {
            container_id: &pod.id,
            netns: &pod.netns.path(),
            namespace: "shop",
            pod: &pod.id,
            uid: "u-1",
        };
        sandbox.describe(&mut process);
        self.finish(&mut process, &config)
    }

    fn process(&self, plugin: &Value, command: &str) -> Command {
        let program = match plugin["type"].as_str().unwrap() {
            "mesh-cni" => env!("CARGO_BIN_EXE_mesh-cni").into(),
            name => Path::new(PLUGINS).join(name),
        };
        let mut process = Command::new(program);
        process
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_COMMAND", command)
            .env("CNI_PATH", PLUGINS);
        process
    }

    fn finish(&self, process: &mut Command, config: &Value) -> PluginResult {
        self.node.host.enter(|| call(process, config))
    }

    fn config(&self, plugin: &Value, version: &str) -> Value {
        let mut config = plugin.clone();
        let fields = config.as_object_mut().unwrap();
        fields.remove("capabilities");
        fields.insert("cniVersion".into(), version.into());
        fields.insert("name".into(), "pods".into());
        config
    }

    fn version_for(&self, plugin: &Value) -> &'static str {
        let is_mesh_cni = plugin["type"] == "mesh-cni";
        if is_mesh_cni || self.version != "1.1.0" {
            self.version
        } else {
            PLUGINS_LATEST
        }
    }

    fn in_own_version(&self, mut result: Value) -> Value {
        result["cniVersion"] = self.version.into();
        result
    }
}
