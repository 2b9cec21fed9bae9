//! The certificates that the extension presents to the API server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mesh_k8s::kinds::Secret;

use crate::check::framework::{CheckResult, Outcome};
use crate::check::serving_certificate::{self, ServingCertificate};
use crate::facts::names::{TAP_API, TAP_INJECTOR, TAP_INJECTOR_SECRET, TAP_SECRET};
use crate::facts::{Fact, Facts, fact_ref};

pub(super) fn tap_valid(facts: &Facts) -> CheckResult {
    let bundle = tap_bundle(facts)?;
    of_tap(facts)?.check_valid(&bundle, facts.now, "APIService's caBundle")
}

pub(super) fn tap_not_expiring(facts: &Facts) -> CheckResult {
    of_tap(facts)?.check_expiry(facts.now)
}

pub(super) fn injector_valid(facts: &Facts) -> CheckResult {
    let bundle = injector_bundle(facts)?;
    let certificate = serving(
        facts,
        &facts.viz.injector_secret,
        TAP_INJECTOR_SECRET,
        "tap-injector",
    )?;
    certificate.check_valid(&bundle, facts.now, "webhook's caBundle")
}

/// The API server's own view, from the condition that it maintains.
pub(super) fn tap_api(facts: &Facts) -> CheckResult {
    let service = fact_ref(&facts.viz.api_service)?.as_ref();
    let service = service.ok_or_else(missing_api_service)?;
    let conditions = service.data.pointer("/status/conditions");
    let available = conditions
        .and_then(serde_json::Value::as_array)
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Available");
    Ok(match available {
        Some(condition) if condition["status"] == "True" => Outcome::ok(""),
        Some(condition) => {
            let message = condition["message"].as_str().unwrap_or("no reason given");
            Outcome::warn(format!("APIService {TAP_API} is not available: {message}"))
        }
        None => Outcome::warn(format!(
            "APIService {TAP_API} has no condition Available yet"
        )),
    })
}

fn missing_api_service() -> String {
    format!("APIService {TAP_API} is missing: requests cannot be tapped")
}

fn of_tap(facts: &Facts) -> Fact<ServingCertificate> {
    serving(facts, &facts.viz.tap_secret, TAP_SECRET, "tap")
}

fn serving(
    facts: &Facts,
    secret: &Fact<Option<Secret>>,
    name: &'static str,
    service: &str,
) -> Fact<ServingCertificate> {
    let secret = fact_ref(secret)?.as_ref();
    ServingCertificate::read(
        secret,
        name,
        format!("{service}.{}.svc", facts.viz_namespace()),
    )
}

/// Returns the API server's CA certificates for the tap API.
fn tap_bundle(facts: &Facts) -> Fact<Vec<Vec<u8>>> {
    let service = fact_ref(&facts.viz.api_service)?.as_ref();
    let service = service.ok_or_else(missing_api_service)?;
    let bundle = service.data.pointer("/spec/caBundle");
    let bundle = bundle.and_then(serde_json::Value::as_str).unwrap_or("");
    let holder = format!("APIService {TAP_API}");
    let pem = STANDARD
        .decode(bundle)
        .map_err(|error| format!("the caBundle of {holder}: {error}"))?;
    serving_certificate::ca_bundle(Some(&pem), &holder, "the tap API")
}

fn injector_bundle(facts: &Facts) -> Fact<Vec<Vec<u8>>> {
    let configuration = fact_ref(&facts.viz.webhook)?.as_ref();
    let configuration = configuration.ok_or_else(|| {
        format!("MutatingWebhookConfiguration {TAP_INJECTOR} is missing: new pods cannot be tapped")
    })?;
    let webhooks = configuration.webhooks.as_deref().unwrap_or_default();
    let bundle = webhooks
        .first()
        .and_then(|webhook| webhook.client_config.ca_bundle.as_ref());
    let pem = bundle.map(|bundle| bundle.0.as_slice());
    serving_certificate::ca_bundle(pem, "the webhook", "the tap injector")
}
