//! Follows the trust anchors that the identity service sends, so that the machine can still verify
//! it after a rotation.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::machine::MAX_ANCHORS;
use mesh_core::resilience::Backoff;
use mesh_core::trust_bundle::TrustBundle;
use mesh_runtime::log::chain;
use tokio::time::sleep;

use super::{Member, Membership, ServiceError, identity_service, tls};

const BACKOFF: Backoff = Backoff {
    min: Duration::from_secs(1),
    max: Duration::from_secs(60),
    jitter: 0.5,
};

/// Follows them for the life of the process.
pub(crate) async fn run(membership: Arc<Membership>) {
    let mut members = membership.subscribe();
    let mut failures = 0;
    loop {
        let member = match members.wait_for(Option::is_some).await {
            Ok(member) => member.clone(),
            Err(_ended) => return,
        };
        let Some(member) = member else { continue };
        let mut received = false;
        if let Err(error) = follow(&membership, &member, &mut received).await {
            tracing::debug!(
                error = chain(&error),
                "The trust anchors of the mesh are not followed; trying again"
            );
        }
        failures = if received { 0 } else { failures + 1 };
        sleep(BACKOFF.pause(failures, member.share())).await;
    }
}

/// Takes the anchors of one stream, until it ends or the machine leaves.
async fn follow(
    membership: &Membership,
    member: &Member,
    received: &mut bool,
) -> Result<(), ServiceError> {
    let mut bundles = identity_service::watch_anchors(member.mesh()).await?;
    let mut members = membership.subscribe();
    let has_other = |current: &Option<Arc<Member>>| !is_same_join(current.as_deref(), member);
    loop {
        let bundle = tokio::select! {
            bundle = bundles.next() => bundle?,
            _ = members.wait_for(has_other) => return Ok(()),
        };
        let Some(bundle) = bundle else {
            return Ok(());
        };
        *received = true;
        adopt(membership, member, &bundle);
    }
}

/// Whether a machine has not left since it was the other one. Each join reads the key anew.
fn is_same_join(current: Option<&Member>, earlier: &Member) -> bool {
    current.is_some_and(|current| Arc::ptr_eq(&current.key, &earlier.key))
}

pub(super) fn adopt(membership: &Membership, followed: &Member, bundle: &TrustBundle) {
    let number = bundle.number;
    let refused = |reason: String| {
        tracing::warn!(
            number,
            reason,
            "Refused the trust anchors of the identity service"
        );
    };
    if bundle.anchors.len() > MAX_ANCHORS {
        return refused(format!("they have more than {} KiB", MAX_ANCHORS / 1024));
    }
    if let Err(error) = tls::count_anchors(&bundle.anchors) {
        return refused(error.to_string());
    }
    // A renewal at the same moment wins, and the next attempt has its record.
    while let Some(member) = membership.member() {
        if !is_same_join(Some(&member), followed) {
            return;
        }
        let record = match member.with_anchors(bundle) {
            Ok(Some(record)) => record,
            Ok(None) => return,
            Err(refusal) => return refused(refusal.to_string()),
        };
        match membership.replace(Some(&member), member.key.clone(), record) {
            Ok(_) => {
                tracing::info!(number, "Trust anchors changed");
                return;
            }
            Err(super::MembershipError::Changed) => {}
            Err(error) => return refused(chain(&error)),
        }
    }
}
