//! The objects that decide about slices, and the slices that should exist. Without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use mesh_cluster::source::Change;
use mesh_core::rights::{self, Right};
use mesh_k8s::select::service_matches;
use mesh_objects::model::{
    ExternalKind, ExternalSlice, ExternalSpec, Kind, Name, Object, SelectedWorkload,
    SelectingService, WrittenSlice,
};

use super::desired::{Slices, desired_slices, is_accepted};
use super::manifest::{manifest, resource};
use crate::writer::{Action, Description, MetricNames, Write, Written};

/// The Services, the workloads and the slices, and the slices that should exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExternalSlices {
    services: Table<SelectingService>,
    workloads: Table<SelectedWorkload>,
    written: Table<WrittenSlice>,
    desired: Table<ExternalSlice>,
}

type Table<T> = BTreeMap<Name, Arc<T>>;

/// The rights to write slices.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    let verbs = &["create", "update", "delete"];
    rights::all("discovery.k8s.io", "endpointslices", verbs)
}

impl ExternalSlices {
    /// Returns whether slices may depend on one of the changes.
    pub(crate) fn may_depend_on(batch: &[Change]) -> bool {
        batch.iter().any(|change| match change {
            Change::Apply(object) => matches!(object, Object::External(_)),
            Change::Delete(key) => matches!(key.kind, Kind::External(_)),
            Change::Replace(_) => true,
        })
    }

    pub(crate) fn apply(&mut self, batch: &[Change]) {
        let mut affected = BTreeSet::new();
        for change in batch {
            match change {
                Change::Apply(object) => self.insert(object, &mut affected),
                Change::Delete(key) => {
                    if let Kind::External(kind) = key.kind {
                        self.set(kind, &key.name, None, &mut affected);
                    }
                }
                Change::Replace(objects) => {
                    *self = Self::default();
                    affected.clear();
                    for object in objects {
                        self.insert(object, &mut affected);
                    }
                }
            }
        }
        for service in affected {
            self.decide(&service);
        }
    }

    fn insert(&mut self, object: &Object, affected: &mut BTreeSet<Name>) {
        if let Object::External(object) = object {
            self.set(object.kind, &object.name, object.spec.as_ref(), affected);
        }
    }

    /// Sets or removes an object, and adds the Services whose slices depend on it.
    fn set(
        &mut self,
        kind: ExternalKind,
        name: &Name,
        spec: Option<&ExternalSpec>,
        affected: &mut BTreeSet<Name>,
    ) {
        match kind {
            ExternalKind::Service => {
                let service = match spec {
                    Some(ExternalSpec::Service(service)) => Some(service),
                    _ => None,
                };
                exchange(&mut self.services, name, service);
                affected.insert(name.clone());
            }
            ExternalKind::Workload => {
                let workload = match spec {
                    Some(ExternalSpec::Workload(workload)) => Some(workload),
                    _ => None,
                };
                if let Some(workload) = workload {
                    warn_of_refused_addresses(name, workload);
                }
                let before = exchange(&mut self.workloads, name, workload);
                for workload in before.iter().chain(workload) {
                    affected.extend(self.selecting(&name.namespace, workload));
                }
            }
            ExternalKind::Slice => {
                let slice = match spec {
                    Some(ExternalSpec::Slice(slice)) => Some(slice),
                    _ => None,
                };
                let before = exchange(&mut self.written, name, slice);
                let contents = before.iter().chain(slice);
                let contents = contents.filter_map(|slice| slice.content.as_ref());
                affected.extend(contents.map(|content| Name {
                    namespace: name.namespace.clone(),
                    name: content.service.clone(),
                }));
            }
        }
    }

    /// Returns the Services that select a workload.
    fn selecting(
        &self,
        namespace: &Arc<str>,
        workload: &SelectedWorkload,
    ) -> impl Iterator<Item = Name> {
        in_namespace(&self.services, namespace)
            .filter(|(_, service)| service_matches(Some(&service.selector), Some(&workload.labels)))
            .map(|(name, _)| name.clone())
    }

    /// Decides which slices a Service should have.
    fn decide(&mut self, service: &Name) {
        let namespace = &service.namespace;
        let is_of_service =
            |(_, slice): &(&Name, &Arc<ExternalSlice>)| slice.service == service.name;
        let decided: Table<ExternalSlice> = in_namespace(&self.desired, namespace)
            .filter(is_of_service)
            .map(|(name, slice)| (name.clone(), slice.clone()))
            .collect();
        for slice in decided.keys() {
            self.desired.remove(slice);
        }
        let Some(spec) = self.services.get(service) else {
            return;
        };
        let written = || in_namespace(&self.written, namespace);
        let contents =
            written().filter_map(|(name, slice)| Some((&name.name, slice.content.as_ref()?)));
        let contents = contents.filter(|(_, content)| content.service == service.name);
        let missing = decided
            .iter()
            .filter(|(name, _)| !self.written.contains_key(*name));
        let missing = missing.map(|(name, slice)| (&name.name, &**slice));
        let slices = Slices {
            names: written().map(|(name, _)| &name.name).collect(),
            contents: contents.chain(missing).collect(),
        };
        let workloads = in_namespace(&self.workloads, namespace);
        let workloads = workloads.map(|(name, workload)| (&name.name, &**workload));
        for (name, slice) in desired_slices(service, spec, workloads, &slices) {
            let namespace = namespace.clone();
            self.desired.insert(Name { namespace, name }, slice.into());
        }
    }
}

/// Sets or removes an object, and returns the one before.
fn exchange<T>(table: &mut Table<T>, name: &Name, object: Option<&Arc<T>>) -> Option<Arc<T>> {
    match object {
        Some(object) => table.insert(name.clone(), object.clone()),
        None => table.remove(name),
    }
}

fn in_namespace<'a, T>(
    table: &'a Table<T>,
    namespace: &Arc<str>,
) -> impl Iterator<Item = (&'a Name, &'a Arc<T>)> + use<'a, T> {
    let namespace = namespace.clone();
    let objects = table.range(Name::new(&namespace, "")..);
    objects.take_while(move |(name, _)| name.namespace == namespace)
}

fn warn_of_refused_addresses(name: &Name, workload: &SelectedWorkload) {
    for ip in workload.ips.iter().filter(|ip| !is_accepted(**ip)) {
        tracing::warn!(workload = %name, %ip, "The address of an ExternalWorkload is of one machine or link only, which EndpointSlices cannot have");
    }
}

impl Written for ExternalSlices {
    type Key = Name;

    const FIELD_MANAGER: &'static str = "destination";

    const SUBJECT: &'static str = "EndpointSlices of ExternalWorkloads";

    const METRICS: MetricNames = MetricNames {
        writes: Description(
            "external_endpointslice_writes_total",
            "Successful writes of EndpointSlices of ExternalWorkloads",
        ),
        api_errors: Description(
            "external_endpointslice_write_api_errors_total",
            "Writes of EndpointSlices that failed with an error of the API server",
        ),
        timeouts: Description(
            "external_endpointslice_write_timeouts_total",
            "Writes of EndpointSlices without a response in time",
        ),
        duration: Description(
            "external_endpointslice_write_duration_seconds",
            "Time of successful writes of EndpointSlices",
        ),
        enqueues: Description(
            "external_endpointslice_write_enqueues_total",
            "EndpointSlices that were added to the queue because they differ",
        ),
        enqueue_overflows: Description(
            "external_endpointslice_write_enqueue_overflows_total",
            "EndpointSlices that were not added because the queue was full",
        ),
        dequeues: Description(
            "external_endpointslice_write_dequeues_total",
            "EndpointSlices that were taken from the queue",
        ),
        drops: Description(
            "external_endpointslice_write_drops_total",
            "EndpointSlices that were removed from the queue when this replica lost the Lease",
        ),
    };

    /// First the ones to create, so that an endpoint is in another slice before it leaves one.
    fn keys(&self) -> impl Iterator<Item = &Name> + Send {
        let new = self.desired.keys();
        let new = new.filter(|name| !self.written.contains_key(*name));
        new.chain(self.written.keys())
    }

    fn contains(&self, key: &Name) -> bool {
        self.written.contains_key(key) || self.desired.contains_key(key)
    }

    fn version(&self, key: &Name) -> Option<&Arc<str>> {
        self.written.get(key)?.resource_version.as_ref()
    }

    fn write(&self, key: &Name, _now: Timestamp) -> Option<Write> {
        let action = match (self.written.get(key), self.desired.get(key)) {
            (None, None) => return None,
            (None, Some(desired)) => Action::Create(manifest(key, desired, None)),
            (Some(written), Some(desired)) => {
                if written.content.as_ref() == Some(desired) {
                    return None;
                }
                Action::Replace(manifest(key, desired, written.resource_version.as_ref()))
            }
            (Some(written), None) => Action::Delete {
                resource_version: written.resource_version.as_deref().map(str::to_owned),
            },
        };
        Some(Write {
            resource: resource(),
            name: key.clone(),
            action,
        })
    }
}
