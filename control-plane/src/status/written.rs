//! The statuses that the writer keeps, with Linkerd's metrics of its status controller.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use kube::api::ApiResource;
use mesh_objects::model::ReportedObject;

use super::desired;
use super::objects::{ReportedKey, StatusObjects};
use super::patch::{CONTROLLER_NAME, patch};
use crate::writer::{Action, Description, MetricNames, Write, Written};

impl Written for StatusObjects {
    type Key = ReportedKey;

    const FIELD_MANAGER: &'static str = CONTROLLER_NAME;

    const SUBJECT: &'static str = "statuses";

    const METRICS: MetricNames = MetricNames {
        writes: Description(
            "resource_status_patches_total",
            "Successful patches of statuses",
        ),
        api_errors: Description(
            "resource_status_patch_api_errors_total",
            "Patches of statuses that failed with an error of the API server",
        ),
        timeouts: Description(
            "resource_status_patch_timeouts_total",
            "Patches of statuses without a response in time",
        ),
        duration: Description(
            "resource_status_patch_duration_seconds",
            "Time of successful patches of statuses",
        ),
        enqueues: Description(
            "resource_status_patch_enqueues_total",
            "Objects that were added to the queue because their status differs",
        ),
        enqueue_overflows: Description(
            "resource_status_patch_enqueue_overflows_total",
            "Objects that were not added because the queue was full",
        ),
        dequeues: Description(
            "resource_status_patch_dequeues_total",
            "Objects that were taken from the queue",
        ),
        drops: Description(
            "resource_status_patch_drops_total",
            "Objects that were removed from the queue when this replica lost the Lease",
        ),
    };

    fn keys(&self) -> impl Iterator<Item = &ReportedKey> + Send {
        self.reported.keys()
    }

    fn contains(&self, key: &ReportedKey) -> bool {
        self.reported.contains_key(key)
    }

    fn version(&self, key: &ReportedKey) -> Option<&Arc<str>> {
        self.reported.get(key)?.resource_version.as_ref()
    }

    fn write(&self, key: &ReportedKey, now: Timestamp) -> Option<Write> {
        let object = self.reported.get(key)?;
        let patch = patch(object, &desired(self, object), now)?;
        Some(Write {
            resource: resource(object),
            name: key.name.clone(),
            action: Action::PatchStatus(patch),
        })
    }
}

fn resource(object: &ReportedObject) -> ApiResource {
    let api_version = object.api_version.to_string();
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: object.kind.as_str().to_owned(),
        plural: object.kind.plural().to_owned(),
        api_version,
    }
}

impl fmt::Display for ReportedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}
