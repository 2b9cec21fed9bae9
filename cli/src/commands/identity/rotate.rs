//! `meshctl identity rotate`: replaces the trust anchor of a cluster, from the old one through both
//! to the new one (docs/adr/0226). It makes the changes that [`mesh_core::anchor_rotation`]
//! permits, and stops or waits at the first one that a workload would not survive. Each run reads
//! the state of the rotation from the cluster.

mod changes;
mod material;
mod plan;
mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::ValueEnum;
use mesh_core::anchor_rotation::Step;
use mesh_k8s::trust::ISSUER_SECRET;
use tokio::time::Instant;

use self::changes::{Writer, Written};
use self::material::{Files, Given};
use self::plan::{Action, Goal, Owners};
use self::report::Report;
use crate::cluster::Cluster;
use crate::exit::Failure;
use crate::facts::names::TRUST_ROOTS;
use crate::facts::trust::own_map;
use crate::facts::{Facts, Mode};
use crate::gather;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::output::progress::Progress;
use crate::output::{self, Format};
use crate::resource::Scope;
use crate::rotation::owner::Owner;
use crate::rotation::stored::Stored;
use crate::rotation::{Direction, Hints, InProgress};

const EXAMPLES: &str = "\
Examples:
  meshctl identity rotate                     go as far as all workloads have followed
  meshctl identity rotate --wait 24h          go on as they follow
  meshctl identity rotate --status            show the steps and what the next one waits for
  meshctl identity rotate --to add --wait 5m  stop when every proxy has both anchors
  meshctl identity rotate --abort             go back to the old anchor

Steps: start, add (every proxy gets both anchors), switch (every proxy gets a certificate of the new issuer, within the validity of its certificate), remove (the old anchor), finish. An interrupted rotation goes on where it was. With --status --to STEP the exit code says whether a step is complete, for changes that GitOps, Helm or cert-manager make.";

/// Replace the trust anchor of running proxies, step by step, without a restart
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Show the rotation, and change nothing
    #[arg(long)]
    status: bool,
    /// Make one change, then stop
    #[arg(long, conflicts_with_all = ["to", "status"])]
    step: bool,
    /// Complete this step, then stop
    #[arg(long, value_name = "STEP", value_enum)]
    to: Option<StepName>,
    /// Wait for workloads for at most this long (10m, 24h); by default not at all
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = mesh_core::units::parse_duration)]
    wait: Duration,
    /// Go back to the old anchor; possible until the old keys are deleted
    #[arg(long, conflicts_with_all = ["status", "to", "again", "anchor_cert", "compromised"])]
    abort: bool,
    /// Others may know the old anchor's key: trust it nowhere at the end, and sign nothing with it
    #[arg(long)]
    compromised: bool,
    /// Begin even if the trust anchor is less than a day old
    #[arg(long, conflicts_with = "status")]
    again: bool,
    /// Do not wait for this pod or ExternalWorkload, which may lose connections; may be repeated
    #[arg(long, value_name = "NAMESPACE/NAME")]
    skip: Vec<String>,
    #[command(flatten)]
    files: Files,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StepName {
    Start,
    Add,
    Switch,
    Remove,
    Finish,
}

/// Time between two queries of all proxies while the command waits. The identity service reads its
/// files and the anchors every few seconds.
const INTERVAL: Duration = Duration::from_secs(5);

/// The maximum number of conflicting writes, before other clients are reported.
const MAX_CONFLICTS: u32 = 20;

impl From<StepName> for Step {
    fn from(name: StepName) -> Self {
        match name {
            StepName::Start => Self::Start,
            StepName::Add => Self::Add,
            StepName::Switch => Self::Switch,
            StepName::Remove => Self::Remove,
            StepName::Finish => Self::Finish,
        }
    }
}

/// One run of the command.
struct Run<'a> {
    args: &'a Args,
    goal: Goal,
    mesh: &'a Mesh,
    cluster: &'a Cluster,
    given: Given,
    deadline: Instant,
    progress: Progress,
    /// Whether this run has made a change.
    made: bool,
    conflicts: u32,
}

pub(super) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mesh = Mesh::find(global).await?;
    let Mesh::Cluster(cluster) = &mesh else {
        let text = "a local node creates its trust anchor whenever it starts: meshctl local down, then meshctl local up DIR";
        return Err(Failure::Input(text.to_owned()).into());
    };
    let run = Run {
        args,
        goal: Goal {
            is_status: args.status,
            is_single: args.step,
            last: args.to.map(Step::from),
        },
        mesh: &mesh,
        cluster,
        given: args.files.read()?,
        deadline: Instant::now() + args.wait,
        progress: Progress::new("querying the proxies"),
        made: false,
        conflicts: 0,
    };
    Box::pin(run.run()).await
}

impl Run<'_> {
    async fn run(mut self) -> anyhow::Result<()> {
        if self.args.abort {
            Box::pin(self.abort()).await?;
        }
        loop {
            let facts = self.facts().await?;
            let owners = owners(&facts)?;
            let found = self.read(&facts, &owners)?;
            let action = plan::action(self.goal, found.as_ref(), &owners, self.made);
            let written = match (action, &found) {
                (Action::Start, _) => match self.start(&facts, &owners).await? {
                    Some(written) => written,
                    None => return self.report(&facts, None, &owners),
                },
                (Action::Make(change), Some(found)) => {
                    let Some(stored) = &found.stored else {
                        return self.report(&facts, Some(found), &owners);
                    };
                    output::note(&found.describe(change));
                    let writer = Writer::new(self.cluster, &facts)?;
                    writer.make(change, found, stored).await?
                }
                (Action::Wait, Some(found)) if Instant::now() < self.deadline => {
                    self.progress.set_text(&waiting(found));
                    self.progress.run(tokio::time::sleep(INTERVAL)).await;
                    continue;
                }
                (Action::Wait, _) => {
                    self.report(&facts, found.as_ref(), &owners)?;
                    return self.blocked(found.as_ref());
                }
                (Action::LeaveTo(_), _) => {
                    self.report(&facts, found.as_ref(), &owners)?;
                    return Err(Failure::NegativeResult.into());
                }
                (Action::Stop | Action::Make(_), _) => {
                    return self.report(&facts, found.as_ref(), &owners);
                }
            };
            self.count(written)?;
        }
    }

    async fn facts(&mut self) -> anyhow::Result<Facts> {
        let work = gather::facts(Some(self.mesh), Mode::Rotation, Scope::All);
        let facts = Box::pin(self.progress.run(work)).await;
        self.progress.clear();
        if let Err(reason) = &facts.api_server {
            return Err(Failure::Unreachable(reason.clone()).into());
        }
        Ok(facts)
    }

    /// Returns the rotation in progress, if the flags agree with it.
    fn read(&self, facts: &Facts, owners: &Owners) -> anyhow::Result<Option<InProgress>> {
        let hints = Hints {
            follows_others: self.args.status || owners.anchors.is_some() || owners.issuer.is_some(),
            new_anchor: self.given.anchor_der(),
            is_compromised: self.args.compromised,
            skipped: self.args.skip.iter().cloned().collect(),
        };
        let found = InProgress::read(facts, &hints).map_err(Failure::Input)?;
        let Some(found) = found else {
            if self.args.status && self.args.to.is_some() && hints.new_anchor.is_none() {
                let text = "no rotation is in progress: --anchor-cert FILE says whether the new anchor is still to come, or the rotation is complete";
                return Err(Failure::Input(text.to_owned()).into());
            }
            return Ok(None);
        };
        let names: BTreeSet<String> = found.subjects.iter().map(|it| it.full_name()).collect();
        if let Some(unknown) = self.args.skip.iter().find(|name| !names.contains(*name)) {
            let text = format!(
                "--skip {unknown}: no pod with a proxy and no ExternalWorkload has this name; write NAMESPACE/NAME"
            );
            return Err(Failure::Input(text).into());
        }
        if let Some(stored) = &found.stored {
            self.check_flags(stored, &found)?;
        }
        Ok(Some(found))
    }

    /// A rotation in progress keeps its anchor and its properties.
    fn check_flags(&self, stored: &Stored, found: &InProgress) -> anyhow::Result<()> {
        let other = self
            .given
            .anchor_der()
            .filter(|der| *der != found.roots.new);
        let problem = if other.is_some() {
            "a rotation to another anchor than --anchor-cert is in progress"
        } else if self.args.compromised && !stored.is_compromised {
            "the rotation in progress was begun without --compromised"
        } else {
            return Ok(());
        };
        let text = format!("{problem}: complete it, or go back with --abort, and begin again");
        Err(Failure::Input(text).into())
    }

    /// Begins a rotation. Returns `None` if there is nothing to rotate.
    async fn start(&mut self, facts: &Facts, owners: &Owners) -> anyhow::Result<Option<Written>> {
        self.check_owners(owners)?;
        let values = facts.values().map_err(Failure::Input)?;
        if !values.identity.publish_trust_roots {
            let text = "identity.publishTrustRoots is off, so that no running proxy receives the new anchor: set it to true and upgrade first";
            return Err(Failure::Input(text.to_owned()).into());
        }
        let nothing = material::in_use(facts, &self.given)?.filter(|_| !self.args.again);
        if let Some(reason) = nothing {
            output::note(&reason);
            return Ok(None);
        }
        let writer = Writer::new(self.cluster, facts)?;
        let old = writer.own_anchor().await?;
        let given = std::mem::take(&mut self.given);
        let stored = material::create(facts, given, old, self.args.compromised)?;
        output::note("store the new trust anchor and its issuer");
        writer.start(&stored).await.map(Some)
    }

    /// Another program would revert the changes of a rotation.
    fn check_owners(&self, owners: &Owners) -> anyhow::Result<()> {
        let named = |object: &str, owner: &Option<Owner>| {
            let owner = owner.as_ref()?;
            Some(format!("{object} is written by {}", owner.name()))
        };
        let all = [
            named(&format!("ConfigMap {TRUST_ROOTS}"), &owners.anchors),
            named(&format!("Secret {ISSUER_SECRET}"), &owners.issuer),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        if all.is_empty() {
            return Ok(());
        }
        let text = format!(
            "{}, which would revert a change: make the steps there, first both anchors, then the new issuer, then the new anchor alone; `meshctl identity rotate --status` follows them (docs/operations/helm.md, Rotation of the trust anchor)",
            all.join(", and ")
        );
        Err(Failure::Input(text).into())
    }

    /// Turns the rotation back, unless it is already.
    async fn abort(&mut self) -> anyhow::Result<()> {
        loop {
            let facts = self.facts().await?;
            let found = InProgress::read(&facts, &Hints::default()).map_err(Failure::Input)?;
            let stored = found.as_ref().and_then(|found| found.stored.clone());
            let (Some(found), Some(mut stored)) = (found, stored) else {
                let text = "no rotation of this command is in progress";
                return Err(Failure::Input(text.to_owned()).into());
            };
            if stored.direction == Direction::Back {
                return Ok(());
            }
            // The issuer was replaced, and its predecessor has no key any longer.
            if stored.replaced.is_some() && !stored.has_old_keys() {
                let text = "the old keys are deleted: complete the rotation, and begin another one if you need to";
                return Err(Failure::Input(text.to_owned()).into());
            }
            stored.direction = Direction::Back;
            output::note(&format!("go back from step {}", found.next.step().as_str()));
            let writer = Writer::new(self.cluster, &facts)?;
            let written = writer.store(&stored).await?;
            self.count(written)?;
            if written == Written::Yes {
                self.made = false;
                return Ok(());
            }
        }
    }

    fn count(&mut self, written: Written) -> anyhow::Result<()> {
        match written {
            Written::Yes => self.made = true,
            Written::Conflict => self.conflicts += 1,
        }
        if self.conflicts > MAX_CONFLICTS {
            let text = "other clients keep changing the objects of the rotation; try again later";
            return Err(Failure::TimedOut(text.to_owned()).into());
        }
        Ok(())
    }

    fn report(
        &self,
        facts: &Facts,
        found: Option<&InProgress>,
        owners: &Owners,
    ) -> anyhow::Result<()> {
        let completed = self.made && found.is_none();
        let report = Report::new(facts, &self.cluster.context, found, owners, completed);
        report.print(self.args.output)
    }

    /// The result of a run that ends while workloads have not followed.
    fn blocked(&self, found: Option<&InProgress>) -> anyhow::Result<()> {
        if self.goal.is_status && self.goal.last.is_none() && self.args.wait.is_zero() {
            return Ok(());
        }
        if self.args.wait.is_zero() {
            return Err(Failure::NegativeResult.into());
        }
        let what = found.map_or_else(String::new, waiting);
        Err(Failure::TimedOut(what).into())
    }
}

/// Describes what a rotation waits for in one line.
fn waiting(found: &InProgress) -> String {
    format!(
        "waiting in step {}: {}",
        found.next.step().as_str(),
        found.waits(found.next.blockers())
    )
}

/// Returns the other programs that write the objects.
fn owners(facts: &Facts) -> anyhow::Result<Owners> {
    let values = facts.values().map_err(Failure::Input)?;
    let anchors = own_map(facts).map_err(Failure::Input)?;
    let issuer = facts.objects.issuer.as_ref();
    let issuer = issuer.map_err(|reason| Failure::Input(reason.clone()))?;
    Ok(Owners {
        anchors: anchors.and_then(|map| Owner::of_anchors(values, &map.metadata)),
        issuer: issuer
            .as_ref()
            .and_then(|meta| Owner::of_issuer(values, meta)),
    })
}
