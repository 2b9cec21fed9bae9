//! Leadership by a Lease: at most one replica writes at any time.
//!
//! No time in the Lease is compared with the local clock, because clocks of nodes differ. A
//! candidate takes over when it has not seen the Lease change for as long as the holder declared;
//! it measures that itself. A holder counts from before it sent its last successful renewal, which
//! is earlier than any candidate can have seen it. Every write has the resource version of the
//! Lease that was read, so one of two claims fails. If the API server goes back to an older state,
//! whose Lease may name a candidate or no holder, the holder of the lost state counts until its
//! time is over.
//!
//! The Lease is compatible with Linkerd's (docs/adr/0144): its controllers honour
//! `leaseDurationSeconds`, and their Leases are honoured here.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use mesh_core::annotation::{CONTROL_PLANE_COMPONENT, CONTROL_PLANE_NS};
use mesh_core::rights::{self, Right};
use mesh_k8s::kinds::{Deployment, Lease};
use mesh_runtime::drain;
use mesh_runtime::metrics::{Gauge, Labels, Registry};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use self::record::holds_for;
pub use self::rules::MAX_WRITE_DURATION;
use self::rules::{
    HOLD_DURATION, Observation, POLL_INTERVAL, RENEW_INTERVAL, REQUEST_TIMEOUT, RETRY_INTERVAL,
    Record, Step, held_until,
};
use super::explain::explain;
use crate::random;

mod record;
mod rules;

/// A Lease, and who claims it.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    pub namespace: String,
    pub name: String,
    /// `None` for a Lease that stays when its writers have gone.
    pub owner: Option<LeaseOwner>,
    /// The unique name of this process.
    pub claimant: String,
    pub field_manager: &'static str,
}

/// The owner of a Lease.
#[derive(Clone, Debug)]
pub struct LeaseOwner {
    /// The component of the control plane, a label of the Lease.
    pub component: &'static str,
    /// The name of the Deployment that owns the Lease, so that the Lease is deleted with it.
    pub deployment: String,
}

/// Tells whether this process may write.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

/// Claims, renews and releases a Lease.
pub struct LeaseTask {
    settings: LeaseSettings,
    leases: Api<Lease>,
    deployments: Api<Deployment>,
    observation: Option<Observation>,
    /// When leadership ends without another renewal.
    until: watch::Sender<Option<Instant>>,
    held: Gauge,
    /// How many renewals and claims in a row were refused because the Lease had changed.
    conflicts: u32,
    /// The last logged problem, which is not repeated.
    last_problem: String,
}

/// Why a step failed. The next one tries again.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("the API server did not respond within {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout,
    #[error("{}", explain(.0))]
    Request(#[from] kube::Error),
    #[error("there is no Deployment {0}, which has to own the Lease")]
    NoDeployment(String),
}

/// Returns the right to find the owner of a Lease.
pub fn owner_rights(deployment: &'static str) -> impl Iterator<Item = Right> {
    rights::named("apps", "deployments", &["get"], deployment)
}

/// The duration of the Lease for controllers of Linkerd, as theirs.
const LEASE_DURATION: Duration = Duration::from_secs(30);

/// How long a write may continue after the drain has started before the Lease is released.
const RELEASE_DELAY: Duration = MAX_WRITE_DURATION;

const CONFLICT: u16 = 409;

impl Leadership {
    /// Returns whether this process remains the only writer for this time.
    pub fn lasts(&self, duration: Duration) -> bool {
        rules::lasts(*self.0.borrow(), duration, Instant::now())
    }

    /// Waits for a renewal or a loss. Never completes after the task has ended.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl LeaseTask {
    pub fn new(
        client: &Client,
        settings: LeaseSettings,
        registry: &Registry,
    ) -> (Self, Leadership) {
        let (until, leadership) = watch::channel(None);
        let leadership = Leadership(leadership);
        let held = registry.gauge_family(
            "mesh_lease_held",
            "Whether this replica holds the Lease and writes (1) or another may (0)",
        );
        let held = held.with(&Labels::new().with("lease", settings.name.as_str()));
        held.set(0);
        let task = Self {
            leases: Api::namespaced(client.clone(), &settings.namespace),
            deployments: Api::namespaced(client.clone(), &settings.namespace),
            settings,
            observation: None,
            until,
            held,
            conflicts: 0,
            last_problem: String::new(),
        };
        (task, leadership)
    }

    /// Runs until the drain, and releases the Lease.
    pub async fn run(mut self, drain: drain::Watch) {
        loop {
            let step = async {
                let delay = self.step().await;
                sleep(jittered(delay)).await;
            };
            tokio::select! {
                biased;
                () = drain.draining() => break,
                () = step => {}
            }
        }
        self.release().await;
    }

    /// Returns the time until the next step.
    async fn step(&mut self) -> Duration {
        let problem = match self.try_step().await {
            Ok(delay) => {
                self.last_problem.clear();
                return delay;
            }
            Err(error) => error.to_string(),
        };
        if problem != self.last_problem {
            let lease = &self.settings.name;
            tracing::warn!(lease, problem, "Cannot claim or renew the Lease; retrying");
            self.last_problem = problem;
        }
        let until = *self.until.borrow();
        if until.is_some_and(|until| until <= Instant::now()) {
            self.lose();
        }
        RETRY_INTERVAL
    }

    async fn try_step(&mut self) -> Result<Duration, LeaseError> {
        let Some(lease) = respond(self.leases.get_opt(&self.settings.name)).await? else {
            self.lose();
            if let Some(last) = self.observation.take() {
                let now = Instant::now();
                let remaining = self.observation.insert(last.deleted(now)).creates_in(now);
                if !remaining.is_zero() {
                    return Ok(remaining.min(POLL_INTERVAL));
                }
            }
            let is_created = self.create().await?;
            return Ok(if is_created {
                Duration::ZERO
            } else {
                RETRY_INTERVAL
            });
        };
        let now = Instant::now();
        let record = Record::read(&lease);
        let observation = Observation::update(self.observation.take(), record, now);
        let observation = self.observation.insert(observation);
        match observation.next(&self.settings.claimant, now) {
            Step::Claim => {
                let patch = self.claim(&self.settings.claimant);
                self.renew(patch).await
            }
            Step::Wait(remaining) => {
                self.lose();
                Ok(remaining.min(POLL_INTERVAL))
            }
        }
    }

    /// Returns the patch that makes the claimant the holder, or keeps it the holder.
    fn claim(&self, claimant: &str) -> Value {
        let record = self.observation.as_ref().map(|it| it.record.clone());
        let record = record.unwrap_or_default();
        let now = json!(micro_time(Timestamp::now()));
        let mut spec = json!({
            "holderIdentity": claimant,
            "leaseDurationSeconds": LEASE_DURATION.as_secs(),
            "renewTime": now,
        });
        if record.holder.as_deref() != Some(claimant) {
            spec["acquireTime"] = now;
            spec["leaseTransitions"] = record.transitions.saturating_add(1).into();
        }
        let (key, value) = holds_for(claimant, HOLD_DURATION);
        json!({
            "metadata": {
                "resourceVersion": record.version,
                "annotations": { key: value },
            },
            "spec": spec,
        })
    }

    async fn renew(&mut self, patch: Value) -> Result<Duration, LeaseError> {
        let sent = Instant::now();
        match self.patch(&patch).await {
            Ok(lease) => {
                let record = Record::read(&lease);
                self.observation = Some(Observation::update(None, record, sent));
                let before = self.until.send_replace(Some(held_until(sent)));
                self.held.set(1);
                self.conflicts = 0;
                if before.is_none() {
                    let lease = &self.settings.name;
                    tracing::info!(lease, "Acquired the Lease; this replica writes");
                }
                Ok(RENEW_INTERVAL)
            }
            // Another client has changed the Lease; the next step reads it again. An API server
            // whose reads are old refuses every time, and is asked less often.
            Err(LeaseError::Request(kube::Error::Api(status))) if status.code == CONFLICT => {
                self.conflicts = self.conflicts.saturating_add(1);
                let delay = RETRY_INTERVAL.saturating_mul(self.conflicts);
                Ok(delay.min(POLL_INTERVAL))
            }
            Err(error) => Err(error),
        }
    }

    async fn patch(&self, patch: &Value) -> Result<Lease, LeaseError> {
        let params = PatchParams {
            field_manager: Some(self.settings.field_manager.to_owned()),
            ..PatchParams::default()
        };
        respond(
            self.leases
                .patch(&self.settings.name, &params, &Patch::Merge(patch)),
        )
        .await
    }

    /// Creates the Lease, unless another replica has done so at the same time. Returns whether this
    /// one has.
    async fn create(&self) -> Result<bool, LeaseError> {
        let settings = &self.settings;
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": settings.name,
                "namespace": settings.namespace,
                // The version that no existing object has: an apply that only creates.
                "resourceVersion": "0",
            },
            "spec": {},
        });
        if let Some(owner) = &settings.owner {
            self.set_owner(&mut lease["metadata"], owner).await?;
        }
        let params = PatchParams::apply(settings.field_manager);
        let lease = Patch::Apply(&lease);
        let created = self.leases.patch(&settings.name, &params, &lease);
        match respond(created).await {
            Err(LeaseError::Request(kube::Error::Api(status))) if status.code == CONFLICT => {
                Ok(false)
            }
            result => result.map(|_lease| true),
        }
    }

    async fn set_owner(&self, metadata: &mut Value, owner: &LeaseOwner) -> Result<(), LeaseError> {
        let namespace = &self.settings.namespace;
        let LeaseOwner {
            component,
            deployment,
        } = owner;
        let found = respond(self.deployments.get_opt(deployment)).await?;
        let uid = found.and_then(|found| found.metadata.uid);
        let missing = || LeaseError::NoDeployment(format!("{namespace}/{deployment}"));
        let uid = uid.ok_or_else(missing)?;
        metadata["labels"] = json!({
            CONTROL_PLANE_COMPONENT: component,
            CONTROL_PLANE_NS: namespace,
        });
        metadata["ownerReferences"] = json!([{
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": deployment,
            "uid": uid,
            "controller": true,
        }]);
        Ok(())
    }

    fn lose(&self) {
        self.held.set(0);
        if self.until.send_replace(None).is_some() {
            let lease = &self.settings.name;
            tracing::warn!(lease, "Lost the Lease; this replica does not write");
        }
    }

    /// Lets another replica take over at once, when the last write has ended.
    async fn release(&self) {
        self.held.set(0);
        let holding = self.until.send_replace(None).is_some();
        if !holding {
            return;
        }
        // The writer drops its half when it has stopped.
        if timeout(RELEASE_DELAY, self.until.closed()).await.is_err() {
            return;
        }
        let released = async {
            let Some(lease) = respond(self.leases.get_opt(&self.settings.name)).await? else {
                return Ok(());
            };
            let record = Record::read(&lease);
            if record.holder.as_deref() != Some(&*self.settings.claimant) {
                return Ok(());
            }
            let patch = json!({
                "metadata": { "resourceVersion": record.version },
                "spec": { "holderIdentity": null },
            });
            self.patch(&patch).await.map(drop)
        };
        if let Err(error) = released.await {
            let lease = &self.settings.name;
            let error = error.to_string();
            tracing::warn!(lease, error, "Cannot release the Lease; it expires");
        }
    }
}

async fn respond<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, LeaseError> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(result) => Ok(result?),
        Err(_elapsed) => Err(LeaseError::Timeout),
    }
}

/// Replicas that start at the same time spread their requests.
fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(random::from_to(0.9, 1.0))
}

/// Leases have times with six digits after the point.
fn micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests;
