//! Follows what is known of one outbound destination: its profile and its policy, two streams that
//! become one snapshot.

use std::net::SocketAddr;
use std::sync::Arc;

use mesh_api::proto::destination::{DestinationProfile, GetDestination};
use mesh_api::proto::outbound::{OutboundPolicy as PolicyMessage, TrafficSpec, traffic_spec};
use mesh_core::policy::outbound::OutboundProtocol;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Code;

use super::settle::{PolicyAnswer, ProfileAnswer, settle};
use super::shared::{Followed, Shared};
use super::{ASK_AGAIN, Context, DiscoveryError, FIRST_ANSWER, OutboundTarget};
use crate::control::follow::{Event, Then, follow};
use crate::control::{self, stream};

const GET_PROFILE: &str = "/io.linkerd.proxy.destination.Destination/GetProfile";
const WATCH: &str = "/io.linkerd.proxy.outbound.OutboundPolicies/Watch";

/// Whether a destination is known yet.
pub(super) enum Slot {
    Pending,
    Known(watch::Sender<Arc<OutboundTarget>>),
    Refused(DiscoveryError),
}

/// What one look at a slot finds.
enum Found {
    Known(watch::Receiver<Arc<OutboundTarget>>),
    Refused(DiscoveryError),
    Pending(watch::Receiver<Slot>),
}

impl Followed for Slot {
    fn users(&self) -> usize {
        match self {
            Self::Known(target) => target.receiver_count(),
            Self::Pending | Self::Refused(_) => 0,
        }
    }
}

impl Found {
    fn read(slot: &watch::Sender<Slot>) -> Self {
        match &*slot.borrow() {
            Slot::Known(target) => Self::Known(target.subscribe()),
            Slot::Refused(error) => Self::Refused(error.clone()),
            Slot::Pending => Self::Pending(slot.subscribe()),
        }
    }
}

/// Subscribes to the destination, waiting while it is pending. A refusal is told to those who
/// waited for it and then forgotten, so that the next connection asks again.
pub(super) async fn look_up<F>(
    table: &Shared<SocketAddr, Slot>,
    runtime: &Handle,
    dst: SocketAddr,
    start: impl Fn(watch::Sender<Slot>) -> F,
) -> Result<watch::Receiver<Arc<OutboundTarget>>, DiscoveryError>
where
    F: Future<Output = ()> + Send + 'static,
{
    let waiting = async {
        loop {
            let found = table.find_or_start(&dst, runtime, || Slot::Pending, &start, Found::read);
            match found {
                Found::Known(target) => return Ok(target),
                Found::Refused(error) => {
                    table.forget_if(&dst, |slot| matches!(slot, Slot::Refused(_)));
                    return Err(error);
                }
                Found::Pending(mut slot) => {
                    if slot.changed().await.is_err() {
                        return Err(DiscoveryError::Stopped);
                    }
                }
            }
        }
    };
    timeout(FIRST_ANSWER, waiting)
        .await
        .unwrap_or(Err(DiscoveryError::TimedOut {
            dst,
            waited: FIRST_ANSWER,
        }))
}

/// Fills the slot with the first answers and keeps the snapshot up to date.
pub(super) async fn keep(context: Arc<Context>, dst: SocketAddr, slot: watch::Sender<Slot>) {
    let profile = watch::Sender::new(None);
    let policy = watch::Sender::new(None);
    tokio::join!(
        keep_profile(&context, dst, &profile),
        keep_policy(&context, dst, &policy),
        combine(
            &context,
            dst,
            profile.subscribe(),
            policy.subscribe(),
            &slot
        ),
    );
}

async fn keep_profile(
    context: &Context,
    dst: SocketAddr,
    profile: &watch::Sender<Option<ProfileAnswer>>,
) {
    let settings = &context.config.discovery;
    if !settings
        .profile_networks
        .iter()
        .any(|net| net.contains(&dst.ip()))
    {
        profile.send_replace(Some(ProfileAnswer::None));
        return;
    }
    context.destination.ready().await;
    let open = || {
        let request = GetDestination {
            scheme: String::new(),
            path: dst.to_string(),
            context_token: settings.context.to_string(),
        };
        stream::open(context.destination.clone(), GET_PROFILE, request)
    };
    follow(
        context.destination_limits,
        context.backoff(),
        open,
        |event| on_profile(dst, event, profile),
    )
    .await;
}

fn on_profile(
    dst: SocketAddr,
    event: Event<DestinationProfile>,
    profile: &watch::Sender<Option<ProfileAnswer>>,
) -> Then {
    let status = match event {
        Event::Message { message, .. } => {
            match mesh_api::destination::profile(message) {
                Ok(new) => publish(profile, ProfileAnswer::Profile(Box::new(new))),
                Err(error) => {
                    tracing::error!(%dst, %error, "Ignored a profile that cannot be used");
                    let reason = format!("it sent a profile that cannot be used: {error}");
                    publish_without_profile(profile, ProfileAnswer::Refused(reason));
                }
            }
            return Then::Retry;
        }
        Event::Failed(status) => status,
    };
    tracing::debug!(%dst, reason = control::reason(&status), "Profile stream failed");
    let (answer, then) = match status.code() {
        // Not an address that has profiles. That may change: a Service may be created with this
        // address.
        Code::InvalidArgument | Code::NotFound | Code::Unimplemented => {
            (ProfileAnswer::None, Then::RetryAfter(ASK_AGAIN))
        }
        Code::FailedPrecondition => {
            let reason = status.message().to_owned();
            (ProfileAnswer::Refused(reason), Then::Retry)
        }
        _ => (ProfileAnswer::Unavailable, Then::Retry),
    };
    publish_without_profile(profile, answer);
    then
}

/// The last profile stays in force, and so does a definite answer while the service is away.
fn publish_without_profile(profile: &watch::Sender<Option<ProfileAnswer>>, answer: ProfileAnswer) {
    profile.send_if_modified(|current| {
        let replace = match current {
            None | Some(ProfileAnswer::Unavailable) => true,
            Some(ProfileAnswer::Profile(_)) => false,
            Some(ProfileAnswer::None | ProfileAnswer::Refused(_)) => {
                answer != ProfileAnswer::Unavailable
            }
        };
        let changed = replace && current.as_ref() != Some(&answer);
        if changed {
            *current = Some(answer);
        }
        changed
    });
}

async fn keep_policy(
    context: &Context,
    dst: SocketAddr,
    answer: &watch::Sender<Option<PolicyAnswer>>,
) {
    context.policy.ready().await;
    let open = || {
        let spec = TrafficSpec {
            source_workload: context.config.discovery.workload.to_string(),
            target: Some(traffic_spec::Target::Addr(dst.into())),
        };
        stream::open(context.policy.clone(), WATCH, spec)
    };
    follow(context.policy_limits, context.backoff(), open, |event| {
        on_policy(dst, event, answer)
    })
    .await;
}

fn on_policy(
    dst: SocketAddr,
    event: Event<PolicyMessage>,
    answer: &watch::Sender<Option<PolicyAnswer>>,
) -> Then {
    let status = match event {
        Event::Message { message, .. } => {
            match mesh_api::outbound::outbound_policy(message) {
                Ok(policy) => publish(answer, PolicyAnswer::Policy(Box::new(policy))),
                Err(error) => {
                    tracing::error!(%dst, %error, "Ignored an outbound policy that cannot be used");
                    let reason = format!("it sent a policy that cannot be used: {error}");
                    publish_refusal(answer, reason);
                }
            }
            return Then::Retry;
        }
        Event::Failed(status) => status,
    };
    tracing::debug!(%dst, reason = control::reason(&status), "Outbound policy stream failed");
    match status.code() {
        Code::NotFound | Code::Unimplemented => {
            publish(answer, PolicyAnswer::Unknown);
            Then::RetryAfter(ASK_AGAIN)
        }
        Code::InvalidArgument | Code::FailedPrecondition => {
            publish_refusal(answer, status.message().to_owned());
            Then::RetryAfter(ASK_AGAIN)
        }
        _ => Then::Retry,
    }
}

/// A refusal matters only while nothing better is known.
fn publish_refusal(answer: &watch::Sender<Option<PolicyAnswer>>, reason: String) {
    answer.send_if_modified(|current| {
        let first = current.is_none();
        if first {
            *current = Some(PolicyAnswer::Refused(reason));
        }
        first
    });
}

fn publish<T: PartialEq>(to: &watch::Sender<Option<T>>, new: T) {
    to.send_if_modified(|current| {
        let changed = current.as_ref() != Some(&new);
        if changed {
            *current = Some(new);
        }
        changed
    });
}

/// Makes one snapshot of the newest profile and the newest policy, once both are there and whenever
/// one changes.
async fn combine(
    context: &Context,
    dst: SocketAddr,
    mut profile: watch::Receiver<Option<ProfileAnswer>>,
    mut answer: watch::Receiver<Option<PolicyAnswer>>,
    slot: &watch::Sender<Slot>,
) {
    loop {
        refill(context, dst, &mut profile, &mut answer, slot);
        let changed = tokio::select! {
            changed = profile.changed() => changed,
            changed = answer.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Apart, so that what is read takes no room in a future that waits nearly always.
fn refill(
    context: &Context,
    dst: SocketAddr,
    profile: &mut watch::Receiver<Option<ProfileAnswer>>,
    answer: &mut watch::Receiver<Option<PolicyAnswer>>,
    slot: &watch::Sender<Slot>,
) {
    let profile = profile.borrow_and_update().clone();
    let answer = answer.borrow_and_update().clone();
    let Some((profile, answer)) = profile.zip(answer) else {
        return;
    };
    let says_opaque = matches!(&profile, ProfileAnswer::Profile(profile) if profile.opaque);
    let timeout = context.config.outbound.detect_timeout;
    let Some(settled) = settle(dst, profile, answer, timeout) else {
        tracing::debug!(%dst, "Waiting for the destination service: the policy service does not say what is there");
        return;
    };
    if says_opaque
        && let Ok(target) = &settled
        && !matches!(target.policy.protocol, OutboundProtocol::Opaque(_))
    {
        tracing::warn!(%dst, parent = %target.policy.parent, "The profile says opaque and the policy does not: the policy applies");
    }
    fill(slot, settled);
}

/// Whoever already receives the destination keeps its last good snapshot when a refusal follows.
fn fill(slot: &watch::Sender<Slot>, new: Result<OutboundTarget, DiscoveryError>) {
    slot.send_if_modified(|slot| match (&*slot, new) {
        (Slot::Known(target), Ok(new)) => {
            target.send_if_modified(|current| {
                let changed = **current != new;
                if changed {
                    *current = Arc::new(new);
                }
                changed
            });
            false
        }
        (Slot::Known(_), Err(_)) => false,
        (_, Ok(new)) => {
            *slot = Slot::Known(watch::Sender::new(Arc::new(new)));
            true
        }
        (_, Err(error)) => {
            *slot = Slot::Refused(error);
            true
        }
    });
}
