//! A serving certificate that the replicas manage themselves: the first replica generates it and
//! stores it in a Secret for all of them; it is renewed in time, and its CA is written to the
//! `caBundle` of the webhook configuration or APIService, also after changes by other clients.
//!
//! ```text
//!   watch of the Secret ────────┐
//!   watch of the registration ──┼─▶ plan (pure) ──▶ generate | publish | serve | wait
//!   a check every minute ───────┘
//! ```
//!
//! A renewal has no gap: the new Secret contains the old CA in addition to the new one, and every
//! replica serves with the old certificate until shortly after the `caBundle` has both.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client, Resource};
use mesh_core::rights::{self, Right};
use mesh_k8s::kinds::{ByteString, ObjectMeta, OwnerReference, Secret};
use mesh_runtime::admin::Condition;
use mesh_runtime::metrics::{Labels, Registry};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use self::plan::{CertificateSecret, ObservedRegistration, ObservedState, Step};
use self::repair::Damage;
use super::ServingCertificate;
use super::certificate::{self, GeneratedCertificate};
use crate::api_server::{Backoff, event_rights, explain, watch_objects};

mod plan;
mod repair;

pub use self::repair::RepairReporter;

/// The object that tells the API server of this server and its CA.
#[derive(Clone, Debug)]
pub struct Registration {
    pub kind: RegistrationKind,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationKind {
    MutatingWebhook,
    ValidatingWebhook,
    ApiService,
}

/// The registration of this server, and the Secret of the certificate.
pub struct ManagedCertificate {
    pub client: Client,
    /// The namespace of the Secret and the Service.
    pub namespace: String,
    pub secret: String,
    pub registration: Registration,
    /// The label of the Secret. It lets `meshctl` find the objects of an installation.
    pub label: (&'static str, String),
    /// The DNS names that the API server calls, `<service>.<namespace>.svc` first.
    pub names: Vec<String>,
    pub repairs: RepairReporter,
}

/// The expiry of the served certificate, for metrics.
#[derive(Clone, Debug)]
pub struct Expiry(Arc<Mutex<Option<SystemTime>>>);

/// Returns the rights of a managed certificate: the Secret, which one replica creates, the
/// registration, and events about repairs.
pub fn rights(
    kind: RegistrationKind,
    registration: &'static str,
    secret: &'static str,
) -> impl Iterator<Item = Right> {
    let (group, plural) = kind.group_and_plural();
    rights::all("", "secrets", &["create"])
        .chain(rights::named(
            "",
            "secrets",
            &["list", "watch", "update"],
            secret,
        ))
        .chain(rights::named(
            group,
            plural,
            &["list", "watch", "patch"],
            registration,
        ))
        .chain(event_rights())
}

/// How often the certificate's expiry is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// How long after a change of the registration API servers may still trust the old CA
/// only. Their watch reports the change within a second or two.
const PROPAGATION_DELAY: Duration = Duration::from_secs(10);

/// Linkerd's annotation of the creator. A Secret of another creator is not changed.
const CREATED_BY: &str = mesh_core::annotation::CREATED_BY;

const ADMISSION: &str = "admissionregistration.k8s.io";

impl RegistrationKind {
    fn resource(self) -> ApiResource {
        match self {
            Self::MutatingWebhook => ApiResource::erase::<MutatingWebhookConfiguration>(&()),
            Self::ValidatingWebhook => ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
            Self::ApiService => ApiResource::erase::<APIService>(&()),
        }
    }

    fn group_and_plural(self) -> (&'static str, &'static str) {
        match self {
            Self::MutatingWebhook => (ADMISSION, "mutatingwebhookconfigurations"),
            Self::ValidatingWebhook => (ADMISSION, "validatingwebhookconfigurations"),
            Self::ApiService => ("apiregistration.k8s.io", "apiservices"),
        }
    }

    /// Whether the process has another purpose, so that it is ready without a registration: users
    /// may delete the registration of a validator to admit objects without it, and the pod also
    /// serves the proxies.
    fn is_optional(self) -> bool {
        self == Self::ValidatingWebhook
    }

    /// Returns the patch that writes the `caBundle`, in base64, of the observed object.
    ///
    /// It contains the resource version: webhooks are merged by name, so the patch could otherwise
    /// restore a webhook that was removed in the meantime.
    fn patch(self, observed: &ObservedRegistration, bundle: &str) -> Patch<Value> {
        let metadata = json!({"resourceVersion": observed.version});
        match self {
            Self::MutatingWebhook | Self::ValidatingWebhook => {
                let webhooks: Vec<_> = observed
                    .bundles
                    .iter()
                    .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
                    .collect();
                Patch::Strategic(json!({"metadata": metadata, "webhooks": webhooks}))
            }
            Self::ApiService => {
                Patch::Merge(json!({"metadata": metadata, "spec": {"caBundle": bundle}}))
            }
        }
    }
}

impl Expiry {
    pub fn export(registry: &Registry) -> Self {
        let expiry = Self(Arc::default());
        let exported = expiry.clone();
        registry.on_scrape(move |scrape| {
            if let Some(not_after) = *exported.0.lock() {
                let left = not_after.duration_since(SystemTime::now());
                let left = left.map_or(0.0, |left| left.as_secs_f64());
                let help = "Seconds until the serving certificate expires";
                scrape.gauge("webhook_cert_ttl_seconds", help, &Labels::new(), left);
            }
        });
        expiry
    }

    pub(super) fn set(&self, not_after: SystemTime) {
        *self.0.lock() = Some(not_after);
    }
}

/// The state of the loop.
struct State {
    observed: ObservedState,
    /// The CAs of the served certificate, which stay trusted if the Secret is deleted.
    served_authorities: String,
    /// The certificate that is served.
    served: Option<String>,
    /// A certificate whose CA has been published, and the time when it begins to be served.
    settling: Option<(String, Instant)>,
    backoff: Backoff,
    /// The last logged problem, which is not repeated.
    last_problem: String,
    /// The UID of the registration that last had the correct `caBundle`.
    intact_uid: Option<String>,
}

impl ManagedCertificate {
    /// Serves with a trusted certificate and renews it, until the process exits.
    pub async fn run(self, serving: Arc<ServingCertificate>, expiry: Expiry, ready: Condition) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let resource = self.registration.kind.resource();
        let registrations: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let mut secret_changes = std::pin::pin!(watch_object(
            secrets.clone(),
            &self.secret,
            "the Secret of the serving certificate"
        ));
        let mut registration_changes = std::pin::pin!(watch_object(
            registrations.clone(),
            &self.registration.name,
            "the registration of this server"
        ));
        let mut state = State::new();
        let mut next_check = Instant::now() + CHECK_INTERVAL;
        loop {
            tokio::select! {
                Some(secret) = secret_changes.next() => {
                    state.observed.secret = Some(secret.map(CertificateSecret::read));
                }
                Some(object) = registration_changes.next() => {
                    state.observed.registration = Some(object.map(ObservedRegistration::read));
                }
                () = sleep_until(next_check) => {}
            }
            next_check = match self
                .act(&secrets, &registrations, &serving, &mut state)
                .await
            {
                Ok(next) => {
                    state.backoff.reset();
                    next
                }
                Err(error) => {
                    tracing::warn!(
                        error = explain(&error),
                        "Cannot update serving certificate; retrying"
                    );
                    Instant::now() + state.backoff.delay()
                }
            };
            if let Some(Some(Ok(held))) = &state.observed.secret
                && state.served.as_ref() == Some(&held.certificate)
            {
                expiry.set(held.pair.not_after());
                ready.set(true);
            }
            if self.registration.kind.is_optional() && state.observed.is_unregistered() {
                ready.set(true);
            }
        }
    }

    /// Executes the next step of the plan. Returns the time of the next check without changes.
    async fn act(
        &self,
        secrets: &Api<Secret>,
        registrations: &Api<DynamicObject>,
        serving: &ServingCertificate,
        state: &mut State,
    ) -> Result<Instant, kube::Error> {
        let later = Instant::now() + CHECK_INTERVAL;
        let now = SystemTime::now();
        let step = plan::next(&state.observed, &self.names, now);
        let intact_uid = state.intact_uid.as_deref();
        let damage = repair::damage(
            &state.observed,
            &step,
            &self.names,
            intact_uid,
            state.served.as_deref(),
            now,
        );
        let done = match step {
            Step::Observe => false,
            Step::Wait(reason) => {
                state.report_problem(reason);
                false
            }
            Step::Unregistered => {
                state.report_problem(format!(
                    "{} {} does not exist, so the API server does not call this server; check the installation of the chart",
                    self.registration.kind.resource().kind,
                    self.registration.name
                ));
                false
            }
            Step::Generate => self.generate(secrets, state).await?,
            Step::PublishAuthorities(authorities) => {
                self.publish(registrations, state, &authorities).await?
            }
            Step::Serve => {
                state.intact_uid = state.registration().map(|observed| observed.uid.clone());
                return Ok(self.serve(serving, state).unwrap_or(later));
            }
        };
        if let Some(damage) = damage.filter(|_| done) {
            self.report(state, damage, now);
        }
        Ok(later)
    }

    /// Reports a repair in an event of the registration.
    fn report(&self, state: &State, damage: Damage, now: SystemTime) {
        let resource = self.registration.kind.resource();
        let about = ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            name: Some(self.registration.name.clone()),
            uid: state.registration().map(|observed| observed.uid.clone()),
            ..ObjectReference::default()
        };
        self.repairs.report(damage, about, now);
    }

    /// Generates and writes a certificate. Returns `false` if another replica was faster, whose
    /// Secret the watch reports.
    async fn generate(
        &self,
        secrets: &Api<Secret>,
        state: &mut State,
    ) -> Result<bool, kube::Error> {
        let made = match certificate::generate(&self.names, SystemTime::now()) {
            Ok(made) => made,
            Err(error) => {
                state.report_problem(format!("cannot generate a certificate: {error}"));
                return Ok(false);
            }
        };
        let held = state.observed.secret.as_ref().and_then(Option::as_ref);
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
                tracing::info!(secret = self.secret, "Generated serving certificate");
                state.observed.secret = Some(Some(CertificateSecret::read(secret)));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => {
                tracing::debug!(
                    secret = self.secret,
                    "Another replica generated a certificate"
                );
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn secret(
        &self,
        made: &GeneratedCertificate,
        state: &State,
        version: Option<String>,
    ) -> Secret {
        let owner = state.registration().map(|observed| {
            let resource = self.registration.kind.resource();
            OwnerReference {
                api_version: resource.api_version,
                kind: resource.kind,
                name: self.registration.name.clone(),
                uid: observed.uid.clone(),
                // The Secret is deleted with the registration and does not block its deletion.
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
        // In the viz extension too: an earlier version recognizes its Secret by this name, after a
        // rollback.
        let version_text = format!("mesh-controller {}", env!("CARGO_PKG_VERSION"));
        Secret {
            metadata: ObjectMeta {
                name: Some(self.secret.clone()),
                namespace: Some(self.namespace.clone()),
                resource_version: version,
                annotations: Some([(CREATED_BY.to_owned(), version_text)].into()),
                labels: Some([(self.label.0.to_owned(), self.label.1.clone())].into()),
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

    /// Writes the `caBundle`. Returns `false` if the registration has changed.
    async fn publish(
        &self,
        registrations: &Api<DynamicObject>,
        state: &mut State,
        authorities: &str,
    ) -> Result<bool, kube::Error> {
        let Some(observed) = state.registration() else {
            return Ok(false);
        };
        let Registration { kind, name } = &self.registration;
        let patch = kind.patch(observed, &STANDARD.encode(authorities));
        let patched = registrations
            .patch(name, &PatchParams::default(), &patch)
            .await;
        match patched {
            Ok(object) => {
                tracing::info!(registration = name, "Published CA of serving certificate");
                state.observed.registration = Some(Some(ObservedRegistration::read(object)));
                Ok(true)
            }
            // Changed in the meantime; the watch reports the new version.
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Serves with the Secret's certificate: the first one immediately, a later one after the
    /// propagation delay. Returns the time to call this again.
    fn serve(&self, serving: &ServingCertificate, state: &mut State) -> Option<Instant> {
        let Some(Some(Ok(held))) = &state.observed.secret else {
            return None;
        };
        if state.served.as_ref() == Some(&held.certificate) {
            return None;
        }
        let now = Instant::now();
        if state.served.is_some() {
            let serve_from = match &state.settling {
                Some((certificate, from)) if *certificate == held.certificate => *from,
                _ => {
                    let from = now + PROPAGATION_DELAY;
                    state.settling = Some((held.certificate.clone(), from));
                    from
                }
            };
            if now < serve_from {
                return Some(serve_from);
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
                state.last_problem.clear();
            }
            Err(error) => {
                let reason = format!(
                    "certificate and key in the Secret {} do not match ({error}); delete it to have it generated again",
                    self.secret
                );
                state.report_problem(reason);
            }
        }
        None
    }
}

impl State {
    fn new() -> Self {
        Self {
            observed: ObservedState::default(),
            served_authorities: String::new(),
            served: None,
            settling: None,
            backoff: Backoff::for_api_server(),
            last_problem: String::new(),
            intact_uid: None,
        }
    }

    fn registration(&self) -> Option<&ObservedRegistration> {
        self.observed.registration.as_ref()?.as_ref()
    }

    /// Returns the CAs of certificates that other replicas may still serve.
    fn old_authorities(&self) -> String {
        match &self.observed.secret {
            Some(Some(Ok(held))) => held.authorities.clone(),
            _ => self.served_authorities.clone(),
        }
    }

    fn report_problem(&mut self, reason: String) {
        if reason != self.last_problem {
            tracing::warn!(reason, "Cannot manage serving certificate");
            self.last_problem = reason;
        }
    }
}

/// Returns the changes of an object; `None` means that it does not exist.
fn watch_object<K>(
    api: Api<K>,
    name: &str,
    what: &'static str,
) -> impl Stream<Item = Option<K>> + use<K>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let config = Config::default().fields(&format!("metadata.name={name}"));
    let events = watch_objects(api, config, what, Backoff::for_api_server());
    // A complete list without the object means that it does not exist.
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
