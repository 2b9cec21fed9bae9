//! The injector's webhook: its registration, its certificate and whether the API server can call
//! it; and the validators' webhooks.

use mesh_core::annotation;
use mesh_k8s::kinds::ResourceExt;
use mesh_k8s::pod;

use super::admission;
use super::causes::{NOT_RUNNING, WEBHOOK};
use super::framework::{Category, Check, CheckResult, Finding, OnFailure, Outcome};
use super::serving_certificate::{self, ServingCertificate};
use crate::clients::tls;
use crate::facts::injection::{
    ADMISSION, admits, covers_pods, dry_run_namespace, excludes_webhooks, requests_injection,
    selects, webhook,
};
use crate::facts::names::{INJECTOR_REGISTRATION, INJECTOR_SECRET, INJECTOR_SERVICE};
use crate::facts::{Environment, Fact, Facts, InjectionDryRun, fact_ref};
use crate::output::count;

pub(crate) mod validators;

pub(super) const CATEGORY: Category = Category {
    name: "linkerd-webhooks-and-apisvc-tls",
    applies: |facts| facts.environment == Environment::Cluster && facts.is_installed_mode(),
    checks: &[
        Check::new(
            "l5d-existence-mwc",
            "the injector is registered with the API server",
            "{upgrade}",
            registered,
        )
        .on_failure(OnFailure::SkipCategory),
        Check::new(
            "l5d-proxy-injector-webhook-cert-valid",
            "the API server accepts the injector's certificate",
            "kubectl -n {ns} delete secret linkerd-proxy-injector-k8s-tls && kubectl -n {ns} rollout restart deployment linkerd-proxy-injector (not for a certificate that you provided)",
            certificate_valid,
        )
        .explained_by(&[&["controllers-permissions"], NOT_RUNNING]),
        Check::new(
            "l5d-proxy-injector-webhook-cert-not-expiring-soon",
            "the injector's certificate does not expire soon",
            "kubectl -n {ns} logs deployment/linkerd-proxy-injector -c proxy-injector; renew a certificate that you provided",
            not_expiring_soon,
        )
        .explained_by(&[&[
            "controllers-permissions",
            "l5d-proxy-injector-webhook-cert-valid",
        ]]),
        Check::new(
            "webhook-presents",
            "all injector pods present an accepted certificate",
            "kubectl -n {ns} rollout restart deployment linkerd-proxy-injector",
            presented,
        )
        .explained_by(&[
            NOT_RUNNING,
            &[
                "l5d-proxy-injector-webhook-cert-valid",
                "l5d-api-control-ready",
            ],
        ]),
        Check::new(
            "webhook-injects",
            "pods with the injection annotation get a proxy (by a dry run)",
            "allow the API server to connect to port 8443 of the injector's pods in NetworkPolicies and firewalls",
            injects,
        )
        .explained_by(&[NOT_RUNNING, WEBHOOK]),
        Check::new(
            "namespace-excluded",
            "no namespace with the injection annotation is excluded from the injector",
            "kubectl label namespace NAMESPACE config.linkerd.io/admission-webhooks-",
            excluded,
        )
        .explained_by(&[&["webhook-injects"]]),
        validators::REGISTERED,
        validators::PROFILES_VALID,
        validators::PROFILES_NOT_EXPIRING,
        validators::POLICY_VALID,
        validators::POLICY_NOT_EXPIRING,
    ],
};

fn registered(facts: &Facts) -> CheckResult {
    let webhook = webhook(facts)?;
    let Some(service) = &webhook.client_config.service else {
        return Ok(Outcome::warn(format!(
            "the webhook is registered at {}, not at a Service",
            webhook.client_config.url.as_deref().unwrap_or("no address")
        )));
    };
    let right = service.name == INJECTOR_SERVICE && service.namespace == facts.control_namespace;
    Ok(if right {
        let policy = webhook.failure_policy.as_deref().unwrap_or("Fail");
        Outcome::ok(format!("failurePolicy {policy}"))
    } else {
        Outcome::fail(format!(
            "the webhook is registered at Service {}/{}, but the injector of this control plane is {}/{INJECTOR_SERVICE}",
            service.namespace, service.name, facts.control_namespace
        ))
    })
}

/// Returns the API server's trust anchors for the injector.
fn ca_bundle(facts: &Facts) -> Fact<Vec<Vec<u8>>> {
    let bundle = webhook(facts)?.client_config.ca_bundle.as_ref();
    let pem = bundle.map(|bundle| bundle.0.as_slice());
    serving_certificate::ca_bundle(pem, "the webhook", "the injector")
}

fn serving_certificate(facts: &Facts) -> Fact<ServingCertificate> {
    let secret = fact_ref(&facts.objects.webhook_secret)?.as_ref();
    ServingCertificate::read(secret, INJECTOR_SECRET, server_name(facts))
}

fn server_name(facts: &Facts) -> String {
    format!("{INJECTOR_SERVICE}.{}.svc", facts.control_namespace)
}

fn certificate_valid(facts: &Facts) -> CheckResult {
    let bundle = ca_bundle(facts)?;
    serving_certificate(facts)?.check_valid(&bundle, facts.now, "webhook's caBundle")
}

fn not_expiring_soon(facts: &Facts) -> CheckResult {
    serving_certificate(facts)?.check_expiry(facts.now)
}

fn presented(facts: &Facts) -> CheckResult {
    let bundle = ca_bundle(facts)?;
    let mut wrong = Vec::new();
    for (pod, chain) in &facts.webhook.presented {
        let result = match chain {
            Ok(chain) => tls::verify_chain(chain, &bundle, &server_name(facts), facts.now),
            Err(reason) => Err(reason.clone()),
        };
        if let Err(reason) = result {
            wrong.push(format!("{pod}: {reason}"));
        }
    }
    if facts.webhook.presented.is_empty() {
        wrong.push("no pod of the injector is ready".to_owned());
    }
    Ok(Outcome::fail_if(
        wrong,
        count(facts.webhook.presented.len(), "pod", "pods"),
    ))
}

fn injects(facts: &Facts) -> CheckResult {
    Ok(match fact_ref(&facts.webhook.dry_run)? {
        InjectionDryRun::Injected => Outcome::ok(""),
        InjectionDryRun::NotInjected => {
            let text = "the API server created the pod without a proxy";
            Outcome::fail(match exclusion_reason(facts)? {
                Some(reason) => Finding::new(format!("{text}: {reason}"))
                    .with_fix(format!(
                        "kubectl delete mutatingwebhookconfiguration {INJECTOR_REGISTRATION}, then {{upgrade}}"
                    ))
                    .into_root_cause(),
                None => Finding::new(format!("{text}: it could not call the injector")),
            })
        }
        // Quota is checked after injection, so that the dry run has no result.
        InjectionDryRun::Rejected(reason) if reason.contains("exceeded quota") => Outcome::ok(
            format!("not attempted: {reason}; select another namespace with -n"),
        ),
        InjectionDryRun::Rejected(reason) => {
            let finding = Finding::new(format!("the API server rejected the pod: {reason}"));
            let namespace = dry_run_namespace(facts).unwrap_or_default();
            Outcome::fail(match admission::fix(reason, &namespace) {
                // The obstacle is not in the injector, whatever its own state.
                Some(fix) => finding.with_fix(fix).into_root_cause(),
                None => finding,
            })
        }
        InjectionDryRun::NotAttempted(reason) => Outcome::ok(format!("not attempted: {reason}")),
        InjectionDryRun::Forbidden => Outcome::warn(
            "you may not create pods in the namespace of the dry run; select another with -n",
        ),
    })
}

/// Returns the part of the registration that excludes the pod of the dry run.
fn exclusion_reason(facts: &Facts) -> Fact<Option<String>> {
    let webhook = webhook(facts)?;
    let name = dry_run_namespace(facts).unwrap_or_default();
    let namespace = facts.namespace(&name);
    Ok(
        if namespace.is_some_and(|namespace| !admits(webhook, namespace)) {
            Some(format!(
                "the registration's namespaceSelector excludes namespace {name}"
            ))
        } else if !selects(webhook.object_selector.as_ref(), None) {
            Some("the registration's objectSelector excludes pods without labels".to_owned())
        } else if !covers_pods(webhook) {
            Some("the registration's rules do not include the creation of pods".to_owned())
        } else {
            None
        },
    )
}

/// Finds namespaces with the injection annotation whose pods are not sent to the injector.
fn excluded(facts: &Facts) -> CheckResult {
    let webhook = webhook(facts)?;
    let mut wrong = Vec::new();
    let namespaces = fact_ref(&facts.objects.namespaces)?
        .iter()
        .filter(|namespace| {
            requests_injection(namespace)
                && namespace.metadata.deletion_timestamp.is_none()
                && facts.scope.contains(&namespace.name_any())
        });
    for namespace in namespaces.filter(|namespace| !admits(webhook, namespace)) {
        let name = namespace.name_any();
        wrong.push(if excludes_webhooks(namespace) {
            Finding::new(format!(
                "namespace {name} has the injection annotation, but excludes the injector by its label {ADMISSION}: disabled"
            ))
            .with_fix(format!("kubectl label namespace {name} {ADMISSION}-"))
            .into_root_cause()
        } else {
            Finding::new(format!(
                "namespace {name} has the injection annotation, but the registration's namespaceSelector excludes it"
            ))
            .with_fix(format!("kubectl annotate namespace {name} {}-, or correct proxyInjector.namespaceSelector and {{upgrade}}", annotation::INJECT))
        });
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Describes the consequence for the cluster if no injector is ready and its failurePolicy is Fail.
pub(super) fn fails_closed(facts: &Facts) -> Option<&'static str> {
    let policy = webhook(facts).ok()?.failure_policy.as_deref();
    let is_injector = |pod: &&mesh_k8s::kinds::Pod| {
        pod::label(pod, annotation::CONTROL_PLANE_COMPONENT) == Some("proxy-injector")
    };
    let ready = facts
        .control_pods()
        .ok()?
        .filter(is_injector)
        .any(pod::is_ready);
    (policy.unwrap_or("Fail") == "Fail" && !ready).then_some(
        ": no pod can be created in any namespace that the injector serves, because the webhook's failurePolicy is Fail",
    )
}
