//! The commands. Each sends a request to the agent; when the agent does not respond, the plugin
//! continues with the state that the agent left pinned.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_core::node::{
    Attachment, AttachmentId, Refusal, RefusalReason, Request, Response, ValidAttachments,
};
use mesh_runtime::log;
use serde_json::Value;

use super::{CniError, Code, Config, Environment, Version};
use crate::node::{Node, NodeError};
use crate::node_api::client::{self, ClientError};
use crate::redirect;
use crate::registry::Registry;

pub(super) struct Plugin {
    config: Config,
    version: Version,
}

#[derive(Clone, Copy)]
enum Purpose {
    Enrol,
    Check,
    Collect,
}

impl Plugin {
    pub(super) fn new(config: Config, version: Version) -> Self {
        Self { config, version }
    }

    /// Redirects the pod if it has a proxy, and passes on the previous result unchanged.
    pub(super) fn add(&self, environment: &Environment) -> Result<Value, CniError> {
        if let Some(attachment) = self.attachment(environment)? {
            self.enrol(&attachment)?;
        }
        let mut result = self.config.prev_result()?.clone();
        if let Some(fields) = result.as_object_mut() {
            fields
                .entry("cniVersion")
                .or_insert_with(|| self.version.as_str().into());
        }
        Ok(result)
    }

    /// Removes the pod. Never fails: a deletion that cannot be completed is recorded for the agent,
    /// whose reconciliation also finds pods without a record of their deletion.
    pub(super) fn del(&self, environment: &Environment) -> Result<(), CniError> {
        let id = environment.attachment(&self.config.name);
        // Every enrolled pod has a record; others need no deletion.
        if !matches!(
            Registry::has_record(&self.config.state_dir, &id.container_id),
            Ok(true)
        ) {
            return Ok(());
        }
        let is_done = match self.call(&Request::Del(id.clone())) {
            Ok(response) => matches!(response, Response::Deleted),
            Err(_) => self.open_node().and_then(|node| node.del(&id)).is_ok(),
        };
        if !is_done {
            self.add_tombstone(&id);
        }
        Ok(())
    }

    pub(super) fn check(&self, environment: &Environment) -> Result<(), CniError> {
        self.config.prev_result()?;
        let Some(attachment) = self.attachment(environment)? else {
            return Ok(());
        };
        match self.call(&Request::Check(attachment.clone())) {
            Ok(Response::Checked) => Ok(()),
            Ok(response) => Err(unexpected(response, Purpose::Check)),
            Err(agent_error) => self
                .open_node()
                .and_then(|node| node.check(&attachment))
                .map_err(|error| offline_error(&agent_error, &error, Purpose::Check)),
        }
    }

    /// Checks whether a pod could be enrolled now.
    pub(super) fn status(&self) -> Result<(), CniError> {
        match self.call(&Request::Status) {
            Ok(_) => Ok(()),
            Err(agent_error) => self.open_node().map(drop).map_err(|error| {
                CniError::new(
                    Code::NotAvailable,
                    "pods cannot be enrolled into the mesh",
                    join_errors(&agent_error, &error),
                )
            }),
        }
    }

    pub(super) fn collect(&self) -> Result<(), CniError> {
        let valid = ValidAttachments {
            network: self.config.name.clone(),
            keep: self.config.valid_attachments()?,
        };
        match self.call(&Request::Gc(valid.clone())) {
            Ok(Response::Collected(_)) => Ok(()),
            Ok(response) => Err(unexpected(response, Purpose::Collect)),
            Err(agent_error) => match self.open_node().and_then(|node| node.collect(&valid)) {
                // On a node where no agent ever ran, no pod was enrolled.
                Ok(_) | Err(NodeError::NotInitialized { .. }) => Ok(()),
                Err(error) => Err(offline_error(&agent_error, &error, Purpose::Collect)),
            },
        }
    }

    fn enrol(&self, attachment: &Attachment) -> Result<(), CniError> {
        match self.call(&Request::Add(attachment.clone())) {
            Ok(Response::Added(_)) => Ok(()),
            Ok(response) => Err(unexpected(response, Purpose::Enrol)),
            Err(agent_error) => self
                .open_node()
                .and_then(|node| node.add(attachment))
                .map(drop)
                .map_err(|error| offline_error(&agent_error, &error, Purpose::Enrol)),
        }
    }

    /// Returns the attachment for the agent; `None` for a pod that is not meshed.
    ///
    /// The cheap checks come first: a pod outside of the mesh must not depend on it, least of all
    /// the agent's own pod.
    fn attachment(&self, environment: &Environment) -> Result<Option<Attachment>, CniError> {
        let excluded = &self.config.exclude_namespaces;
        let pod = environment.pod.as_ref();
        if pod.is_some_and(|pod| excluded.contains(&pod.namespace)) {
            return Ok(None);
        }
        let annotations = self.config.annotations();
        if !redirect::is_injected(&annotations) {
            return Ok(None);
        }
        let pod =
            pod.ok_or_else(|| missing("CNI_ARGS has no K8S_POD_NAMESPACE and K8S_POD_NAME"))?;
        let netns = environment
            .netns
            .as_ref()
            .ok_or_else(|| missing("CNI_NETNS is missing"))?;
        if is_own_netns(netns) {
            return Ok(None);
        }
        Ok(Some(Attachment {
            id: environment.attachment(&self.config.name),
            netns: with_canonical_parent(netns),
            pod: pod.clone(),
            addresses: self.config.addresses()?,
            annotations: redirect::mesh_annotations(annotations),
        }))
    }

    fn call(&self, request: &Request) -> Result<Response, ClientError> {
        let timeout = Duration::from_secs(self.config.timeout_seconds);
        client::call(&self.config.socket, request, timeout)
    }

    fn open_node(&self) -> Result<Node, NodeError> {
        Node::open_offline(&self.config.state_dir, &self.config.pin_dir)
    }

    fn add_tombstone(&self, id: &AttachmentId) {
        // Failures are ignored: the namespace is about to be deleted, and the agent's
        // reconciliation detects that. Without a registry no agent will read the tombstone.
        if let Ok(Some(registry)) = Registry::open_existing(&self.config.state_dir) {
            let _ = registry.add_tombstone(id);
        }
    }
}

impl Purpose {
    fn code(self, reason: RefusalReason) -> Code {
        match (self, reason) {
            (_, RefusalReason::TryAgain) => Code::TryAgainLater,
            (Self::Enrol, _) => Code::NotEnrollable,
            (Self::Check, _) => Code::NotInPlace,
            (Self::Collect, _) => Code::Io,
        }
    }
}

/// Canonicalises the parent directory: runtimes pass `/var/run/netns/…`, where `/var/run` is a
/// symbolic link that the agent's container lacks. The last component stays as it is: it may be a
/// link in `/proc`, whose target has no path.
fn with_canonical_parent(netns: &Path) -> PathBuf {
    let directory = netns.parent().map(fs::canonicalize);
    match (directory, netns.file_name()) {
        (Some(Ok(directory)), Some(name)) => directory.join(name),
        _ => netns.to_owned(),
    }
}

/// Returns whether the path is the namespace of this process, as for a host-network pod.
fn is_own_netns(path: &Path) -> bool {
    let device_and_inode = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    device_and_inode(path)
        .is_some_and(|found| Some(found) == device_and_inode(Path::new("/proc/self/ns/net")))
}

fn missing(message: &str) -> CniError {
    CniError::new(
        Code::InvalidEnvironment,
        message,
        "the pod is meshed, and cannot be enrolled without it",
    )
}

fn unexpected(response: Response, purpose: Purpose) -> CniError {
    match response {
        Response::Refused(Refusal { reason, message }) => {
            CniError::new(purpose.code(reason), message, "")
        }
        _ => CniError::new(
            Code::Undecodable,
            "the mesh agent sent the response to another request",
            "agent and plugin may be of different versions",
        ),
    }
}

/// The error when neither the agent nor the plugin by itself could complete the command.
fn offline_error(agent_error: &ClientError, error: &NodeError, purpose: Purpose) -> CniError {
    let what = match purpose {
        Purpose::Enrol => "the pod is meshed and cannot be redirected to its proxy",
        Purpose::Check => "the pod's redirection to its proxy is not in place",
        Purpose::Collect => "dead pods could not be collected",
    };
    CniError::new(
        purpose.code(error.reason()),
        what,
        join_errors(agent_error, error),
    )
}

fn join_errors(agent_error: &ClientError, error: &NodeError) -> String {
    format!(
        "{}; without it: {}",
        log::chain(agent_error),
        log::chain(error)
    )
}
