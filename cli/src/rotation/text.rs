//! What users read about a rotation, in the command and in `check`.

use std::collections::BTreeMap;

use mesh_core::anchor_rotation::{Blocker, Change, Next, Reason, Step};
use mesh_k8s::trust::{ISSUER_SECRET, ROTATION_SECRET};

use super::{Direction, InProgress, Kind, Subject};
use crate::certificate::format_duration;
use crate::facts::names::TRUST_ROOTS;

/// The workloads that one line names; the others are counted.
const NAMED: usize = 5;

impl Direction {
    /// Returns the words for the anchor that the rotation leads to, and for the other one.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Forward => ("new", "old"),
            Self::Back => ("old", "new"),
        }
    }
}

impl InProgress {
    /// Describes the rotation in one line: since when, its step, and what blocks it.
    pub(crate) fn summary(&self, now: u64) -> String {
        let began = self.since().map_or_else(String::new, |since| {
            format!(" began {} ago,", format_duration(now.saturating_sub(since)))
        });
        let aborted = match self.roots.direction {
            Direction::Forward => "",
            Direction::Back => " was aborted,",
        };
        let step = self.next.step();
        let place = Step::ALL
            .iter()
            .position(|it| *it == step)
            .unwrap_or_default()
            + 1;
        let is = format!(
            "a rotation of the trust anchor{began}{aborted} is in step {} ({place} of {})",
            step.as_str(),
            Step::ALL.len()
        );
        match &self.next {
            Next::Change(change) => format!("{is}: next, {}", self.describe(*change)),
            Next::Wait(_, blockers) => format!("{is} and waits: {}", self.waits(blockers)),
        }
    }

    /// Returns the Unix time when the rotation began, if it is stored.
    pub(crate) fn since(&self) -> Option<u64> {
        let created = self.stored.as_ref()?.meta.creation_timestamp.as_ref()?;
        u64::try_from(created.0.as_second()).ok()
    }

    /// Describes a change as an instruction.
    pub(crate) fn describe(&self, change: Change) -> String {
        let (to, from) = self.roots.direction.words();
        match change {
            Change::AddAnchor => format!("add the {to} anchor to ConfigMap {TRUST_ROOTS}"),
            Change::SwitchIssuer => {
                format!(
                    "replace the issuer in Secret {ISSUER_SECRET} by the one of the {to} anchor"
                )
            }
            Change::AppendCrossCertificate => {
                format!("append the cross-certificate to the issuer in Secret {ISSUER_SECRET}")
            }
            Change::RemoveAnchor => {
                format!("remove the {from} anchor from ConfigMap {TRUST_ROOTS}")
            }
            Change::DeleteOldKeys => {
                format!("delete the {from} keys from Secret {ROTATION_SECRET}")
            }
            Change::Finish if self.stored.is_none() => {
                "remove the cross-certificate from the issuer, if it has one".to_owned()
            }
            Change::Finish => format!(
                "remove the cross-certificate from the issuer, and delete Secret {ROTATION_SECRET}"
            ),
        }
    }

    /// Describes the blockers in one line, a part for each reason.
    pub(crate) fn waits(&self, blockers: &[Blocker<Subject>]) -> String {
        let mut by_reason: BTreeMap<String, Vec<&Subject>> = BTreeMap::new();
        for blocker in blockers {
            let names = by_reason.entry(self.reason(&blocker.reason)).or_default();
            names.extend(&blocker.name);
        }
        let parts = by_reason.into_iter().map(|(reason, names)| {
            let mut shown: Vec<String> =
                names.iter().take(NAMED).map(|it| it.full_name()).collect();
            let more = names.len().saturating_sub(NAMED);
            if more > 0 {
                shown.push(format!("{more} more"));
            }
            if shown.is_empty() {
                reason
            } else {
                format!("{}: {reason}", shown.join(", "))
            }
        });
        parts.collect::<Vec<_>>().join("; ")
    }

    /// Describes why a change waits.
    pub(crate) fn reason(&self, reason: &Reason) -> String {
        let (to, from) = self.roots.direction.words();
        match reason {
            Reason::NotPublished => {
                "identity.publishTrustRoots is off, so that no running proxy receives anchors"
                    .to_owned()
            }
            Reason::NotSent => format!(
                "the identity service does not send the anchors of ConfigMap {TRUST_ROOTS} yet"
            ),
            Reason::ForeignIssuer => {
                format!("neither of the two anchors signed the issuer in Secret {ISSUER_SECRET}")
            }
            Reason::RecentAnchors => {
                "the injector may still give new pods the anchors from before".to_owned()
            }
            Reason::Replica => {
                format!("it has not issued by the issuer in Secret {ISSUER_SECRET} for long enough")
            }
            Reason::Late => "its proxy has not received the current anchors".to_owned(),
            Reason::KeepsWithoutNew => {
                format!("its proxy reads anchors when it starts, and lacks the {to} one")
            }
            Reason::KeepsOld => {
                format!("its proxy reads anchors when it starts, and trusts the {from} one")
            }
            Reason::StartsWithoutNew => {
                format!("its containers start with anchors that lack the {to} one")
            }
            Reason::StartsWithOld => {
                format!("its containers trust the {from} anchor when they start")
            }
            Reason::Certificate => {
                format!("its certificate is not of the {to} anchor's issuer yet")
            }
            Reason::Unknown(reason) => reason.clone(),
        }
    }

    /// Returns how a workload follows. `{ns}` is the control plane's namespace.
    pub(crate) fn remedy(&self, blocker: &Blocker<Subject>) -> String {
        let logs = |subject: &Subject, container: &str| {
            format!(
                "kubectl -n {} logs {} -c {container}",
                subject.namespace, subject.name
            )
        };
        match (&blocker.reason, &blocker.name) {
            (Reason::NotPublished, _) => {
                "set the value identity.publishTrustRoots to true, and upgrade".to_owned()
            }
            (Reason::NotSent, _) => {
                "wait two minutes; then kubectl -n {ns} logs deployment/linkerd-identity -c identity | grep -i anchors".to_owned()
            }
            (Reason::ForeignIssuer, _) => {
                format!("restore an issuer that one of the two signed in Secret {ISSUER_SECRET}")
            }
            (Reason::RecentAnchors, _) => "wait three minutes".to_owned(),
            (Reason::Replica, Some(subject)) => {
                format!("wait two minutes; then {}", logs(subject, "identity"))
            }
            (Reason::Late, Some(subject)) => format!(
                "wait two minutes; then {} | grep -i anchors",
                logs(subject, "linkerd-proxy")
            ),
            (Reason::Certificate, Some(subject)) => format!(
                "wait until it is renewed, after 70 % of its validity; sooner: {}",
                subject.restart
            ),
            (Reason::Unknown(_), Some(subject)) => match subject.kind {
                Kind::Pod => format!(
                    "{}; or delete the pod, or leave it out with --skip {}",
                    logs(subject, "linkerd-proxy"),
                    subject.full_name()
                ),
                Kind::Machine => format!(
                    "give its proxy the anchors of this step; then --skip {}",
                    subject.full_name()
                ),
                Kind::Replica => logs(subject, "identity"),
            },
            (_, Some(subject)) => subject.restart.clone(),
            (_, None) => String::new(),
        }
    }
}
