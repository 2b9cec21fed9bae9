//! The webhooks that validate policies and ServiceProfiles: their registrations and certificates.

use mesh_k8s::kinds::ValidatingWebhook;

use super::super::causes::NOT_RUNNING;
use super::super::framework::{Check, CheckResult, Finding, Outcome};
use super::super::serving_certificate::{self, ServingCertificate};
use crate::facts::names::{POLICY_VALIDATOR, PROFILE_VALIDATOR, VALIDATORS, ValidatorNames};
use crate::facts::{Fact, Facts, NOT_QUERIED, ValidatorObjects, fact_ref};

pub(super) const REGISTERED: Check = Check::new(
    "l5d-existence-vwc",
    "the validators are registered with the API server",
    "{upgrade}",
    registered,
);

pub(super) const POLICY_VALID: Check = Check::new(
    "l5d-policy-validator-webhook-cert-valid",
    "the API server accepts the policy validator's certificate",
    "kubectl -n {ns} delete secret linkerd-policy-validator-k8s-tls && kubectl -n {ns} rollout restart deployment linkerd-destination (not for a certificate that you provided)",
    |facts| valid(facts, POLICY_VALIDATOR),
)
.explained_by(EXPLANATIONS);

pub(super) const POLICY_NOT_EXPIRING: Check = Check::new(
    "l5d-policy-validator-webhook-cert-not-expiring-soon",
    "the policy validator's certificate does not expire soon",
    "kubectl -n {ns} logs deployment/linkerd-destination -c policy; renew a certificate that you provided",
    |facts| not_expiring_soon(facts, POLICY_VALIDATOR),
)
.explained_by(&[&[
    "controllers-permissions",
    "l5d-policy-validator-webhook-cert-valid",
]]);

pub(super) const PROFILES_VALID: Check = Check::new(
    "l5d-sp-validator-webhook-cert-valid",
    "the API server accepts the ServiceProfile validator's certificate",
    "kubectl -n {ns} delete secret linkerd-sp-validator-k8s-tls && kubectl -n {ns} rollout restart deployment linkerd-destination (not for a certificate that you provided)",
    |facts| valid(facts, PROFILE_VALIDATOR),
)
.explained_by(EXPLANATIONS);

pub(super) const PROFILES_NOT_EXPIRING: Check = Check::new(
    "l5d-sp-validator-webhook-cert-not-expiring-soon",
    "the ServiceProfile validator's certificate does not expire soon",
    "kubectl -n {ns} logs deployment/linkerd-destination -c sp-validator; renew a certificate that you provided",
    |facts| not_expiring_soon(facts, PROFILE_VALIDATOR),
)
.explained_by(&[&[
    "controllers-permissions",
    "l5d-sp-validator-webhook-cert-valid",
]]);

const EXPLANATIONS: &[&[&str]] = &[
    &["controllers-permissions", "l5d-existence-vwc"],
    NOT_RUNNING,
];

fn objects(facts: &Facts, names: ValidatorNames) -> Fact<&ValidatorObjects> {
    let objects = facts.objects.validators.get(names.container);
    objects.ok_or_else(|| NOT_QUERIED.to_owned())
}

fn webhook(facts: &Facts, names: ValidatorNames) -> Fact<&ValidatingWebhook> {
    let configuration = fact_ref(&objects(facts, names)?.registration)?.as_ref();
    let webhooks = configuration.and_then(|configuration| configuration.webhooks.as_ref());
    let webhook = webhooks.and_then(|webhooks| webhooks.first());
    webhook.ok_or_else(|| {
        format!(
            "ValidatingWebhookConfiguration {} is missing or has no webhook: {} are not validated",
            names.registration, names.objects
        )
    })
}

fn registered(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for names in VALIDATORS {
        // One that cannot be read is not missing.
        fact_ref(&objects(facts, names)?.registration)?;
        let problem = match webhook(facts, names) {
            Ok(webhook) => wrong_service(facts, names, webhook),
            Err(missing) => Some(missing),
        };
        wrong.extend(problem.map(Finding::new));
    }
    Ok(Outcome::fail_if(wrong, ""))
}

fn wrong_service(
    facts: &Facts,
    names: ValidatorNames,
    webhook: &ValidatingWebhook,
) -> Option<String> {
    let Some(service) = &webhook.client_config.service else {
        return Some(format!("{} refers to no Service", names.registration));
    };
    let right = service.name == names.service && service.namespace == facts.control_namespace;
    (!right).then(|| {
        format!(
            "{} refers to Service {}/{}, but the {} of this control plane is {}/{}",
            names.registration,
            service.namespace,
            service.name,
            names.name,
            facts.control_namespace,
            names.service
        )
    })
}

fn certificate(facts: &Facts, names: ValidatorNames) -> Fact<ServingCertificate> {
    let secret = fact_ref(&objects(facts, names)?.secret)?.as_ref();
    let server = format!("{}.{}.svc", names.service, facts.control_namespace);
    ServingCertificate::read(secret, names.secret, server)
}

fn valid(facts: &Facts, names: ValidatorNames) -> CheckResult {
    let bundle = webhook(facts, names)?.client_config.ca_bundle.as_ref();
    let pem = bundle.map(|bundle| bundle.0.as_slice());
    let bundle = serving_certificate::ca_bundle(pem, names.registration, "the validator")?;
    certificate(facts, names)?.check_valid(&bundle, facts.now, "webhook's caBundle")
}

fn not_expiring_soon(facts: &Facts, names: ValidatorNames) -> CheckResult {
    certificate(facts, names)?.check_expiry(facts.now)
}
