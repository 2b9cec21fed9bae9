//! The status of a Link: what became of each Service that it selects.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp, Unit};
use kube::Resource as _;
use mesh_k8s::crd::Link;
use mesh_k8s::crd::link::{
    LinkStatus, MIRROR_CONTROLLER, MirrorCondition, MirroredService, SERVICE_GROUP, ServiceRef,
};
use mesh_k8s::kinds::Time;
use mesh_objects::model::Name;
use serde_json::{Value, json};

use super::limits::MAX_REPORTED;
use super::objects::Mirrors;
use super::planned::{ERROR, Key, MIRRORED, Outcome, Problem};
use super::records::LocalService;
use crate::writer::Written as _;

/// What became of a Service.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The mirror exists. The text names the parts that are left out.
    Mirrored(Name, String),
    Failed(Problem),
}

/// The status is written at most once in this time, because each write has all of its entries.
const INTERVAL: SignedDuration = SignedDuration::from_secs(5);

/// Returns the patch of the status; `None` if it differs in nothing but times, or was written just
/// now.
pub(super) fn patch(mirrors: &Mirrors, now: Timestamp) -> Option<Value> {
    let (name, link) = mirrors.own_link()?;
    let plan = mirrors.plan();
    let entries = |existing: &[MirroredService], outcomes: &BTreeMap<Name, Outcome>| {
        let verdicts = outcomes
            .iter()
            .map(|(of, outcome)| (of, verdict(mirrors, outcome)));
        entries(existing, verdicts, now)
    };
    let LinkStatus {
        mirror_services,
        federated_services,
    } = &link.status;
    let status = LinkStatus {
        mirror_services: entries(mirror_services, &plan.mirrored),
        federated_services: entries(federated_services, &plan.federated),
    };
    if status == link.status || was_written(&link.status, now) {
        return None;
    }
    Some(json!({
        "apiVersion": Link::api_version(&()),
        "kind": Link::kind(&()),
        "metadata": {
            "name": &*name.name,
            "namespace": &*name.namespace,
            "resourceVersion": &*link.version,
        },
        "status": status,
    }))
}

impl Mirrors {
    /// Returns how many Services are mirrored, are not, and are being written.
    pub(crate) fn results(&self) -> [(&'static str, usize); 3] {
        let plan = self.plan();
        let outcomes = plan.mirrored.values().chain(plan.federated.values());
        let (mut mirrored, mut failed, mut pending) = (0, 0, 0);
        for outcome in outcomes {
            match verdict(self, outcome) {
                Some(Verdict::Mirrored(..)) => mirrored += 1,
                Some(Verdict::Failed(_)) => failed += 1,
                None => pending += 1,
            }
        }
        [
            ("mirrored", mirrored),
            ("failed", failed),
            ("pending", pending),
        ]
    }
}

/// Returns what became of a Service; `None` while it is being written.
pub(super) fn verdict(mirrors: &Mirrors, outcome: &Outcome) -> Option<Verdict> {
    let (local, has_endpoints, note) = match outcome {
        Outcome::Failed(problem) => return Some(Verdict::Failed(problem.clone())),
        Outcome::Planned {
            local,
            has_endpoints,
            note,
        } => (local, *has_endpoints, note),
    };
    let endpoints = has_endpoints.then(|| Key::Endpoints(local.clone()));
    let keys = [
        Some(Key::Namespace(local.namespace.clone())),
        Some(Key::Service(local.clone())),
        endpoints,
    ];
    for key in keys.into_iter().flatten() {
        // A refusal counts as long as the object differs.
        if let Some(refusal) = mirrors.refusal(&key)
            && mirrors.write(&key, Timestamp::UNIX_EPOCH).is_some()
        {
            let message = format!("cannot write {key}: {refusal}");
            return Some(Verdict::Failed(Problem::new(ERROR, message)));
        }
    }
    let service = mirrors.services.objects.get(local)?;
    let is_mirror = matches!(&**service, LocalService::Mirror(_));
    let exists = is_mirror && (!has_endpoints || mirrors.endpoints.objects.contains_key(local));
    exists.then(|| Verdict::Mirrored(local.clone(), note.to_string()))
}

/// Returns the entries of other controllers as they are, and the ones of this controller: failures
/// first if there is not room for all.
fn entries<'a>(
    existing: &[MirroredService],
    verdicts: impl Iterator<Item = (&'a Name, Option<Verdict>)>,
    now: Timestamp,
) -> Vec<MirroredService> {
    let own: BTreeMap<(&str, &str), &MirroredService> = existing
        .iter()
        .filter(|entry| entry.controller_name == MIRROR_CONTROLLER)
        .map(|entry| {
            let of = &entry.remote_ref;
            ((of.namespace.as_str(), of.name.as_str()), entry)
        })
        .collect();
    let (mut failed, mut mirrored) = (Vec::new(), Vec::new());
    for (of, verdict) in verdicts {
        let before = own.get(&(&*of.namespace, &*of.name)).copied();
        match verdict {
            Some(verdict) => {
                let list = match verdict {
                    Verdict::Failed(_) => &mut failed,
                    Verdict::Mirrored(..) => &mut mirrored,
                };
                list.push(entry(of, &verdict, before, now));
            }
            // It stays as it was until the new state is known.
            None => mirrored.extend(before.cloned()),
        }
    }
    failed.extend(mirrored);
    failed.truncate(MAX_REPORTED);
    failed.sort_by(|a, b| {
        let (a, b) = (&a.remote_ref, &b.remote_ref);
        (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))
    });
    let others = existing.iter();
    let others = others.filter(|entry| entry.controller_name != MIRROR_CONTROLLER);
    others.cloned().chain(failed).collect()
}

fn entry(
    of: &Name,
    verdict: &Verdict,
    before: Option<&MirroredService>,
    now: Timestamp,
) -> MirroredService {
    let (status, reason, message, local) = match verdict {
        Verdict::Mirrored(local, note) => ("True", MIRRORED, note, Some(local)),
        Verdict::Failed(problem) => ("False", problem.reason, &problem.message, None),
    };
    let same = before.and_then(|before| before.conditions.first());
    let same = same.filter(|condition| condition.status == status);
    let now = now.round(Unit::Second).unwrap_or(now);
    let condition = MirrorCondition {
        last_transition_time: same.map_or(Time(now), |it| it.last_transition_time.clone()),
        local_ref: local.map(reference),
        message: message.clone(),
        reason: reason.to_owned(),
        status: status.to_owned(),
        type_: MIRRORED.to_owned(),
    };
    MirroredService {
        conditions: vec![condition],
        controller_name: MIRROR_CONTROLLER.to_owned(),
        remote_ref: reference(of),
    }
}

fn reference(name: &Name) -> ServiceRef {
    ServiceRef {
        group: SERVICE_GROUP.to_owned(),
        kind: "Service".to_owned(),
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
    }
}

/// Returns whether a condition changed just now, by the clock of this replica or a later one.
fn was_written(status: &LinkStatus, now: Timestamp) -> bool {
    let lists = [&status.mirror_services, &status.federated_services];
    let entries = lists.into_iter().flatten();
    let conditions = entries.flat_map(|entry| &entry.conditions);
    let ages = conditions.map(|it| now.duration_since(it.last_transition_time.0));
    let mut ages = ages.filter(|age| !age.is_negative());
    ages.any(|age| age < INTERVAL)
}
