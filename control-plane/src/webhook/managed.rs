//! A serving certificate that nobody has to care for: made by whichever replica comes first, kept
//! in a Secret for all of them, renewed in time, and the API server told to trust it, in the
//! webhook configuration's `caBundle`, and told again when somebody changes that.
//!
//! ```text
//!   watch of the Secret ──┐
//!   watch of the webhook ─┼─▶ plan (pure) ──▶ make | publish | serve | wait
//!   a look every minute ──┘
//! ```
//!
//! A renewal has no gap: the new Secret holds the old authority beside the new one, every replica
//! goes on with the old certificate until the API server has been told of both, and a little
//! longer.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    runtime::watcher::{Config, Event},
};
use mesh_k8s::kinds::{ByteString, ObjectMeta, OwnerReference, Secret};
use mesh_runtime::{
    admin::Condition,
    metrics::{Labels, Registry},
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

mod plan;
mod repair;

pub(crate) use self::repair::Repairs;
use self::{
    plan::{Held, Hook, Seen, Step},
    repair::Damage,
};
use super::{
    Serving,
    certificate::{self, Made},
};
use crate::cluster::{Backoff, explain, follow};

/// Which configuration calls this server, and where the certificate is kept.
pub(crate) struct Managed {
    pub(crate) client: Client,
    /// Of the Secret and of the Service.
    pub(crate) namespace: String,
    pub(crate) secret: String,
    /// Its kind, and its name.
    pub(crate) hook: ApiResource,
    pub(crate) configuration: String,
    /// The DNS names under which the API server calls, `<service>.<namespace>.svc` first.
    pub(crate) names: Vec<String>,
    pub(crate) repairs: Repairs,
}

/// When the certificate that is served ends, for the metrics.
#[derive(Clone, Debug)]
pub(crate) struct Expiry(Arc<Mutex<Option<SystemTime>>>);

/// A certificate's dates are compared with the clock so often, whatever else happens.
const LOOK: Duration = Duration::from_secs(60);

/// API servers read a changed webhook configuration from their watch, within a second or two; in
/// the meantime they trust the old authority alone.
const SETTLE: Duration = Duration::from_secs(10);

/// What we made bears this annotation, as Linkerd's objects do; another's Secret is not touched.
const CREATED_BY: &str = mesh_core::annotation::CREATED_BY;

/// The kind of the injector's webhook configuration.
pub(crate) fn mutating() -> ApiResource {
    ApiResource {
        group: "admissionregistration.k8s.io".into(),
        version: "v1".into(),
        api_version: "admissionregistration.k8s.io/v1".into(),
        kind: "MutatingWebhookConfiguration".into(),
        plural: "mutatingwebhookconfigurations".into(),
    }
}

impl Expiry {
    pub(crate) fn export(registry: &Registry) -> Self {
        let expiry = Self(Arc::default());
        let exported = expiry.clone();
        registry.on_scrape(move |scrape| {
            if let Some(not_after) = *exported.0.lock() {
                let left = not_after.duration_since(SystemTime::now());
                let left = left.map_or(0.0, |left| left.as_secs_f64());
                let help = "Seconds until the certificate that the webhook serves with expires";
                scrape.gauge("webhook_cert_ttl_seconds", help, &Labels::new(), left);
            }
        });
        expiry
    }

    pub(super) fn set(&self, not_after: SystemTime) {
        *self.0.lock() = Some(not_after);
    }
}

/// What the loop below remembers.
struct State {
    seen: Seen,
    /// The authorities of what was served before, kept trusted over a Secret that was lost.
    served_authorities: String,
    /// The certificate that is served.
    served: Option<String>,
    /// A certificate that the API server has been told of, and from when on it may be served.
    settling: Option<(String, Instant)>,
    backoff: Backoff,
    /// What was last said to stand in the way; not said again until it changes.
    said: String,
    /// The UID of the configuration that last had the right authorities.
    in_order: Option<String>,
}

impl Managed {
    /// Keeps a certificate served and trusted until the process ends.
    pub(crate) async fn run(self, serving: Arc<Serving>, expiry: Expiry, ready: Condition) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let hooks: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.hook);
        let mut secret_changes = std::pin::pin!(changes_of(
            secrets.clone(),
            &self.secret,
            "the Secret of the webhook"
        ));
        let mut hook_changes = std::pin::pin!(changes_of(
            hooks.clone(),
            &self.configuration,
            "the webhook configuration"
        ));
        let mut state = State::new();
        let mut look = Instant::now() + LOOK;
        loop {
            tokio::select! {
                Some(secret) = secret_changes.next() => {
                    state.seen.secret = Some(secret.map(Held::read));
                }
                Some(hook) = hook_changes.next() => {
                    state.seen.hook = Some(hook.map(Hook::read));
                }
                () = sleep_until(look) => {}
            }
            look = match self.act(&secrets, &hooks, &serving, &mut state).await {
                Ok(next) => {
                    state.backoff.reset();
                    next
                }
                Err(error) => {
                    tracing::warn!(
                        error = explain(&error),
                        "Could not keep the webhook's certificate; trying again"
                    );
                    Instant::now() + state.backoff.delay()
                }
            };
            if let Some(Some(Ok(held))) = &state.seen.secret
                && state.served.as_ref() == Some(&held.certificate)
            {
                expiry.set(held.pair.not_after());
                ready.set(true);
            }
        }
    }

    /// Does what the plan says. Returns when to look again though nothing has changed.
    async fn act(
        &self,
        secrets: &Api<Secret>,
        hooks: &Api<DynamicObject>,
        serving: &Serving,
        state: &mut State,
    ) -> Result<Instant, kube::Error> {
        let later = Instant::now() + LOOK;
        let now = SystemTime::now();
        let step = plan::next(&state.seen, &self.names, now);
        let in_order = state.in_order.as_deref();
        let damage = repair::damage(&state.seen, &step, in_order, state.served.is_some(), now);
        let done = match step {
            Step::Look => false,
            Step::Wait(reason) => {
                state.say(reason);
                false
            }
            Step::Make => self.make(secrets, state).await?,
            Step::Publish(authorities) => self.publish(hooks, state, &authorities).await?,
            Step::Serve => {
                state.in_order = state.hook().map(|hook| hook.uid.clone());
                return Ok(self.serve(serving, state).unwrap_or(later));
            }
        };
        if let Some(damage) = damage.filter(|_| done) {
            self.tell(state, damage, now);
        }
        Ok(later)
    }

    /// An event of the registration, where an operator looks first.
    fn tell(&self, state: &State, damage: Damage, now: SystemTime) {
        let about = ObjectReference {
            api_version: Some(self.hook.api_version.clone()),
            kind: Some(self.hook.kind.clone()),
            name: Some(self.configuration.clone()),
            uid: state.hook().map(|hook| hook.uid.clone()),
            ..ObjectReference::default()
        };
        self.repairs.tell(damage, about, now);
    }

    /// Writes a new certificate, and says whether it did. When another replica was faster, its
    /// Secret arrives by the watch.
    async fn make(&self, secrets: &Api<Secret>, state: &mut State) -> Result<bool, kube::Error> {
        let made = match certificate::make(&self.names, SystemTime::now()) {
            Ok(made) => made,
            Err(error) => {
                state.say(format!("cannot make a certificate: {error}"));
                return Ok(false);
            }
        };
        let held = state.seen.secret.as_ref().and_then(Option::as_ref);
        let version = held.and_then(|held| match held {
            Ok(held) => held.version.clone(),
            Err(broken) => broken.version.clone(),
        });
        let secret = self.secret(&made, state, version.clone());
        let written = match version {
            None => secrets.create(&PostParams::default(), &secret).await,
            Some(_) => {
                secrets
                    .replace(&self.secret, &PostParams::default(), &secret)
                    .await
            }
        };
        match written {
            Ok(secret) => {
                tracing::info!(secret = self.secret, "Made a certificate for the webhook");
                state.seen.secret = Some(Some(Held::read(secret)));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => {
                tracing::debug!(
                    secret = self.secret,
                    "Another replica has made a certificate"
                );
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn secret(&self, made: &Made, state: &State, version: Option<String>) -> Secret {
        let owner = state.hook().map(|hook| {
            OwnerReference {
                api_version: self.hook.api_version.clone(),
                kind: self.hook.kind.clone(),
                name: self.configuration.clone(),
                uid: hook.uid.clone(),
                // The Secret goes with the configuration, and never holds it up.
                block_owner_deletion: None,
                controller: None,
            }
        });
        let authorities = plan::with_old_authorities(
            &made.authority_pem,
            &state.old_authorities(),
            SystemTime::now(),
        );
        let entry =
            |name: &str, text: &str| (name.to_owned(), ByteString(text.as_bytes().to_vec()));
        let version_text = format!("mesh-controller {}", env!("CARGO_PKG_VERSION"));
        Secret {
            metadata: ObjectMeta {
                name: Some(self.secret.clone()),
                namespace: Some(self.namespace.clone()),
                resource_version: version,
                annotations: Some([(CREATED_BY.to_owned(), version_text)].into()),
                labels: Some(
                    [(
                        mesh_core::annotation::CONTROL_PLANE_NS.to_owned(),
                        self.namespace.clone(),
                    )]
                    .into(),
                ),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".into()),
            data: Some(
                [
                    entry("tls.crt", &made.certificate_pem),
                    entry("tls.key", &made.key_pem),
                    entry("ca.crt", &authorities),
                ]
                .into(),
            ),
            ..Secret::default()
        }
    }

    /// Tells the API server whom to trust, and says whether it did.
    async fn publish(
        &self,
        hooks: &Api<DynamicObject>,
        state: &mut State,
        authorities: &str,
    ) -> Result<bool, kube::Error> {
        let Some(hook) = state.hook() else {
            return Ok(false);
        };
        let bundle = STANDARD.encode(authorities);
        let webhooks: Vec<_> = hook
            .bundles
            .iter()
            .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
            .collect();
        // Webhooks are merged by name. The version guards against a webhook that was removed in the
        // meantime, which the merge would add again.
        let patch = json!({"metadata": {"resourceVersion": hook.version}, "webhooks": webhooks});
        let patched = hooks
            .patch(
                &self.configuration,
                &PatchParams::default(),
                &Patch::Strategic(patch),
            )
            .await;
        match patched {
            Ok(hook) => {
                tracing::info!(
                    configuration = self.configuration,
                    "Told the API server whom to trust"
                );
                state.seen.hook = Some(Some(Hook::read(hook)));
                Ok(true)
            }
            // It was changed in the meantime: what is there now arrives by the watch.
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes the Secret's certificate into service, at once the first time and after the API
    /// servers have had time to learn of it later. Returns when to come back.
    fn serve(&self, serving: &Serving, state: &mut State) -> Option<Instant> {
        let Some(Some(Ok(held))) = &state.seen.secret else {
            return None;
        };
        if state.served.as_ref() == Some(&held.certificate) {
            return None;
        }
        let now = Instant::now();
        if state.served.is_some() {
            let begun = match &state.settling {
                Some((certificate, from)) if *certificate == held.certificate => *from,
                _ => {
                    let from = now + SETTLE;
                    state.settling = Some((held.certificate.clone(), from));
                    from
                }
            };
            if now < begun {
                return Some(begun);
            }
        }
        match serving.set(&held.pair) {
            Ok(()) => {
                tracing::info!(
                    secret = self.secret,
                    "Serving with the certificate of the Secret"
                );
                state.served = Some(held.certificate.clone());
                state.served_authorities.clone_from(&held.authorities);
                state.settling = None;
                state.said.clear();
            }
            Err(error) => {
                let reason = format!(
                    "certificate and key in the Secret {} do not belong together ({error}); delete it to have it made anew",
                    self.secret
                );
                state.say(reason);
            }
        }
        None
    }
}

impl State {
    fn new() -> Self {
        Self {
            seen: Seen::default(),
            served_authorities: String::new(),
            served: None,
            settling: None,
            backoff: Backoff::for_api_server(),
            said: String::new(),
            in_order: None,
        }
    }

    fn hook(&self) -> Option<&Hook> {
        self.seen.hook.as_ref()?.as_ref()
    }

    /// The authorities that other replicas may still be trusted by.
    fn old_authorities(&self) -> String {
        match &self.seen.secret {
            Some(Some(Ok(held))) => held.authorities.clone(),
            _ => self.served_authorities.clone(),
        }
    }

    fn say(&mut self, reason: String) {
        if reason != self.said {
            tracing::warn!(reason, "The webhook's certificate is not in order");
            self.said = reason;
        }
    }
}

/// One object, whenever it changes; nothing when there is none.
fn changes_of<K>(
    api: Api<K>,
    name: &str,
    what: &'static str,
) -> impl Stream<Item = Option<K>> + use<K>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let config = Config::default().fields(&format!("metadata.name={name}"));
    let events = follow(api, config, what, Backoff::for_api_server());
    // A list that ends without the object says that there is none.
    let listed = events.scan(false, |found, event| {
        let change = match event {
            Event::Init => {
                *found = false;
                None
            }
            Event::InitApply(object) => {
                *found = true;
                Some(Some(object))
            }
            Event::Apply(object) => Some(Some(object)),
            Event::Delete(_) => Some(None),
            Event::InitDone => (!*found).then_some(None),
        };
        std::future::ready(Some(change))
    });
    listed.filter_map(std::future::ready)
}
