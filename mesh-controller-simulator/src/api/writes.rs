//! Writes: of the script, and of the controllers.

use std::fmt;
use std::time::Duration;

use mesh_test_support::kube_api::merge;
use serde_json::{Value, json};

use super::path::Path;
use super::{State, failure};
use crate::store::Id;

/// A claim or a release of a Lease.
#[derive(Clone, Debug)]
pub struct Claim {
    pub at: Duration,
    pub sent: Duration,
    pub process: usize,
    /// The name of the Lease.
    pub lease: String,
    /// Whether the process holds the Lease after it.
    pub holds: bool,
}

/// A write of a controller that has changed a status or an EndpointSlice.
#[derive(Clone, Debug)]
pub struct Write {
    pub at: Duration,
    pub sent: Duration,
    pub process: usize,
    pub id: Id,
    /// The written status or slice; null for a deletion.
    pub value: Value,
}

/// The Lease of the writer of statuses.
pub const STATUS_LEASE: &str = "policy-controller-write";

/// The Lease of the writer of EndpointSlices.
pub const SLICE_LEASE: &str = "linkerd-destination-endpoint-write";

impl Write {
    /// Returns the Lease that its process has to hold.
    pub fn lease(&self) -> &'static str {
        if is_slice(&self.id) {
            SLICE_LEASE
        } else {
            STATUS_LEASE
        }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lease() {
            SLICE_LEASE => write!(f, "{}", self.id),
            _ => write!(f, "the status of {}", self.id),
        }
    }
}

fn is_slice(id: &Id) -> bool {
    id.resource.api().plural == "endpointslices"
}

impl State {
    pub(super) fn write(&mut self, mut object: Value, skipped: u64) {
        let id = Id::of(&object);
        let mut generation = 1;
        if let Some(before) = self.store.get(&id) {
            let last = before["metadata"]["generation"].as_u64().unwrap_or(1);
            generation = last + u64::from(before["spec"] != object["spec"]);
            if object["status"].is_null() && !before["status"].is_null() {
                object["status"] = before["status"].clone();
            }
        }
        object["metadata"]["generation"] = generation.into();
        self.store.commit(id, Some(object), skipped);
        self.record();
    }

    pub(super) fn delete(&mut self, id: &Id, skipped: u64) {
        if self.store.get(id).is_some() {
            self.store.commit(id.clone(), None, skipped);
            self.record();
        }
    }

    /// Creates an object, or replaces the version that it names. Returns the status and the body of
    /// the response.
    pub(super) fn put(
        &mut self,
        path: &Path,
        object: Value,
        (process, sent): (usize, Duration),
    ) -> (u16, Value) {
        let creates = matches!(path, Path::Objects { .. });
        let id = Id::of(&object);
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        match self.store.get(&id) {
            Some(_) if creates => return (409, failure(409)),
            None if !creates => return (404, failure(404)),
            Some(before) if version(before) != version(&object) => return (409, failure(409)),
            _ => {}
        }
        self.commit_of(process, sent, id, Some(object))
    }

    /// Deletes the version of an object that the preconditions name.
    pub(super) fn remove(
        &mut self,
        path: &Path,
        options: &Value,
        (process, sent): (usize, Duration),
    ) -> (u16, Value) {
        let Path::Object { id, .. } = path else {
            return (405, failure(405));
        };
        let Some(before) = self.store.get(id) else {
            return (404, failure(404));
        };
        let required = &options["preconditions"]["resourceVersion"];
        if !required.is_null() && *required != before["metadata"]["resourceVersion"] {
            return (409, failure(409));
        }
        self.commit_of(process, sent, id.clone(), None)
    }

    fn commit_of(
        &mut self,
        process: usize,
        sent: Duration,
        id: Id,
        object: Option<Value>,
    ) -> (u16, Value) {
        self.writes.push(Write {
            at: self.now(),
            sent,
            process,
            id: id.clone(),
            value: object.clone().unwrap_or_default(),
        });
        let after = self.store.commit(id, object, 0);
        self.record();
        (200, after.unwrap_or_else(|| json!({ "kind": "Status" })))
    }

    /// Returns the status and the body of the response.
    pub(super) fn patch(
        &mut self,
        path: &Path,
        patch: &Value,
        is_apply: bool,
        (process, sent): (usize, Duration),
    ) -> (u16, Value) {
        let Path::Object { id, is_status } = path else {
            // An event about an object, which nothing reads.
            return (201, patch.clone());
        };
        let before = self.store.get(id).cloned();
        let given = patch["metadata"]["resourceVersion"].as_str();
        let mut after = match &before {
            None if is_apply => json!({}),
            None => return (404, failure(404)),
            Some(before) => {
                let current = before["metadata"]["resourceVersion"].as_str();
                if given.is_some() && given != current {
                    return (409, failure(409));
                }
                before.clone()
            }
        };
        if *is_status {
            merge(&mut after["status"], &patch["status"]);
        } else {
            merge(&mut after, patch);
        }
        if let Some(before) = &before {
            after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        }
        let at = self.now();
        if before.as_ref() == Some(&after) {
            return (200, after);
        }
        let holds = |value: &Value| value["spec"]["holderIdentity"].is_string();
        if id.resource.api().plural == "leases" && patch["spec"].get("holderIdentity").is_some() {
            self.claims.push(Claim {
                at,
                sent,
                process,
                lease: id.name.clone(),
                holds: holds(&after),
            });
        }
        if *is_status {
            self.writes.push(Write {
                at,
                sent,
                process,
                id: id.clone(),
                value: after["status"].clone(),
            });
        }
        let after = self.store.commit(id.clone(), Some(after), 0);
        (200, after.unwrap_or_default())
    }
}
