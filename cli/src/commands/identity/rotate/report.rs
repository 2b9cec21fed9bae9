//! The output of the command.

use mesh_core::anchor_rotation::{Next, Step};
use serde::Serialize;

use super::plan::Owners;
use crate::certificate::{self, format_expiry, remaining_seconds};
use crate::facts::Facts;
use crate::facts::names::TRUST_ROOTS;
use crate::output::table::Table;
use crate::output::{self, Format, count};
use crate::rotation::stored::Stored;
use crate::rotation::{Direction, InProgress, Kind};
use mesh_k8s::trust::{ISSUER_SECRET, fingerprint};

/// The blockers that the table shows; JSON has all.
const SHOWN: usize = 20;

/// The document of `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    context: String,
    namespace: String,
    /// Whether a rotation is in progress.
    in_progress: bool,
    /// The last rotation has ended by this command.
    completed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    rotation: Option<Shown>,
    /// The programs that write the objects in place of this command.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    written_by: Vec<WrittenBy>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    #[serde(skip_serializing_if = "Option::is_none")]
    began: Option<String>,
    direction: Direction,
    compromised: bool,
    old_anchors: Vec<Anchor>,
    new_anchor: Anchor,
    steps: Vec<ShownStep>,
    /// The next change.
    next: String,
    /// How another program makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    instruction: Option<String>,
    workloads: usize,
    blocked_by: Vec<ShownBlocker>,
    #[serde(skip)]
    late: usize,
    #[serde(skip)]
    age: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Anchor {
    subject: String,
    sha256: String,
    not_after: String,
    #[serde(skip)]
    expires: String,
}

#[derive(Debug, Serialize)]
struct ShownStep {
    step: &'static str,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum State {
    Done,
    /// Its change is made, and workloads have not followed.
    Waiting,
    /// It can be taken now.
    Next,
    Pending,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownBlocker {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<String>,
    reason: String,
    remedy: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenBy {
    object: String,
    owner: String,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Waiting => "waits",
            Self::Next => "next",
            Self::Pending => "",
        }
    }
}

impl Report {
    pub(super) fn new(
        facts: &Facts,
        context: &str,
        found: Option<&InProgress>,
        owners: &Owners,
        completed: bool,
    ) -> Self {
        let objects = [
            (format!("ConfigMap {TRUST_ROOTS}"), &owners.anchors),
            (format!("Secret {ISSUER_SECRET}"), &owners.issuer),
        ];
        let written_by = objects.into_iter().filter_map(|(object, owner)| {
            let owner = owner.as_ref()?.name();
            Some(WrittenBy { object, owner })
        });
        Self {
            context: context.to_owned(),
            namespace: facts.control_namespace.clone(),
            in_progress: found.is_some(),
            completed,
            rotation: found.map(|found| shown(facts, found, owners)),
            written_by: written_by.collect(),
        }
    }

    pub(super) fn print(&self, format: Format) -> anyhow::Result<()> {
        match format {
            Format::Json => output::json("TrustAnchorRotation", self),
            Format::Table => output::text(&self.render()),
        }
    }

    fn render(&self) -> String {
        let Some(rotation) = &self.rotation else {
            return if self.completed {
                format!(
                    "The rotation of the trust anchor of namespace {} is complete.\n",
                    self.namespace
                )
            } else {
                format!(
                    "No rotation of the trust anchor of namespace {} is in progress.\n",
                    self.namespace
                )
            };
        };
        let mut text = format!(
            "Rotation of the trust anchor of namespace {}",
            self.namespace
        );
        if let Some(age) = rotation.age {
            text += &format!(", began {} ago", certificate::format_duration(age));
        }
        if rotation.direction == Direction::Back {
            text += ", aborted";
        }
        if rotation.compromised {
            text += ", after a compromise of the old anchor";
        }
        text += "\n\n";
        let mut anchors = Table::default().left("ANCHOR SUBJECT EXPIRES SHA-256");
        let old = rotation.old_anchors.iter().map(|anchor| ("old", anchor));
        for (name, anchor) in old.chain([("new", &rotation.new_anchor)]) {
            anchors.row(vec![
                name.to_owned(),
                anchor.subject.clone(),
                anchor.expires.clone(),
                // The beginning tells anchors of one name apart.
                anchor.sha256.chars().take(16).collect(),
            ]);
        }
        text += &anchors.render();
        text.push('\n');
        let mut steps = Table::default().left("STEP STATE RESULT");
        for (step, shown) in Step::ALL.into_iter().zip(&rotation.steps) {
            let state = shown.state.as_str().to_owned();
            steps.row(vec![
                shown.step.to_owned(),
                state,
                result(step, rotation.direction).to_owned(),
            ]);
        }
        text += &steps.render();
        text.push('\n');
        text += &rotation.rest(&self.written_by);
        text
    }
}

impl Shown {
    /// Renders what the rotation waits for, and who makes the next change.
    fn rest(&self, written_by: &[WrittenBy]) -> String {
        let mut text = format!("Next: {}.\n", self.next);
        for WrittenBy { object, owner } in written_by {
            text += &format!(
                "This command does not write {object}, because {owner} writes it and would revert the change.\n"
            );
        }
        if let Some(instruction) = &self.instruction {
            text += &format!("To do: {instruction}.\n");
        }
        if self.blocked_by.is_empty() {
            return text;
        }
        if self.late > 0 {
            text += &format!(
                "{} of {} not followed:\n\n",
                self.late,
                count(self.workloads, "workload has", "workloads have")
            );
        } else {
            text += "It waits for:\n\n";
        }
        let mut table = Table::default().left("NAMESPACE WORKLOAD NAME REASON");
        for blocker in self.blocked_by.iter().take(SHOWN) {
            table.row(vec![
                blocker.namespace.clone(),
                blocker.workload.clone().unwrap_or_default(),
                blocker.name.clone(),
                output::printable(&blocker.reason),
            ]);
        }
        text += &table.render();
        let more = self.blocked_by.len().saturating_sub(SHOWN);
        if more > 0 {
            text += &format!("and {more} more; -o json has all\n");
        }
        text += "\nRemedies:\n";
        let mut remedies: Vec<&str> = Vec::new();
        for blocker in &self.blocked_by {
            if !remedies.contains(&blocker.remedy.as_str()) {
                remedies.push(&blocker.remedy);
            }
        }
        for remedy in remedies.iter().take(SHOWN) {
            text += &format!("  {remedy}\n");
        }
        text
    }
}

fn shown(facts: &Facts, found: &InProgress, owners: &Owners) -> Shown {
    let roots = &found.roots;
    let now = facts.clock();
    let old = roots.old.iter().map(|der| anchor(der, now));
    let began = found.stored.as_ref().and_then(|stored: &Stored| {
        let created = stored.meta.creation_timestamp.as_ref()?;
        Some(created.0.to_string())
    });
    let change = found.next.change();
    let blockers = found.next.blockers().iter();
    Shown {
        began,
        age: found.since().map(|since| now.saturating_sub(since)),
        direction: roots.direction,
        compromised: found.is_compromised,
        old_anchors: old.collect(),
        new_anchor: anchor(&roots.new, now),
        steps: Step::ALL
            .map(|step| ShownStep {
                step: step.as_str(),
                state: state(step, found),
            })
            .into(),
        next: found.describe(change),
        instruction: owners.of(change).map(|owner| owner.instruction(change)),
        workloads: found.subjects.len(),
        late: found.late(),
        blocked_by: blockers
            .map(|blocker| {
                let name = blocker.name.as_ref();
                ShownBlocker {
                    kind: name.map(|name| name.kind),
                    namespace: name.map_or_else(String::new, |it| it.namespace.clone()),
                    name: name.map_or_else(String::new, |it| it.name.clone()),
                    workload: name.and_then(|it| it.workload.clone()),
                    reason: found.reason(&blocker.reason),
                    remedy: found
                        .remedy(blocker)
                        .replace("{ns}", &facts.control_namespace),
                }
            })
            .collect(),
    }
}

fn state(step: Step, found: &InProgress) -> State {
    let current = found.next.step();
    match step.cmp(&current) {
        std::cmp::Ordering::Less => State::Done,
        std::cmp::Ordering::Greater => State::Pending,
        std::cmp::Ordering::Equal => match found.next {
            Next::Change(_) => State::Next,
            Next::Wait(..) => State::Waiting,
        },
    }
}

/// Returns the state of the mesh after a step.
fn result(step: Step, direction: Direction) -> &'static str {
    match (step, direction) {
        (Step::Start, _) => "new anchor and issuer are stored",
        (Step::Add, Direction::Forward) => "every proxy trusts both anchors",
        (Step::Add, Direction::Back) => "every proxy trusts the old anchor",
        (Step::Switch, Direction::Forward) => "every certificate is of the new anchor's issuer",
        (Step::Switch, Direction::Back) => "every certificate is of the old anchor's issuer",
        (Step::Remove, Direction::Forward) => "no proxy trusts the old anchor",
        (Step::Remove, Direction::Back) => "no proxy trusts the new anchor",
        (Step::Finish, _) => "stored keys are deleted, no pod needs the cross-certificate",
    }
}

fn anchor(der: &[u8], now: u64) -> Anchor {
    let parsed = certificate::parse(der, "a trust anchor").ok();
    Anchor {
        sha256: fingerprint(der),
        subject: parsed.as_ref().map_or_else(String::new, |it| {
            output::printable(&it.subject().to_string())
        }),
        not_after: parsed
            .as_ref()
            .map_or_else(String::new, |it| it.validity().not_after.to_string()),
        expires: parsed.as_ref().map_or_else(String::new, |it| {
            format_expiry(remaining_seconds(it, now), now)
        }),
    }
}

#[cfg(test)]
mod tests;
