//! Follows the Links of the namespace.

use std::borrow::Cow;
use std::sync::Arc;

use futures_util::StreamExt as _;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use mesh_cluster::daemon::Daemon;
use mesh_k8s::crd::{Link, LinkSpec};
use mesh_k8s::invalid::{Invalid, summary};
use mesh_k8s::kinds::ObjectMeta;
use mesh_objects::model::Name;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::follow::{self, Step, steps};
use super::objects::{LinkRecord, Mirrors};
use super::publisher::Publisher;
use super::records::version;
use super::target::Target;

/// Follows Links, and tells the other tasks what the one of this process says.
pub(crate) struct LinkTask {
    publisher: Publisher,
    targets: watch::Sender<Option<Arc<Target>>>,
    /// Whether it was logged that another Link of the cluster is in effect.
    is_second: bool,
}

/// A Link of a list or an event. Its parts are read one by one, so that an invalid Link does not
/// hide others. Its status may be long.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RawLink {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Option<Box<RawValue>>,
}

/// Why a Link has no effect.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("cannot be read")]
    Json(#[source] serde_json::Error),
    #[error("{}", summary(.0))]
    Invalid(Vec<Invalid>),
}

impl LinkTask {
    /// Starts the task. The process is not ready until the Links were listed.
    pub(crate) fn spawn(
        daemon: &Daemon,
        client: &Client,
        namespace: &str,
        publisher: &Publisher,
    ) -> watch::Receiver<Option<Arc<Target>>> {
        let listed = daemon.readiness.condition("Links to be listed");
        let (targets, received) = watch::channel(None);
        let mut task = Self {
            publisher: publisher.clone(),
            targets,
            is_second: false,
        };
        let links: Api<RawLink> = Api::namespaced(client.clone(), namespace);
        let links = steps(links, follow::config(), "Links");
        daemon.supervisor.spawn("Links", async move {
            let mut links = std::pin::pin!(links);
            while let Some(step) = links.next().await {
                listed.set(true);
                task.apply(step);
            }
        });
        received
    }

    fn apply(&mut self, step: Step<RawLink>) {
        let mut target = None;
        let is_second = &mut self.is_second;
        self.publisher.change(|mirrors| {
            let changed = set_link(mirrors, step);
            target.clone_from(&mirrors.target);
            warn_of_second(mirrors, is_second);
            changed
        });
        self.targets.send_if_modified(|current| {
            let differs = *current != target;
            *current = target;
            differs
        });
    }
}

/// Applies a change of a Link, and returns whether it has an effect. The last valid version of an
/// invalid Link stays.
pub(super) fn set_link(mirrors: &mut Mirrors, step: Step<RawLink>) -> bool {
    let own = mirrors.settings.link.clone();
    let is_own = |name: &Name| own.as_ref() == Some(&name.name);
    let mut target = mirrors.target.clone();
    let step = match step {
        Step::Set(name, object) => {
            let Some((record, valid)) = read(mirrors, &name, &object) else {
                return false;
            };
            if let Some(valid) = valid.filter(|_| is_own(&name)) {
                target = Some(Arc::new(valid));
            }
            Step::Set(name, record)
        }
        Step::Delete(name) => {
            if is_own(&name) {
                tracing::warn!(link = %name, "The Link was deleted; its mirrors stay as they are");
                target = None;
            }
            Step::Delete(name)
        }
        Step::Listed(listed) => {
            if let Some(link) = own.as_ref().filter(|_| !listed.iter().any(is_own)) {
                tracing::warn!(%link, "There is no Link of this name; nothing is mirrored until there is one");
                target = None;
            }
            Step::Listed(listed)
        }
    };
    let is_same = target == mirrors.target;
    mirrors.target = target;
    let is_status = match &step {
        Step::Set(name, link) => {
            let before = mirrors.links.objects.get(name);
            before.is_some_and(|it| (it.created, &it.spec) == (link.created, &link.spec))
        }
        Step::Delete(_) | Step::Listed(_) => false,
    };
    let changed = follow::apply(&mut mirrors.links, step.map(Some)) || !is_same;
    if changed && !(is_same && is_status) {
        mirrors.forget_plan();
    }
    changed
}

/// Returns the record of a Link, and its target if it is valid. An invalid Link keeps its last
/// valid spec, if there is one.
fn read(mirrors: &Mirrors, name: &Name, object: &RawLink) -> Option<(LinkRecord, Option<Target>)> {
    let before = mirrors.links.objects.get(name);
    let (spec, target) = match valid(object) {
        Ok((spec, target)) => (spec, Some(target)),
        Err(error) => {
            log_invalid(name, &error, before.is_some());
            (before?.spec.clone(), None)
        }
    };
    let status = object.status.as_ref();
    let status = status.and_then(|status| serde_json::from_str(status.get()).ok());
    let meta = &object.metadata;
    let record = LinkRecord {
        version: version(meta),
        created: meta.creation_timestamp.as_ref().map(|time| time.0),
        spec,
        // Another client may have written anything, which is replaced.
        status: status.unwrap_or_default(),
    };
    Some((record, target))
}

fn valid(object: &RawLink) -> Result<(LinkSpec, Target), LinkError> {
    let spec: LinkSpec = serde_json::from_value(object.spec.clone()).map_err(LinkError::Json)?;
    let target = Target::of_link(&spec).map_err(LinkError::Invalid)?;
    Ok((spec, target))
}

impl Resource for RawLink {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Link::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Link::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Link::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Link::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn log_invalid(link: &Name, error: &LinkError, has_before: bool) {
    let error = error as &dyn std::error::Error;
    if has_before {
        tracing::error!(%link, error, "Invalid Link; its last valid version stays in effect");
    } else {
        tracing::error!(%link, error, "Invalid Link; it has no effect");
    }
}

fn warn_of_second(mirrors: &Mirrors, was_second: &mut bool) {
    let own = mirrors.own_link().map(|(name, _)| name);
    let cluster = mirrors
        .target
        .as_ref()
        .and_then(|target| target.cluster.as_deref());
    let in_effect = cluster.and_then(|cluster| mirrors.link_of(cluster));
    let is_second = mirrors.links.complete && own.is_some() && in_effect != own;
    if is_second
        && !std::mem::replace(was_second, is_second)
        && let (Some(link), Some(other)) = (own, in_effect)
    {
        tracing::error!(%link, %other, cluster, "Another Link with the same targetClusterName is older; this one has no effect");
    }
    *was_second = is_second;
}
