//! The requests that bring mirrors to their desired state.

use std::sync::Arc;

use jiff::Timestamp;
use kube::api::ApiResource;
use mesh_core::annotation::{
    LOCAL_DISCOVERY, MIRRORED_CLUSTER, MIRRORED_SERVICE, REMOTE_DISCOVERY,
};
use mesh_k8s::crd::Link;
use mesh_k8s::kinds::core::{Endpoints, Namespace, Service};
use mesh_objects::model::{Labels, Name};
use serde_json::json;

use super::content::{ServiceContent, of_federated, of_service};
use super::objects::Mirrors;
use super::planned::{Entry, Key, Source};
use super::records::{LocalMirror, LocalService, Pairs, ports_fingerprint, subsets_fingerprint};
use super::target::Target;
use super::{federated, status};
use crate::writer::{Action, Answer, Change, Description, Field, MetricNames, Write, Written};

/// The name of the process as the owner of fields.
pub(crate) const FIELD_MANAGER: &str = "service-mirror";

const LABELS: &[&str] = &["metadata", "labels"];
const ANNOTATIONS: &[&str] = &["metadata", "annotations"];
const PORTS: &[&str] = &["spec", "ports"];
const REMOTE_MEMBERS: &[&str] = &["metadata", "annotations", REMOTE_DISCOVERY];
/// The label that makes a Service a mirror. Who has set it is a service mirror, also Linkerd's,
/// whose work this one continues (docs/adr/0236).
const MARK: &[&str] = &["metadata", "labels", MIRRORED_SERVICE];
const LOCAL_MEMBERS: &[&str] = &["metadata", "annotations", LOCAL_DISCOVERY];

/// The lists of a federated Service's members.
#[derive(Default)]
struct Members {
    remote: String,
    /// Mirrors of this cluster may be members besides its own Service.
    local: String,
}

impl Written for Mirrors {
    type Key = Key;

    const FIELD_MANAGER: &'static str = FIELD_MANAGER;

    const SUBJECT: &'static str = "mirrors";

    const METRICS: MetricNames = MetricNames {
        writes: Description(
            "mesh_service_mirror_writes_total",
            "Successful writes of mirrors, Endpoints, namespaces and statuses of Links",
        ),
        api_errors: Description(
            "mesh_service_mirror_write_api_errors_total",
            "Writes of mirrors that failed with an error of the API server",
        ),
        timeouts: Description(
            "mesh_service_mirror_write_timeouts_total",
            "Writes of mirrors without a response in time",
        ),
        duration: Description(
            "mesh_service_mirror_write_duration_seconds",
            "Time of successful writes of mirrors",
        ),
        enqueues: Description(
            "mesh_service_mirror_write_enqueues_total",
            "Objects that were added to the queue because they differ",
        ),
        enqueue_overflows: Description(
            "mesh_service_mirror_write_enqueue_overflows_total",
            "Objects that were not added because the queue was full",
        ),
        dequeues: Description(
            "mesh_service_mirror_write_dequeues_total",
            "Objects that were taken from the queue",
        ),
        drops: Description(
            "mesh_service_mirror_write_drops_total",
            "Objects that were removed from the queue when this replica lost the Lease",
        ),
    };

    fn keys(&self) -> impl Iterator<Item = &Key> + Send {
        self.plan().entries.keys()
    }

    fn contains(&self, key: &Key) -> bool {
        self.plan().entries.contains_key(key)
    }

    fn version(&self, key: &Key) -> Option<&Arc<str>> {
        match key {
            Key::Namespace(_) => None,
            Key::Service(name) => match &**self.services.objects.get(name)? {
                LocalService::Mirror(mirror) => Some(&mirror.version),
                LocalService::Other => None,
            },
            Key::Endpoints(name) => Some(&self.endpoints.objects.get(name)?.version),
            Key::Status(name) => Some(&self.links.objects.get(name)?.version),
        }
    }

    fn write(&self, key: &Key, now: Timestamp) -> Option<Write> {
        let entry = self.plan().entries.get(key)?;
        let target = self.target.as_ref()?;
        let (resource, name, action) = match key {
            Key::Namespace(name) => {
                let resource = ApiResource::erase::<Namespace>(&());
                let action = self.namespace_action(target, name)?;
                (resource, Name::new("", name), action)
            }
            Key::Service(name) => {
                let resource = ApiResource::erase::<Service>(&());
                let action = self.service_action(target, name, entry)?;
                (resource, name.clone(), action)
            }
            Key::Endpoints(name) => {
                let resource = ApiResource::erase::<Endpoints>(&());
                let action = self.endpoints_action(target, name, entry)?;
                (resource, name.clone(), action)
            }
            Key::Status(name) => {
                let resource = ApiResource::erase::<Link>(&());
                let action = Action::PatchStatus(status::patch(self, now)?);
                (resource, name.clone(), action)
            }
        };
        Some(Write {
            resource,
            name,
            action,
        })
    }

    fn answered(&self, key: &Key, answer: Answer<'_>) {
        match answer {
            Answer::Written => self.refuse(key, None),
            Answer::Refused(why) => self.refuse(key, Some(why)),
            // Another client's object has the name.
            Answer::Obsolete(why) if self.version(key).is_none() => self.refuse(key, Some(why)),
            Answer::Obsolete(_) => {}
        }
    }
}

impl Mirrors {
    fn namespace_action(&self, target: &Target, name: &Arc<str>) -> Option<Action> {
        let cluster = target.cluster.as_deref()?;
        let is_missing = !self.namespaces.objects.contains(name);
        is_missing.then(|| {
            Action::Create(json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": &**name,
                    "labels": { MIRRORED_SERVICE: "true", MIRRORED_CLUSTER: cluster },
                },
            }))
        })
    }

    fn service_action(&self, target: &Target, name: &Name, entry: &Entry) -> Option<Action> {
        let local = match self.services.objects.get(name).map(|it| &**it) {
            None => None,
            Some(LocalService::Mirror(mirror)) => Some(mirror),
            Some(LocalService::Other) => return None,
        };
        match entry {
            Entry::Absent => local.map(delete),
            Entry::Member(source) => self.member_action(target, name, source, local),
            Entry::NoMember(base) => leave_action(target, base, local?),
            _ => {
                let content = of_service(target, entry)?;
                let Some(local) = local else {
                    return Some(Action::Create(content.object(name)));
                };
                // The address of a Service cannot be removed or added.
                if local.headless != content.headless {
                    return Some(delete(local));
                }
                (!has(local, &content)).then(|| set(local, fields(&content)))
            }
        }
    }

    /// Adds a member to its federated Service. The oldest Link of the members owns ports and
    /// metadata, and before it the member of this cluster.
    fn member_action(
        &self,
        target: &Target,
        name: &Name,
        source: &Source,
        local: Option<&LocalMirror>,
    ) -> Option<Action> {
        let base = &*source.name.name;
        let before = local.map_or_else(Members::default, Members::of);
        let members = match &target.cluster {
            None => Members {
                local: federated::join(&before.local, base),
                ..before
            },
            Some(cluster) => Members {
                remote: federated::join(&before.remote, &format!("{base}@{cluster}")),
                ..before
            },
        };
        let content = of_federated(target, source, &members.remote, &members.local);
        let Some(local) = local else {
            return Some(Action::Create(content.object(name)));
        };
        if self.owns(target, base, &members) {
            return (!has(local, &content)).then(|| set(local, fields(&content)));
        }
        let before = local.remote_members.as_deref().unwrap_or_default();
        let field = Field {
            path: REMOTE_MEMBERS,
            change: Change::Set(members.remote.as_str().into()),
        };
        (before != members.remote).then(|| set(local, vec![field]))
    }

    fn owns(&self, target: &Target, base: &str, members: &Members) -> bool {
        if target.cluster.is_none() {
            return true;
        }
        if federated::has(&members.local, base) {
            return false;
        }
        let links = federated::clusters(&members.remote);
        let links = links.filter_map(|cluster| {
            let name = self.link_of(cluster)?;
            Some((self.links.objects.get(name)?.created, name))
        });
        let oldest = links.min().map(|(_, name)| name);
        oldest == self.own_link().map(|(name, _)| name)
    }

    fn endpoints_action(&self, target: &Target, name: &Name, entry: &Entry) -> Option<Action> {
        let local = self.endpoints.objects.get(name);
        if let Entry::Absent = entry {
            let version = local?.version.to_string();
            return Some(Action::Delete {
                resource_version: Some(version),
            });
        }
        let content = self.endpoints_content(target, entry)?;
        let Some(local) = local else {
            return Some(Action::Create(content.object(name, None)));
        };
        // Another Link has the same Service for probes.
        if Some(&local.cluster) != target.cluster.as_ref() {
            return None;
        }
        let pairs = Pairs::new(Some(&content.labels), Some(&content.annotations));
        let subsets = subsets_fingerprint(&content.subsets);
        if local.pairs.include(&pairs) && local.subsets == subsets {
            return None;
        }
        let version = Some(&*local.version);
        Some(Action::Replace(content.object(name, version)))
    }
}

/// Removes a member. The last one takes the Service with it.
fn leave_action(target: &Target, base: &str, local: &LocalMirror) -> Option<Action> {
    let mut members = Members::of(local);
    let (path, list) = match &target.cluster {
        None => {
            members.local = federated::leave(&members.local, base);
            (LOCAL_MEMBERS, &members.local)
        }
        Some(cluster) => {
            members.remote = federated::leave(&members.remote, &format!("{base}@{cluster}"));
            (REMOTE_MEMBERS, &members.remote)
        }
    };
    let change = match list.as_str() {
        "" => Change::Remove,
        list => Change::Set(list.into()),
    };
    if members.local.is_empty() && members.remote.is_empty() {
        return Some(delete(local));
    }
    Some(set(local, vec![Field { path, change }]))
}

impl Members {
    fn of(local: &LocalMirror) -> Self {
        let list = |list: &Option<Arc<str>>| list.as_deref().unwrap_or_default().to_owned();
        Self {
            remote: list(&local.remote_members),
            local: list(&local.local_members),
        }
    }
}

/// Returns whether a Service has what it should have. It may have more labels and annotations.
fn has(local: &LocalMirror, content: &ServiceContent<'_>) -> bool {
    let pairs = Pairs::new(Some(&content.labels), Some(&content.annotations));
    local.pairs.include(&pairs) && local.ports == ports_fingerprint(content.ports)
}

fn fields(content: &ServiceContent<'_>) -> Vec<Field> {
    let merge = |path, pairs: &Labels| {
        let pairs = pairs.iter();
        let keys = pairs.map(|(key, value)| (key.clone(), value.as_str().into()));
        Field {
            path,
            change: Change::Merge {
                keys: keys.collect(),
                mark: MARK,
            },
        }
    };
    let ports = Field {
        path: PORTS,
        change: Change::Set(json!(content.ports)),
    };
    let (labels, annotations) = (&content.labels, &content.annotations);
    vec![
        merge(LABELS, labels),
        merge(ANNOTATIONS, annotations),
        ports,
    ]
}

fn set(local: &LocalMirror, fields: Vec<Field>) -> Action {
    Action::Set {
        resource_version: local.version.to_string(),
        fields,
    }
}

fn delete(local: &LocalMirror) -> Action {
    Action::Delete {
        resource_version: Some(local.version.to_string()),
    }
}
