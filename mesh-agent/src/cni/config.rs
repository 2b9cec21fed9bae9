//! The plugin's entry of the network configuration, which the runtime passes on standard input.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use mesh_core::node::{AttachmentId, DEFAULT_PIN_DIR, DEFAULT_SOCKET, DEFAULT_STATE_DIR};
use serde::Deserialize;
use serde_json::Value;

use super::{CniError, Code, Version};

/// The capability that makes runtimes pass a pod's annotations.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    pub name: String,
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    #[serde(default = "default_pin_dir")]
    pub pin_dir: PathBuf,
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// Limits the agent's response time; far less than a runtime allows for a sandbox.
    #[serde(default = "default_timeout_seconds")]
    pub timeout_seconds: u64,
    /// Pods of these namespaces are never enrolled: the agent's own must start when no agent runs.
    #[serde(default = "default_exclude_namespaces")]
    pub exclude_namespaces: Vec<String>,
    #[serde(default)]
    runtime_config: BTreeMap<String, Value>,
    /// The result of the plugins before this one; passed on unchanged.
    pub prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid_attachments: Option<Vec<ValidAttachment>>,
}

#[derive(Clone, Debug, Deserialize)]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

/// Parsed first: it decides how everything else is parsed, and how an error is written.
#[derive(Deserialize)]
struct Preamble {
    #[serde(rename = "cniVersion", default)]
    version: String,
}

pub(super) fn version(text: &[u8]) -> Result<Version, CniError> {
    let preamble: Preamble = serde_json::from_slice(text).map_err(|error| undecodable(&error))?;
    preamble.version.parse().map_err(|()| {
        CniError::new(
            Code::IncompatibleVersion,
            format!("CNI version {:?} is not supported", preamble.version),
            format!(
                "supported are {}; change cniVersion in the network configuration",
                Version::ALL.map(Version::as_str).join(", ")
            ),
        )
    })
}

impl Config {
    pub(super) fn parse(text: &[u8]) -> Result<Self, CniError> {
        let config: Self = serde_json::from_slice(text).map_err(|error| undecodable(&error))?;
        if config.timeout_seconds == 0 {
            return Err(CniError::new(
                Code::InvalidConfig,
                "timeoutSeconds is 0",
                "the agent needs time to respond; the default is 5",
            ));
        }
        Ok(config)
    }

    /// Returns the pod's annotations; empty when the runtime passes none.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let annotations = self.runtime_config.get(ANNOTATIONS);
        annotations
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    }

    pub(super) fn prev_result(&self) -> Result<&Value, CniError> {
        self.prev_result.as_ref().ok_or_else(|| {
            CniError::new(
                Code::InvalidConfig,
                "prevResult is missing",
                "mesh-cni creates no network; put it into a conflist after the plugin that does",
            )
        })
    }

    /// Returns the addresses in `prevResult.ips`, whose format is the same in all versions.
    pub(super) fn addresses(&self) -> Result<Vec<IpAddr>, CniError> {
        let ips = self.prev_result()?.get("ips").and_then(Value::as_array);
        ips.into_iter()
            .flatten()
            .map(|entry| {
                let text = entry.get("address").and_then(Value::as_str);
                let address = text.and_then(|text| text.split('/').next()?.parse().ok());
                address.ok_or_else(|| {
                    CniError::new(
                        Code::Undecodable,
                        format!("prevResult has an invalid address: {entry}"),
                        "the plugin before mesh-cni wrote it",
                    )
                })
            })
            .collect()
    }

    pub(super) fn valid_attachments(&self) -> Result<Vec<AttachmentId>, CniError> {
        let valid = self.valid_attachments.as_ref().ok_or_else(|| {
            CniError::new(
                Code::InvalidConfig,
                "cni.dev/valid-attachments is missing",
                "without it, garbage collection would remove every pod",
            )
        })?;
        let ids = valid.iter().map(|valid| AttachmentId {
            container_id: valid.container_id.clone(),
            network: self.name.clone(),
            interface: valid.ifname.clone(),
        });
        Ok(ids.collect())
    }
}

fn undecodable(error: &serde_json::Error) -> CniError {
    CniError::new(
        Code::Undecodable,
        "cannot parse the network configuration",
        error.to_string(),
    )
}

fn default_socket() -> PathBuf {
    DEFAULT_SOCKET.into()
}

fn default_pin_dir() -> PathBuf {
    DEFAULT_PIN_DIR.into()
}

fn default_state_dir() -> PathBuf {
    DEFAULT_STATE_DIR.into()
}

fn default_timeout_seconds() -> u64 {
    5
}

fn default_exclude_namespaces() -> Vec<String> {
    vec!["linkerd-cni".to_owned()]
}
