//! The rotation of the trust anchor, as the objects and proxies of a cluster show it
//! (docs/adr/0226). `meshctl identity rotate` and `meshctl check` say the same about it. The order
//! of the changes is [`mesh_core::anchor_rotation`]'s.

pub(crate) mod bundle;
mod observe;
pub(crate) mod owner;
mod roots;
pub(crate) mod stored;
pub(crate) mod text;

use std::collections::BTreeSet;

use mesh_core::anchor_rotation::{Change, Cluster, Next, Rotation, next};
use serde::{Deserialize, Serialize};

pub(crate) use self::roots::Roots;
use self::stored::Stored;
use crate::facts::{Fact, Facts, fact_ref};

/// A rotation in progress.
#[derive(Debug)]
pub(crate) struct InProgress {
    /// `None` if other programs write the anchors and the issuer, and this one follows only.
    pub(crate) stored: Option<Stored>,
    pub(crate) roots: Roots,
    pub(crate) is_compromised: bool,
    pub(crate) next: Next<Subject>,
    /// The pods and machines that have to follow.
    pub(crate) subjects: Vec<Subject>,
    /// The facts are about a part of the pods.
    pub(crate) is_partial: bool,
}

/// Where a rotation leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Direction {
    /// To the new anchor.
    Forward,
    /// Back to the old anchor, because it was aborted.
    Back,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Kind {
    Pod,
    /// An ExternalWorkload.
    Machine,
    /// A pod of the identity service, about the certificates that it issues.
    Replica,
}

/// A pod or machine that follows a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `kind/name` of the workload that recreates the pod.
    pub(crate) workload: Option<String>,
    /// The command that replaces it.
    pub(crate) restart: String,
}

/// What the caller knows about a rotation.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Whether the anchors show a rotation that other programs make.
    pub(crate) follows_others: bool,
    /// The new anchor of such a rotation, in DER.
    pub(crate) new_anchor: Option<Vec<u8>>,
    /// The old anchor of such a rotation may be known to others.
    pub(crate) is_compromised: bool,
    /// `NAMESPACE/NAME` of the pods and machines that no change waits for.
    pub(crate) skipped: BTreeSet<String>,
}

impl Subject {
    /// Returns `NAMESPACE/NAME`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl InProgress {
    /// Returns the rotation that the facts show, if there is one.
    pub(crate) fn read(facts: &Facts, hints: &Hints) -> Fact<Option<Self>> {
        let secret = fact_ref(&facts.objects.rotation)?.as_ref();
        let stored = secret.map(Stored::read).transpose()?;
        let (roots, is_compromised) = match &stored {
            Some(stored) => (stored.roots(), stored.is_compromised),
            None if hints.follows_others => {
                let anchors = fact_ref(&facts.trust.anchors)?;
                match Roots::infer(anchors, hints.new_anchor.as_deref())? {
                    Some(roots) => (roots, hints.is_compromised),
                    None => return Ok(None),
                }
            }
            None => return Ok(None),
        };
        let mut cluster = observe::cluster(facts, &roots, stored.as_ref())?;
        let subjects = cluster.workloads.iter();
        let subjects = subjects.map(|workload| workload.name.clone()).collect();
        skip(&mut cluster, hints);
        let is_cross_signed = match &stored {
            Some(stored) => {
                roots.direction == Direction::Forward && stored.cross_certificate.is_some()
            }
            None => cluster.has_cross_certificate,
        };
        let rotation = Rotation {
            is_cross_signed,
            is_compromised,
        };
        let is_cross_certified = cluster.has_cross_certificate;
        let next = next(rotation, &[cluster]);
        // Of a rotation that is not stored nothing is left.
        if stored.is_none() && !is_cross_certified && next == Next::Change(Change::Finish) {
            return Ok(None);
        }
        Ok(Some(Self {
            next,
            stored,
            roots,
            is_compromised,
            subjects,
            is_partial: observe::is_partial(facts),
        }))
    }

    /// Returns the number of the pods and machines that the next change waits for.
    pub(crate) fn late(&self) -> usize {
        let names = self.next.blockers().iter().flat_map(|it| &it.name);
        names.filter(|name| name.kind != Kind::Replica).count()
    }
}

/// Removes the workloads that the caller does not wait for.
fn skip(cluster: &mut Cluster<Subject>, hints: &Hints) {
    let is_kept = |subject: &Subject| !hints.skipped.contains(&subject.full_name());
    cluster.workloads.retain(|workload| is_kept(&workload.name));
}
