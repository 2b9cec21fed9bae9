//! The rotation of a trust anchor: the next change, and the workloads that it waits for
//! (docs/adr/0226).
//!
//! `meshctl identity rotate` makes the changes and `meshctl check` reports them. Both say what
//! [`next`] returns. A rotation has no state of its own: its step follows from the objects of the
//! clusters and from their proxies, so that it goes on from every point where it was interrupted.
//! A rotation that is aborted is a rotation from the new anchor to the old one.

/// The properties of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The new issuer has a certificate of the new anchor that the old one signed: proxies that
    /// have only the old anchor trust certificates of the new issuer (docs/adr/0174).
    pub is_cross_signed: bool,
    /// Others may know the old anchor's key, so that no proxy may trust it at the end.
    pub is_compromised: bool,
}

/// The steps, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The new anchor and its issuer are created and stored.
    Start,
    /// All proxies get both anchors.
    Add,
    /// All proxies get certificates of the new issuer.
    Switch,
    /// All proxies lose the old anchor.
    Remove,
    /// The old keys and the cross-certificate are deleted.
    Finish,
}

/// A change of the objects of the clusters. It is made in every cluster that lacks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Adds the new anchor to the trust anchors.
    AddAnchor,
    /// Replaces the issuer.
    SwitchIssuer,
    /// Appends the cross-certificate to the new issuer, which was replaced without it.
    AppendCrossCertificate,
    /// Removes the old anchor from the trust anchors.
    RemoveAnchor,
    /// Deletes the stored keys of the old anchor and its issuer. The rotation can then no longer be
    /// aborted.
    DeleteOldKeys,
    /// Removes the cross-certificate, and deletes the stored rest of the rotation.
    Finish,
}

/// The next change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<N> {
    /// It can be made now.
    Change(Change),
    /// It waits for these, which are at least one.
    Wait(Change, Vec<Blocker<N>>),
}

/// What a change waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker<N> {
    /// The workload or replica; `None` if it is not about a single one.
    pub name: Option<N>,
    /// What has not followed.
    pub reason: Reason,
}

/// Why a change waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The identity service sends no anchors, so that no running proxy receives them.
    NotPublished,
    /// The identity service does not send the anchors of the cluster yet.
    NotSent,
    /// Neither of the two anchors signed the issuer.
    ForeignIssuer,
    /// The injector may still give pods the anchors from before the last change.
    RecentAnchors,
    /// The replica of the identity service does not issue by the new issuer, or only since a
    /// moment: a certificate of the old one may still be on its way.
    Replica,
    /// The proxy has not received the anchors that the identity service sends.
    Late,
    /// The proxy keeps the anchors that it started with, without the new one.
    KeepsWithoutNew,
    /// The proxy keeps the anchors that it started with, with the old one.
    KeepsOld,
    /// Only the cross-certificate lets the containers of the pod start again: its environment lacks
    /// the new anchor.
    StartsWithoutNew,
    /// The containers of the pod trust the old anchor when they start again.
    StartsWithOld,
    /// The proxy's certificate is not of the new issuer.
    Certificate,
    /// It could not be queried, for this reason.
    Unknown(String),
}

/// Which of the two anchors a bundle has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Anchors {
    /// It has an old one.
    pub old: bool,
    /// It has the new one.
    pub new: bool,
}

/// The anchor that a certificate chains to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Root {
    /// The old one.
    Old,
    /// The new one, also if a cross-certificate leads on to the old one.
    New,
    /// Neither of them.
    Other,
}

/// What a cluster holds.
#[derive(Clone, Debug)]
pub struct Cluster<N> {
    /// The trust anchors that the operator has written.
    pub anchors: Anchors,
    /// How long ago they were changed, in seconds.
    pub anchors_age: u64,
    /// Whether the identity service sends them.
    pub delivery: Delivery,
    /// The root of the issuer that the operator has written.
    pub issuer: Root,
    /// The issuer's chain has the cross-certificate.
    pub has_cross_certificate: bool,
    /// Keys of the old anchor or its issuer are stored.
    pub has_old_keys: bool,
    /// The replicas of the identity service.
    pub replicas: Vec<Replica<N>>,
    /// Everything with a proxy.
    pub workloads: Vec<Workload<N>>,
}

/// Whether proxies receive the trust anchors of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The identity service sends them.
    Sent,
    /// It sends others.
    NotSent,
    /// It sends none.
    Off,
}

/// A replica of the identity service.
#[derive(Clone, Debug)]
pub struct Replica<N> {
    /// Its name.
    pub name: N,
    /// The root of the issuer that it issues by, and for how many seconds; or why it is unknown.
    pub issues: Result<(Root, u64), String>,
}

/// A pod or machine with a proxy.
#[derive(Clone, Debug)]
pub struct Workload<N> {
    /// Its name.
    pub name: N,
    /// The anchors that its proxy starts with.
    pub starts_with: Anchors,
    /// The state of its proxy.
    pub proxy: Proxy,
}

/// The state of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// It runs.
    Running {
        /// The anchors in use.
        anchors: InUse,
        /// The root of its certificate, or why it is unknown.
        certificate: Result<Root, String>,
    },
    /// It does not run, and starts with the anchors of its environment.
    NotRunning,
    /// It could not be queried, for this reason.
    Unknown(String),
}

/// The anchors that a running proxy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// The ones that the identity service sends now.
    Sent,
    /// The ones that it sent before, or none yet.
    Late,
    /// The ones that it started with: it receives none.
    Kept,
}

/// A proxy waits this long for a certificate that a replica may have issued by the issuer before
/// (15 s), and the clocks of two nodes differ by at most 20 s.
pub const CERTIFICATE_IN_FLIGHT: u64 = 35;

/// The kubelet takes up to two minutes to update the anchors of the injector, and a review a
/// minute at most.
pub const INJECTION_DELAY: u64 = 180;

impl Step {
    /// All steps, in their order.
    pub const ALL: [Self; 5] = [
        Self::Start,
        Self::Add,
        Self::Switch,
        Self::Remove,
        Self::Finish,
    ];

    /// Returns the name that users see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Add => "add",
            Self::Switch => "switch",
            Self::Remove => "remove",
            Self::Finish => "finish",
        }
    }
}

impl Change {
    /// Returns the step that the change is a part of.
    pub fn step(self) -> Step {
        match self {
            Self::AddAnchor => Step::Add,
            Self::SwitchIssuer | Self::AppendCrossCertificate => Step::Switch,
            Self::RemoveAnchor => Step::Remove,
            Self::DeleteOldKeys | Self::Finish => Step::Finish,
        }
    }
}

impl<N> Next<N> {
    /// Returns the step that the rotation is in: the one of the next change, or, while that waits,
    /// the one whose result it waits for.
    pub fn step(&self) -> Step {
        let (change, blockers) = match self {
            Self::Change(change) => return change.step(),
            Self::Wait(change, blockers) => (change, blockers),
        };
        match change {
            Change::AddAnchor => Step::Start,
            Change::SwitchIssuer => Step::Add,
            Change::AppendCrossCertificate | Change::RemoveAnchor => Step::Switch,
            Change::Finish if blockers.iter().all(|it| it.reason.is_about_starts()) => Step::Finish,
            Change::DeleteOldKeys | Change::Finish => Step::Remove,
        }
    }

    /// Returns the next change, whether it waits or not.
    pub fn change(&self) -> Change {
        match self {
            Self::Change(change) | Self::Wait(change, _) => *change,
        }
    }

    /// Returns what the next change waits for.
    pub fn blockers(&self) -> &[Blocker<N>] {
        match self {
            Self::Change(_) => &[],
            Self::Wait(_, blockers) => blockers,
        }
    }
}

impl Reason {
    /// Whether it is about the anchors that containers start with.
    fn is_about_starts(&self) -> bool {
        matches!(
            self,
            Self::KeepsWithoutNew
                | Self::KeepsOld
                | Self::StartsWithoutNew
                | Self::StartsWithOld
                | Self::RecentAnchors
        )
    }
}

/// Returns the next change of a rotation. A change waits until no workload of any cluster loses a
/// connection by it: each change is made in all clusters before the next one in any of them.
pub fn next<N: Clone>(rotation: Rotation, clusters: &[Cluster<N>]) -> Next<N> {
    let any = |lacks: fn(&Cluster<N>) -> bool| clusters.iter().any(lacks);
    let is_foreign = |cluster: &&Cluster<N>| cluster.issuer == Root::Other;
    let has_old_anchor = any(|cluster| cluster.anchors.old);
    let change = if any(|cluster| !cluster.anchors.new) {
        return Next::Change(Change::AddAnchor);
    } else if any(|cluster| cluster.issuer != Root::New) {
        Change::SwitchIssuer
    } else if rotation.is_cross_signed
        && has_old_anchor
        && any(|cluster| !cluster.has_cross_certificate)
    {
        return Next::Change(Change::AppendCrossCertificate);
    } else if has_old_anchor {
        Change::RemoveAnchor
    } else if any(|cluster| cluster.has_old_keys) {
        Change::DeleteOldKeys
    } else {
        Change::Finish
    };
    let foreign = clusters.iter().filter(is_foreign);
    let mut blockers: Vec<Blocker<N>> = foreign.map(|_| about(Reason::ForeignIssuer)).collect();
    for cluster in clusters {
        blockers.extend(of_cluster(rotation, change, cluster));
    }
    if blockers.is_empty() {
        Next::Change(change)
    } else {
        Next::Wait(change, blockers)
    }
}

fn about<N>(reason: Reason) -> Blocker<N> {
    Blocker { name: None, reason }
}

/// Returns what a change waits for in a cluster.
fn of_cluster<N: Clone>(
    rotation: Rotation,
    change: Change,
    cluster: &Cluster<N>,
) -> Vec<Blocker<N>> {
    let mut blockers: Vec<Blocker<N>> = match cluster.delivery {
        Delivery::Sent => Vec::new(),
        Delivery::NotSent => vec![about(Reason::NotSent)],
        Delivery::Off => vec![about(Reason::NotPublished)],
    };
    let is_last_for_starts = matches!(change, Change::SwitchIssuer | Change::Finish);
    if rotation.is_compromised && is_last_for_starts && cluster.anchors_age < INJECTION_DELAY {
        blockers.push(about(Reason::RecentAnchors));
    }
    if change == Change::RemoveAnchor {
        blockers.extend(cluster.replicas.iter().filter_map(|replica| {
            Some(Blocker {
                name: Some(replica.name.clone()),
                reason: of_replica(&replica.issues)?,
            })
        }));
    }
    blockers.extend(cluster.workloads.iter().filter_map(|workload| {
        Some(Blocker {
            name: Some(workload.name.clone()),
            reason: of_workload(rotation, change, workload)?,
        })
    }));
    blockers
}

fn of_replica(issues: &Result<(Root, u64), String>) -> Option<Reason> {
    match issues {
        Ok((Root::New, seconds)) if *seconds >= CERTIFICATE_IN_FLIGHT => None,
        Ok(_) => Some(Reason::Replica),
        Err(reason) => Some(Reason::Unknown(reason.clone())),
    }
}

/// Returns why a change waits for a workload.
fn of_workload<N>(rotation: Rotation, change: Change, workload: &Workload<N>) -> Option<Reason> {
    let starts_with = workload.starts_with;
    match &workload.proxy {
        Proxy::Unknown(reason) => return Some(Reason::Unknown(reason.clone())),
        Proxy::Running {
            anchors: InUse::Late,
            ..
        } => return Some(Reason::Late),
        Proxy::Running { certificate, .. } if change == Change::RemoveAnchor => match certificate {
            Ok(Root::New) => {}
            Ok(Root::Old | Root::Other) => return Some(Reason::Certificate),
            Err(reason) => return Some(Reason::Unknown(reason.clone())),
        },
        Proxy::Running { .. } | Proxy::NotRunning => {}
    }
    let is_kept = matches!(
        workload.proxy,
        Proxy::Running {
            anchors: InUse::Kept,
            ..
        }
    );
    let has_received = !is_kept && workload.proxy != Proxy::NotRunning;
    match change {
        // The cross-certificate leads from the new issuer to the old anchor.
        Change::SwitchIssuer | Change::RemoveAnchor => {
            let trusts_new = starts_with.new || rotation.is_cross_signed && starts_with.old;
            match (has_received || trusts_new, is_kept) {
                (true, _) => None,
                (false, true) => Some(Reason::KeepsWithoutNew),
                (false, false) => Some(Reason::StartsWithoutNew),
            }
        }
        Change::Finish if is_kept && !starts_with.new => Some(Reason::KeepsWithoutNew),
        Change::Finish if is_kept && starts_with.old => Some(Reason::KeepsOld),
        Change::Finish if !starts_with.new => Some(Reason::StartsWithoutNew),
        Change::Finish if rotation.is_compromised && starts_with.old => Some(Reason::StartsWithOld),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
