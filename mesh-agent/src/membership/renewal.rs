//! Renews the certificate of the machine with a token that it signs itself: after a third of its
//! life, then with back-off.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mesh_runtime::log::chain;
use mesh_runtime::metrics::{Counter, Labels, Registry};
use tokio::sync::watch;
use tokio::time::sleep;

use super::member::pause_after;
use super::{Member, Membership, MembershipError, identity_service, time};

/// How long to sleep at most: the clock of a machine may be set, and it may be suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The metrics of renewals.
pub(crate) struct RenewalMetrics {
    renewed: Counter,
    failed: Counter,
}

impl RenewalMetrics {
    pub(crate) fn new(registry: &Registry, membership: &Arc<Membership>) -> Self {
        let renewals = registry.counter_family(
            "mesh_agent_machine_certificate_renewals_total",
            "Attempts to renew the machine's certificate, by result",
        );
        let result = |result: &'static str| renewals.with(&Labels::new().with("result", result));
        let membership = membership.clone();
        registry.on_scrape(move |scrape| {
            if let Some(member) = membership.member() {
                let name = "mesh_agent_machine_certificate_expiry_timestamp_seconds";
                let help = "Unix time when the certificate expires that the machine signs tokens with; absent before it joins";
                let expires = time::seconds(member.expires()) as f64;
                scrape.gauge(name, help, &Labels::new(), expires);
            }
        });
        Self {
            renewed: result("renewed"),
            failed: result("failed"),
        }
    }
}

/// Renews for the life of the process.
pub(crate) async fn run(membership: Arc<Membership>, metrics: RenewalMetrics) {
    let mut members = membership.subscribe();
    let mut failures = 0;
    loop {
        let Some(member) = current(&mut members).await else {
            return;
        };
        let due = match failures {
            0 => member.renews_at(),
            _ => SystemTime::now() + pause_after(failures, member.share()),
        };
        tokio::select! {
            () = sleep_until(due) => {}
            // Another machine, other anchors, or none.
            _ = members.changed() => {
                failures = 0;
                continue;
            }
        }
        match renew(&membership, &member).await {
            Ok(renewed) => {
                failures = 0;
                metrics.renewed.inc();
                let expires = time::text(renewed.expires());
                tracing::info!(expires, "Renewed the certificate of the machine");
            }
            Err(MembershipError::Changed) => {}
            Err(error) => {
                failures += 1;
                metrics.failed.inc();
                let expires = time::text(member.expires());
                let error = chain(&error);
                tracing::warn!(
                    error,
                    expires,
                    "Cannot renew the certificate of the machine"
                );
                membership.set_failure(error);
            }
        }
    }
}

/// Waits until the machine has joined; `None` when the agent ends.
async fn current(members: &mut watch::Receiver<Option<Arc<Member>>>) -> Option<Arc<Member>> {
    let member = members.wait_for(Option::is_some).await.ok()?.clone();
    members.mark_unchanged();
    member
}

async fn sleep_until(due: SystemTime) {
    while let Ok(left) = due.duration_since(SystemTime::now()) {
        sleep(left.min(LONGEST_SLEEP)).await;
    }
}

async fn renew(
    membership: &Membership,
    member: &Arc<Member>,
) -> Result<Arc<Member>, MembershipError> {
    let key = &member.key;
    let token = member.own_token(SystemTime::now())?;
    let name = member.name();
    let request = key.certificate_request(&name)?;
    let token = token.text.into_bytes();
    let certified = identity_service::certify(member.mesh(), key, &name, token, request).await;
    let certified = certified.map_err(|error| {
        MembershipError::of_service(member.machine(), &key.fingerprint(), error)
    })?;
    let record = member.renewed(&certified, SystemTime::now());
    membership.replace(Some(member), key.clone(), record)
}
