//! Writes: of the script, and of the controllers.

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
    /// Whether the process holds the Lease after it.
    pub holds: bool,
}

/// A write of a status that has changed it.
#[derive(Clone, Debug)]
pub struct StatusWrite {
    pub at: Duration,
    pub sent: Duration,
    pub process: usize,
    pub id: Id,
    pub status: Value,
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
                holds: holds(&after),
            });
        }
        if *is_status {
            self.status_writes.push(StatusWrite {
                at,
                sent,
                process,
                id: id.clone(),
                status: after["status"].clone(),
            });
        }
        let after = self.store.commit(id.clone(), Some(after), 0);
        (200, after.unwrap_or_default())
    }
}
