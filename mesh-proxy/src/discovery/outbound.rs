//! Receives the profile and the policy of one outbound destination, and merges the two streams into
//! one snapshot.

use std::sync::Arc;
use std::time::Duration;

use mesh_api::destination::{ExtendedProfile, extended_profile};
use mesh_api::outbound::ExtendedPolicy;
use mesh_api::proto::destination::GetDestination;
use mesh_api::proto::outbound::{TrafficSpec, traffic_spec};
use mesh_core::policy::outbound::OutboundProtocol;
use mesh_core::resilience::RetryBudget as Settings;
use mesh_planted::Bug;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tonic::Code;

use super::merge::{PolicyResponse, ProfileResponse, merge};
use super::watch_cache::{SharedWatch, WatchCache};
use super::{
    Context, Destination, DiscoveryError, FIRST_SNAPSHOT_TIMEOUT, LAST_VALUE_AFTER, OutboundTarget,
    RETRY_REJECTED, TargetObject,
};
use crate::control::follow::{Event, RetryDecision, follow};
use crate::control::{self, stream};
use crate::retry::RetryBudget;
use crate::watch;

const GET_PROFILE: &str = "/io.linkerd.proxy.destination.Destination/GetProfile";
const WATCH: &str = "/io.linkerd.proxy.outbound.OutboundPolicies/Watch";

/// The state of a destination's lookup.
pub(super) enum LookupState {
    Pending,
    Resolved(watch::Sender<Arc<OutboundTarget>>),
    Failed(DiscoveryError, Instant),
}

/// A subscription to a destination's lookup.
enum Lookup {
    Resolved(watch::Receiver<Arc<OutboundTarget>>),
    Failed(DiscoveryError, Instant),
    Pending(watch::Receiver<LookupState>),
}

impl SharedWatch for LookupState {
    type Last = Arc<OutboundTarget>;

    fn users(&self) -> usize {
        match self {
            Self::Resolved(target) => target.receiver_count(),
            Self::Pending | Self::Failed(..) => 0,
        }
    }

    fn last(&self) -> Option<(Arc<OutboundTarget>, usize)> {
        match self {
            Self::Resolved(target) => Some((target.borrow().clone(), 1)),
            Self::Pending | Self::Failed(..) => None,
        }
    }
}

impl SharedWatch for Option<ProfileResponse> {
    /// Requests are forwarded without the routes of a profile, too.
    type Last = ();

    fn last(&self) -> Option<((), usize)> {
        None
    }
}

impl Lookup {
    fn new(state: &watch::Sender<LookupState>) -> Self {
        match &*state.borrow() {
            LookupState::Resolved(target) => Self::Resolved(target.subscribe()),
            LookupState::Failed(error, at) => Self::Failed(error.clone(), *at),
            LookupState::Pending => Self::Pending(state.subscribe()),
        }
    }
}

/// How long requests for a name whose lookup failed are answered without another lookup. External
/// clients may choose names, and each lookup costs the control plane two streams.
const FAILED_NAME: Duration = Duration::from_secs(5);

/// Subscribes to the destination's snapshots, and waits while its lookup is pending. A failed
/// lookup of an address is returned to the waiting connections and then evicted, so that the next
/// connection looks up again; a failed lookup of a name stays for [`FAILED_NAME`].
pub(super) async fn look_up<F>(
    cache: &WatchCache<Destination, LookupState>,
    runtime: &Handle,
    dst: &Destination,
    start: impl Fn(watch::Sender<LookupState>, Option<Arc<OutboundTarget>>) -> F,
) -> Result<watch::Receiver<Arc<OutboundTarget>>, DiscoveryError>
where
    F: Future<Output = ()> + Send + 'static,
{
    let waiting = async {
        loop {
            let lookup =
                cache.find_or_start(dst, runtime, || LookupState::Pending, &start, Lookup::new);
            match lookup {
                Lookup::Resolved(target) => return Ok(target),
                Lookup::Failed(error, at) => {
                    let is_name = matches!(dst, Destination::Name(_));
                    let is_outdated = is_name && at.elapsed() >= FAILED_NAME;
                    if !is_name || is_outdated {
                        cache.remove_if(dst, |state| matches!(state, LookupState::Failed(..)));
                    }
                    if !is_outdated {
                        return Err(error);
                    }
                }
                Lookup::Pending(mut state) => {
                    if state.changed().await.is_err() {
                        return Err(DiscoveryError::Stopped);
                    }
                }
            }
        }
    };
    timeout(FIRST_SNAPSHOT_TIMEOUT, waiting)
        .await
        .unwrap_or(Err(DiscoveryError::TimedOut {
            dst: dst.clone(),
            waited: FIRST_SNAPSHOT_TIMEOUT,
        }))
}

/// Publishes the destination's snapshots in `state`. `last` comes from an earlier watch, for an
/// outage of the control plane.
pub(super) async fn run(
    context: Arc<Context>,
    dst: Destination,
    state: watch::Sender<LookupState>,
    last: Option<Arc<OutboundTarget>>,
) {
    let dst = &dst;
    let profile = watch::Sender::new(None);
    let policy = watch::Sender::new(None);
    let unavailable = Notify::new();
    tokio::join!(
        watch_profile(&context, dst, &profile),
        watch_current_policy(&context, dst, profile.subscribe(), &policy, &unavailable),
        publish_last(last, &unavailable, &state),
        publish_snapshots(
            &context,
            dst,
            profile.subscribe(),
            policy.subscribe(),
            &state
        ),
    );
}

/// Publishes the responses of the destination service about a destination's profile.
pub(super) async fn watch_profile(
    context: &Context,
    dst: &Destination,
    profile: &watch::Sender<Option<ProfileResponse>>,
) {
    let settings = &context.config.discovery;
    let may_have_profile = match dst {
        Destination::Addr(addr) => settings.has_profile_network(addr.ip()),
        Destination::Name(name) => settings.has_profile_suffix(name.host()),
    };
    if !may_have_profile {
        profile.send_replace(Some(ProfileResponse::None));
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
    dst: &Destination,
    event: Event<ExtendedProfile>,
    profile: &watch::Sender<Option<ProfileResponse>>,
) -> RetryDecision {
    let status = match event {
        Event::Message { first: false, .. } if Bug::StaleAddress.is_planted() => {
            return RetryDecision::Retry;
        }
        Event::Message { message, .. } => {
            match extended_profile(message) {
                Ok(new) => publish(profile, ProfileResponse::Profile(Box::new(new))),
                Err(error) => {
                    tracing::error!(%dst, %error, "Ignored an invalid profile");
                    let reason = format!("invalid profile: {error}");
                    publish_without_profile(profile, ProfileResponse::Rejected(reason));
                }
            }
            return RetryDecision::Retry;
        }
        Event::Failed(status) => status,
    };
    tracing::debug!(%dst, reason = control::reason(&status), "Profile stream failed");
    let (response, decision) = match status.code() {
        // The address has no profile. A Service with this address may be created later.
        Code::InvalidArgument | Code::NotFound | Code::Unimplemented => (
            ProfileResponse::None,
            RetryDecision::RetryAfter(RETRY_REJECTED),
        ),
        Code::FailedPrecondition => {
            let reason = status.message().to_owned();
            (ProfileResponse::Rejected(reason), RetryDecision::Retry)
        }
        _ => (ProfileResponse::Unavailable, RetryDecision::Retry),
    };
    publish_without_profile(profile, response);
    decision
}

/// Publishes a response without a profile, unless there is a profile already. While the service is
/// unavailable, its last definite response stays in force.
fn publish_without_profile(
    profile: &watch::Sender<Option<ProfileResponse>>,
    response: ProfileResponse,
) {
    profile.send_if_modified(|current| {
        let replace = match current {
            None | Some(ProfileResponse::Unavailable) => true,
            Some(ProfileResponse::Profile(_)) => false,
            Some(ProfileResponse::None | ProfileResponse::Rejected(_)) => {
                response != ProfileResponse::Unavailable
            }
        };
        let is_changed = replace && current.as_ref() != Some(&response);
        if is_changed {
            *current = Some(response);
        }
        is_changed
    });
}

/// Publishes the responses of the policy service, from a new stream whenever the address belongs to
/// another object. The stream before may be about the object that had the address, and one that was
/// refused would be opened again much later. Until the service responds, only the profile decides.
async fn watch_current_policy(
    context: &Context,
    dst: &Destination,
    mut profile: watch::Receiver<Option<ProfileResponse>>,
    response: &watch::Sender<Option<PolicyResponse>>,
    unavailable: &Notify,
) {
    let mut object = None;
    loop {
        tokio::select! {
            biased;
            // First, so that no response about the object before is published any more.
            () = other_object(dst, &mut profile, &mut object) => {
                tracing::debug!(%dst, "The address belongs to another object");
                response.send_if_modified(|current| {
                    let is_known = current.is_some();
                    if is_known {
                        *current = Some(PolicyResponse::Unknown);
                    }
                    is_known
                });
            }
            () = watch_policy(context, dst, response, unavailable) => return,
        }
    }
}

/// Waits until the profile of an address belongs to another object than `last`, which is `None`
/// before the first profile. A name is looked up as such, whatever object has it.
async fn other_object(
    dst: &Destination,
    profile: &mut watch::Receiver<Option<ProfileResponse>>,
    last: &mut Option<Option<TargetObject>>,
) {
    if dst.addr().is_none() {
        return std::future::pending().await;
    }
    loop {
        let now = match &*profile.borrow_and_update() {
            Some(ProfileResponse::Profile(profile)) => Some(TargetObject::of_profile(profile)),
            _ => None,
        };
        if let Some(now) = now {
            let before = last.replace(now.clone());
            let is_other = match before {
                None => false,
                Some(None) => now.is_some(),
                Some(Some(before)) => before.is_replaced_by(now.as_ref()),
            };
            if is_other {
                return;
            }
        }
        if profile.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Publishes the responses of the policy service, and notifies `unavailable` when it has none.
async fn watch_policy(
    context: &Context,
    dst: &Destination,
    response: &watch::Sender<Option<PolicyResponse>>,
    unavailable: &Notify,
) {
    context.policy.ready().await;
    let open = || {
        let spec = TrafficSpec {
            source_workload: context.config.discovery.workload.to_string(),
            target: Some(match dst {
                Destination::Addr(addr) => traffic_spec::Target::Addr((*addr).into()),
                Destination::Name(name) => traffic_spec::Target::Authority(name.to_string()),
            }),
        };
        stream::open(context.policy.clone(), WATCH, spec)
    };
    follow(context.policy_limits, context.backoff(), open, |event| {
        on_policy(dst, event, response, unavailable)
    })
    .await;
}

fn on_policy(
    dst: &Destination,
    event: Event<ExtendedPolicy>,
    response: &watch::Sender<Option<PolicyResponse>>,
    unavailable: &Notify,
) -> RetryDecision {
    let status = match event {
        Event::Message { message, .. } => {
            match mesh_api::outbound::extended_policy(message) {
                Ok(received) => {
                    if let Some(problem) = received.problem {
                        tracing::error!(%dst, %problem, "Requests of some routes fail: their filters are invalid");
                    }
                    let policy = Box::new(received.policy);
                    publish(response, PolicyResponse::Policy(policy));
                }
                Err(error) => {
                    tracing::error!(%dst, %error, "Ignored an invalid outbound policy");
                    let reason = format!("invalid policy: {error}");
                    publish_rejection(response, reason);
                }
            }
            return RetryDecision::Retry;
        }
        Event::Failed(status) => status,
    };
    tracing::debug!(%dst, reason = control::reason(&status), "Outbound policy stream failed");
    match status.code() {
        Code::NotFound | Code::Unimplemented => {
            publish(response, PolicyResponse::Unknown);
            RetryDecision::RetryAfter(RETRY_REJECTED)
        }
        Code::InvalidArgument | Code::FailedPrecondition => {
            publish_rejection(response, status.message().to_owned());
            RetryDecision::RetryAfter(RETRY_REJECTED)
        }
        _ => {
            unavailable.notify_one();
            RetryDecision::Retry
        }
    }
}

/// Publishes a rejection, unless the policy service has responded before.
fn publish_rejection(response: &watch::Sender<Option<PolicyResponse>>, reason: String) {
    response.send_if_modified(|current| {
        let is_first = current.is_none();
        if is_first {
            *current = Some(PolicyResponse::Rejected(reason));
        }
        is_first
    });
}

fn publish<T: PartialEq>(to: &watch::Sender<Option<T>>, new: T) {
    to.send_if_modified(|current| {
        let is_changed = current.as_ref() != Some(&new);
        if is_changed {
            *current = Some(new);
        }
        is_changed
    });
}

/// Publishes the last snapshot of an earlier watch, unless the control plane has responded before
/// it is known to be unavailable.
async fn publish_last(
    last: Option<Arc<OutboundTarget>>,
    unavailable: &Notify,
    state: &watch::Sender<LookupState>,
) {
    let Some(last) = last else {
        return;
    };
    // After this time it counts as unavailable, too.
    let _ = timeout(LAST_VALUE_AFTER, unavailable.notified()).await;
    state.send_if_modified(|state| {
        let is_pending = matches!(state, LookupState::Pending);
        if is_pending {
            tracing::debug!(dst = %last.destination, "No response from the control plane; the last policy of the destination is in force");
            *state = LookupState::Resolved(watch::Sender::new(last));
        }
        is_pending
    });
}

/// Publishes a snapshot of the current profile and policy when both have arrived, and whenever one
/// changes.
async fn publish_snapshots(
    context: &Context,
    dst: &Destination,
    mut profile: watch::Receiver<Option<ProfileResponse>>,
    mut response: watch::Receiver<Option<PolicyResponse>>,
    state: &watch::Sender<LookupState>,
) {
    loop {
        publish_snapshot(context, dst, &mut profile, &mut response, state);
        let changed = tokio::select! {
            biased;
            changed = profile.changed() => changed,
            changed = response.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Merges and publishes the current profile and policy. A separate function, so that its values do
/// not enlarge the future that awaits changes.
fn publish_snapshot(
    context: &Context,
    dst: &Destination,
    profile: &mut watch::Receiver<Option<ProfileResponse>>,
    response: &mut watch::Receiver<Option<PolicyResponse>>,
    state: &watch::Sender<LookupState>,
) {
    let profile = profile.borrow_and_update().clone();
    let response = response.borrow_and_update().clone();
    let Some((profile, response)) = profile.zip(response) else {
        return;
    };
    let is_profile_opaque = matches!(&profile, ProfileResponse::Profile(profile) if profile.opaque);
    let timeout = context.config.outbound.detect_timeout;
    let Some(mut merged) = merge(dst, profile, response, timeout) else {
        tracing::debug!(%dst, "Waiting for the destination service: the policy does not identify the destination");
        return;
    };
    if is_profile_opaque
        && let Ok(target) = &merged
        && !matches!(target.policy.protocol, OutboundProtocol::Opaque(_))
    {
        tracing::warn!(%dst, parent = %target.policy.parent, "Ignored the profile's opaque protocol: the policy sets another one");
    }
    if let Ok(target) = &mut merged {
        let settings = target
            .profile
            .as_ref()
            .and_then(|profile| profile.retry_budget);
        target.retry_budget = settings.map(|settings| retry_budget(settings, &state.borrow()));
    }
    set_state(state, merged);
}

/// Returns the budget of the last snapshot if it has these settings, and a new one otherwise.
fn retry_budget(settings: Settings, last: &LookupState) -> Arc<RetryBudget> {
    let last = match last {
        LookupState::Resolved(target) => target.borrow().retry_budget.clone(),
        LookupState::Pending | LookupState::Failed(..) => None,
    };
    let same = last.filter(|budget| budget.settings() == settings);
    same.unwrap_or_else(|| Arc::new(RetryBudget::new(settings)))
}

/// Publishes a lookup's result. Receivers of a resolved destination keep the last snapshot when an
/// error follows.
fn set_state(state: &watch::Sender<LookupState>, new: Result<OutboundTarget, DiscoveryError>) {
    state.send_if_modified(|state| match (&*state, new) {
        (LookupState::Resolved(target), Ok(new)) => {
            target.send_if_modified(|current| {
                let is_changed = **current != new;
                if is_changed {
                    *current = Arc::new(new);
                }
                is_changed
            });
            false
        }
        (LookupState::Resolved(_), Err(_)) => false,
        (_, Ok(new)) => {
            *state = LookupState::Resolved(watch::Sender::new(Arc::new(new)));
            true
        }
        (_, Err(error)) => {
            *state = LookupState::Failed(error, Instant::now());
            true
        }
    });
}
