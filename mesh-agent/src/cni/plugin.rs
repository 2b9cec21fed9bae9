//! The commands. Each asks the agent; without one, it goes on alone with what the agent left
//! behind.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use mesh_core::node::{
    Answer, Attachment, AttachmentId, Refusal, RefusalReason, Request, ValidAttachments,
};
use mesh_runtime::log;
use serde_json::Value;

use super::{CniError, Code, Config, Environment, Version};
use crate::{
    node::{Node, NodeError},
    node_api::client::{self, ClientError},
    redirect,
    registry::Registry,
};

pub(super) struct Plugin {
    config: Config,
    version: Version,
}

/// What was to be done, for the error that the runtime shows.
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

    /// Redirects the pod if it has a proxy, and passes the result of the plugins before on as it
    /// came.
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

    /// Forgets the pod. Never fails: a deletion that cannot be done now is noted for the agent, and
    /// what nobody notes its sweep finds.
    pub(super) fn del(&self, environment: &Environment) -> Result<(), CniError> {
        let id = environment.attachment(&self.config.name);
        // Every enrolled pod has a record; all others need nothing.
        if !matches!(
            Registry::knows(&self.config.state_dir, &id.container_id),
            Ok(true)
        ) {
            return Ok(());
        }
        let is_done = match self.ask(&Request::Del(id.clone())) {
            Ok(answer) => matches!(answer, Answer::Deleted),
            Err(_) => self.alone().and_then(|node| node.del(&id)).is_ok(),
        };
        if !is_done {
            self.bury(&id);
        }
        Ok(())
    }

    pub(super) fn check(&self, environment: &Environment) -> Result<(), CniError> {
        self.config.prev_result()?;
        let Some(attachment) = self.attachment(environment)? else {
            return Ok(());
        };
        match self.ask(&Request::Check(attachment.clone())) {
            Ok(Answer::Checked) => Ok(()),
            Ok(answer) => Err(unexpected(answer, Purpose::Check)),
            Err(away) => self
                .alone()
                .and_then(|node| node.check(&attachment))
                .map_err(|error| failed_alone(&away, &error, Purpose::Check)),
        }
    }

    /// Could a pod be enrolled now?
    pub(super) fn status(&self) -> Result<(), CniError> {
        match self.ask(&Request::Status) {
            Ok(_) => Ok(()),
            Err(away) => self.alone().map(drop).map_err(|error| {
                CniError::new(
                    Code::NotAvailable,
                    "pods cannot be enrolled into the mesh",
                    both(&away, &error),
                )
            }),
        }
    }

    pub(super) fn collect(&self) -> Result<(), CniError> {
        let valid = ValidAttachments {
            network: self.config.name.clone(),
            keep: self.config.valid_attachments()?,
        };
        match self.ask(&Request::Gc(valid.clone())) {
            Ok(Answer::Collected(_)) => Ok(()),
            Ok(answer) => Err(unexpected(answer, Purpose::Collect)),
            Err(away) => match self.alone().and_then(|node| node.collect(&valid)) {
                // Nothing was ever enrolled on a node on which no agent ever ran.
                Ok(_) | Err(NodeError::NeverRan { .. }) => Ok(()),
                Err(error) => Err(failed_alone(&away, &error, Purpose::Collect)),
            },
        }
    }

    fn enrol(&self, attachment: &Attachment) -> Result<(), CniError> {
        match self.ask(&Request::Add(attachment.clone())) {
            Ok(Answer::Added(_)) => Ok(()),
            Ok(answer) => Err(unexpected(answer, Purpose::Enrol)),
            Err(away) => self
                .alone()
                .and_then(|node| node.add(attachment))
                .map(drop)
                .map_err(|error| failed_alone(&away, &error, Purpose::Enrol)),
        }
    }

    /// The pod as the agent wants to hear of it; `None` for a pod that is none of ours.
    ///
    /// The cheap reasons come first: whoever did not ask for the mesh must not depend on it, least
    /// of all the agent's own pod.
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
            netns: in_own_directory(netns),
            pod: pod.clone(),
            addresses: self.config.addresses()?,
            annotations: redirect::only_ours(annotations),
        }))
    }

    fn ask(&self, request: &Request) -> Result<Answer, ClientError> {
        let timeout = Duration::from_secs(self.config.timeout_seconds);
        client::ask(&self.config.socket, request, timeout)
    }

    fn alone(&self) -> Result<Node, NodeError> {
        Node::left_behind(&self.config.state_dir, &self.config.pin_dir)
    }

    fn bury(&self, id: &AttachmentId) {
        // Whatever goes wrong here, the namespace is about to go, and the agent's sweep sees that.
        // Without a registry no agent is to come back.
        if let Ok(Some(registry)) = Registry::left_behind(&self.config.state_dir) {
            let _ = registry.bury(id);
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

/// The same name below its directory's own path: runtimes say `/var/run/netns/…`, where `/var/run`
/// is a link that the agent's container does not have. The name itself may be a link too, in
/// `/proc`, and leads nowhere that has a path.
fn in_own_directory(netns: &Path) -> PathBuf {
    let directory = netns.parent().map(fs::canonicalize);
    match (directory, netns.file_name()) {
        (Some(Ok(directory)), Some(name)) => directory.join(name),
        _ => netns.to_owned(),
    }
}

/// A pod of the host's network has the namespace that this process has.
fn is_own_netns(path: &Path) -> bool {
    let identity = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    identity(path).is_some_and(|found| Some(found) == identity(Path::new("/proc/self/ns/net")))
}

fn missing(message: &str) -> CniError {
    CniError::new(
        Code::InvalidEnvironment,
        message,
        "the pod asks for the mesh, and cannot be enrolled without it",
    )
}

fn unexpected(answer: Answer, purpose: Purpose) -> CniError {
    match answer {
        Answer::Refused(Refusal { reason, message }) => {
            CniError::new(purpose.code(reason), message, "")
        }
        _ => CniError::new(
            Code::Undecodable,
            "the mesh agent gave the answer to another question",
            "is it of another version than the plugin?",
        ),
    }
}

/// Neither the agent nor what it left behind could do it.
fn failed_alone(away: &ClientError, error: &NodeError, purpose: Purpose) -> CniError {
    let what = match purpose {
        Purpose::Enrol => "the pod asks for the mesh and cannot be redirected to its proxy",
        Purpose::Check => "the pod's redirection to its proxy is not in place",
        Purpose::Collect => "dead pods could not be collected",
    };
    CniError::new(purpose.code(error.reason()), what, both(away, error))
}

fn both(away: &ClientError, error: &NodeError) -> String {
    format!("{}; without it: {}", log::chain(away), log::chain(error))
}
