//! The injector's webhook: is it registered, is its certificate one that the API server accepts,
//! and does it answer.

use mesh_core::annotation;
use mesh_k8s::{
    kinds::{LabelSelector, MutatingWebhook, Namespace, ResourceExt},
    pod, select,
};
use x509_parser::certificate::X509Certificate;

use super::{
    Category, Check, Ends, Facts, Line, On, Outcome, Place, Verdict,
    causes::{NOT_RUNNING, WEBHOOK},
    certificate::{self, expires_soon, time_problem},
    count,
    facts::{Seen, Trial, see},
};
use crate::clients::tls;

/// The webhook's registration.
pub(super) const CONFIGURATION: &str = "linkerd-proxy-injector-webhook-config";
/// The Secret of its serving certificate.
pub(super) const SECRET: &str = "linkerd-proxy-injector-k8s-tls";
pub(super) const SERVICE: &str = "linkerd-proxy-injector";

pub(super) const CATEGORY: Category = Category {
    name: "linkerd-webhooks-and-apisvc-tls",
    applies: |facts| facts.place == Place::Cluster && facts.is_installed_mode(),
    checks: &[
        Check {
            anchor: "l5d-existence-mwc",
            description: "the injector is registered with the API server",
            advice: "{upgrade}",
            explained_by: &[],
            ends: Ends::Category,
            on: On::Cluster,
            look: registered,
        },
        Check {
            anchor: "l5d-proxy-injector-webhook-cert-valid",
            description: "the API server accepts the injector's certificate",
            advice: "kubectl -n {ns} delete secret linkerd-proxy-injector-k8s-tls && kubectl -n {ns} rollout restart deployment linkerd-proxy-injector (not for a certificate you gave)",
            explained_by: &[&["controllers-permissions"], NOT_RUNNING],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: certificate_valid,
        },
        Check {
            anchor: "l5d-proxy-injector-webhook-cert-not-expiring-soon",
            description: "the injector's certificate is valid for long enough",
            advice: "kubectl -n {ns} logs deployment/linkerd-proxy-injector -c proxy-injector; renew a certificate you gave",
            explained_by: &[&[
                "controllers-permissions",
                "l5d-proxy-injector-webhook-cert-valid",
            ]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: not_expiring_soon,
        },
        Check {
            anchor: "webhook-presents",
            description: "every injector presents that certificate",
            advice: "kubectl -n {ns} rollout restart deployment linkerd-proxy-injector",
            explained_by: &[
                NOT_RUNNING,
                &[
                    "l5d-proxy-injector-webhook-cert-valid",
                    "l5d-api-control-ready",
                ],
            ],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: presented,
        },
        Check {
            anchor: "webhook-injects",
            description: "a pod that asks for the mesh gets a proxy (tried with a dry run)",
            advice: "a NetworkPolicy or firewall must admit the API server to port 8443 of the injector's pods",
            explained_by: &[NOT_RUNNING, WEBHOOK],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: injects,
        },
        Check {
            anchor: "namespace-excluded",
            description: "every namespace that asks for the mesh reaches the injector",
            advice: "kubectl label namespace NAMESPACE config.linkerd.io/admission-webhooks-",
            explained_by: &[&["webhook-injects"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: excluded,
        },
    ],
};

/// By this label a namespace keeps the webhooks away.
const ADMISSION: &str = "config.linkerd.io/admission-webhooks";

fn webhook(facts: &Facts) -> Seen<&MutatingWebhook> {
    let configuration = see(&facts.objects.webhooks)?.as_ref();
    let configuration = configuration.ok_or_else(|| {
        format!("MutatingWebhookConfiguration {CONFIGURATION} is missing: nothing is injected")
    })?;
    let webhooks = configuration.webhooks.as_deref().unwrap_or_default();
    webhooks.first().ok_or_else(|| {
        format!(
            "MutatingWebhookConfiguration {} names no webhook",
            configuration.name_any()
        )
    })
}

fn registered(facts: &Facts) -> Verdict {
    let webhook = webhook(facts)?;
    let Some(service) = &webhook.client_config.service else {
        return Ok(Outcome::warn(format!(
            "it is registered at {}, not at a Service",
            webhook
                .client_config
                .url
                .as_deref()
                .unwrap_or("no address at all")
        )));
    };
    let right = service.name == SERVICE && service.namespace == facts.control_namespace;
    Ok(if right {
        let policy = webhook.failure_policy.as_deref().unwrap_or("Fail");
        Outcome::ok(format!("failurePolicy {policy}"))
    } else {
        Outcome::fail(format!(
            "it is registered at Service {}/{}, the injector of this control plane is {}/{SERVICE}",
            service.namespace, service.name, facts.control_namespace
        ))
    })
}

/// What the API server trusts when it calls the webhook.
fn ca_bundle(facts: &Facts) -> Seen<Vec<Vec<u8>>> {
    match &webhook(facts)?.client_config.ca_bundle {
        Some(bundle) if !bundle.0.is_empty() => {
            certificate::read_pem(&bundle.0, "the webhook's caBundle")
        }
        _ => {
            Err("the webhook has no caBundle: the API server cannot trust the injector".to_owned())
        }
    }
}

fn serving_chain(facts: &Facts) -> Seen<Vec<Vec<u8>>> {
    let secret = see(&facts.objects.webhook_secret)?
        .as_ref()
        .ok_or_else(|| format!("Secret {SECRET} is missing"))?;
    let text = secret
        .data
        .as_ref()
        .and_then(|data| data.get("tls.crt").or(data.get("crt.pem")));
    let text = text.ok_or_else(|| format!("Secret {SECRET} has no key tls.crt"))?;
    certificate::read_pem(&text.0, &format!("Secret {SECRET}"))
}

fn server_name(facts: &Facts) -> String {
    format!("{SERVICE}.{}.svc", facts.control_namespace)
}

fn certificate_valid(facts: &Facts) -> Verdict {
    let (bundle, chain) = (ca_bundle(facts)?, serving_chain(facts)?);
    let leaf = certificate::parse(&chain[0], SECRET)?;
    let wrong = match time_problem(&leaf, facts.now) {
        Some(problem) => vec![problem],
        None => match tls::verify_chain(&chain, &bundle, &server_name(facts), facts.now) {
            Ok(()) => Vec::new(),
            Err(reason) => vec![format!(
                "the certificate of Secret {SECRET} is not accepted by the webhook's caBundle: {reason}"
            )],
        },
    };
    Ok(Outcome::fail_if(wrong, ""))
}

fn not_expiring_soon(facts: &Facts) -> Verdict {
    let chain = serving_chain(facts)?;
    let leaf = certificate::parse(&chain[0], SECRET)?;
    let validity = leaf.validity();
    let life = validity.not_after.timestamp() - validity.not_before.timestamp();
    // One that the injector made lives shorter than Linkerd's warning, and is renewed with a third
    // of its life left.
    if time_problem(&leaf, facts.now).is_some() {
        return Ok(Outcome::ok("not valid now, as the check before says"));
    }
    if life <= 120 * 24 * 3600 {
        let left = certificate::left(&leaf, facts.now);
        let late = left < u64::try_from(life).unwrap_or(0) / 4;
        let text = format!("{} left", certificate::span(left));
        return Ok(if late {
            Outcome::warn(format!("{text}: it should have been renewed"))
        } else {
            Outcome::ok(text)
        });
    }
    Ok(expires_soon(&[X509Certificate::clone(&leaf)], facts.now))
}

fn presented(facts: &Facts) -> Verdict {
    let bundle = ca_bundle(facts)?;
    let mut wrong = Vec::new();
    for (pod, chain) in &facts.webhook.presented {
        let verdict = match chain {
            Ok(chain) => tls::verify_chain(chain, &bundle, &server_name(facts), facts.now),
            Err(reason) => Err(reason.clone()),
        };
        if let Err(reason) = verdict {
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

fn injects(facts: &Facts) -> Verdict {
    Ok(match see(&facts.webhook.trial)? {
        Trial::Injected => Outcome::ok(""),
        Trial::LeftAlone => {
            let without = "the API server created the pod without a proxy";
            Outcome::fail(match left_out(facts)? {
                Some(reason) => Line::new(format!("{without}: {reason}"))
                    .fixed_by(format!(
                        "kubectl delete mutatingwebhookconfiguration {CONFIGURATION}, then {{upgrade}}"
                    ))
                    .own(),
                None => Line::new(format!("{without}: it could not call the injector")),
            })
        }
        // The pod was injected or not; the namespace is full either way.
        Trial::Refused(reason) if reason.contains("exceeded quota") => Outcome::ok(format!(
            "not tried: {reason}; choose another namespace with -n"
        )),
        Trial::Refused(reason) => {
            Outcome::fail(format!("the API server refused the pod: {reason}"))
        }
        Trial::NotTried(reason) => Outcome::ok(format!("not tried: {reason}")),
        Trial::Forbidden => Outcome::warn(
            "you may not create pods in the namespace it was tried in; choose another with -n",
        ),
    })
}

/// What in the registration keeps the trial's pod from the injector.
fn left_out(facts: &Facts) -> Seen<Option<String>> {
    let webhook = webhook(facts)?;
    let name = trial_namespace(facts).unwrap_or_default();
    let namespace = facts.namespace(&name);
    Ok(
        if namespace.is_some_and(|namespace| !admits(webhook, namespace)) {
            Some(format!(
                "the registration's namespaceSelector leaves namespace {name} out"
            ))
        } else if !selects(webhook.object_selector.as_ref(), None) {
            Some("the registration's objectSelector leaves ordinary pods out".to_owned())
        } else if !covers_pods(webhook) {
            Some("the registration's rules leave the creation of pods out".to_owned())
        } else {
            None
        },
    )
}

type Labels = std::collections::BTreeMap<String, String>;

fn selects(selector: Option<&LabelSelector>, labels: Option<&Labels>) -> bool {
    selector.is_none_or(|selector| select::matches(selector, labels))
}

fn admits(webhook: &MutatingWebhook, namespace: &Namespace) -> bool {
    selects(
        webhook.namespace_selector.as_ref(),
        namespace.metadata.labels.as_ref(),
    )
}

fn covers_pods(webhook: &MutatingWebhook) -> bool {
    let has = |list: &Option<Vec<String>>, what: &str| {
        list.as_ref()
            .is_none_or(|list| list.iter().any(|one| one == what || one == "*"))
    };
    webhook.rules.as_ref().is_none_or(|rules| {
        rules
            .iter()
            .any(|rule| has(&rule.operations, "CREATE") && has(&rule.resources, "pods"))
    })
}

fn keeps_webhooks_away(namespace: &Namespace) -> bool {
    namespace
        .labels()
        .get(ADMISSION)
        .is_some_and(|value| value == "disabled")
}

fn asks_for_mesh(namespace: &Namespace) -> bool {
    let mode = namespace.annotations().get(annotation::INJECT);
    mode.is_some_and(|mode| mode == "enabled" || mode == "ingress")
}

/// Where a pod is created for trial: in the namespace of `-n`, in one that is meshed, or in
/// `default`. The error says why nowhere.
pub(super) fn trial_namespace(facts: &Facts) -> Result<String, String> {
    if let Some(name) = facts.scope.namespace() {
        return match facts.namespace(name) {
            Some(namespace) => suits(namespace).map(|()| name.to_owned()),
            // Where the namespaces cannot be listed the API server says whether it exists.
            None => Ok(name.to_owned()),
        };
    }
    let all = facts.objects.namespaces.as_deref().unwrap_or_default();
    let webhook = webhook(facts).ok();
    let admitted = |namespace: &Namespace| webhook.is_none_or(|webhook| admits(webhook, namespace));
    let usable: Vec<&Namespace> = all
        .iter()
        .filter(|namespace| {
            namespace.name_any() != facts.control_namespace && suits(namespace).is_ok()
        })
        .collect();
    let meshed = || usable.iter().filter(|namespace| asks_for_mesh(namespace));
    let is_default = |namespace: &&&Namespace| namespace.name_any() == "default";
    let chosen = meshed()
        .find(|namespace| admitted(namespace))
        .or_else(|| meshed().next())
        .or_else(|| usable.iter().find(is_default))
        .or_else(|| usable.iter().find(|namespace| admitted(namespace)));
    match chosen {
        Some(namespace) => Ok(namespace.name_any()),
        None if all.is_empty() => Ok("default".to_owned()),
        None => Err("every namespace is being deleted or keeps webhooks away".to_owned()),
    }
}

fn suits(namespace: &Namespace) -> Result<(), String> {
    let name = namespace.name_any();
    if namespace.metadata.deletion_timestamp.is_some() {
        Err(format!("namespace {name} is being deleted"))
    } else if keeps_webhooks_away(namespace) {
        Err(format!(
            "namespace {name} keeps the injector away by its label {ADMISSION}: disabled"
        ))
    } else {
        Ok(())
    }
}

/// Namespaces that ask for the mesh and are not sent to the injector.
fn excluded(facts: &Facts) -> Verdict {
    let webhook = webhook(facts)?;
    let mut wrong = Vec::new();
    let query = see(&facts.objects.namespaces)?.iter().filter(|namespace| {
        asks_for_mesh(namespace)
            && namespace.metadata.deletion_timestamp.is_none()
            && facts.scope.contains(&namespace.name_any())
    });
    for namespace in query.filter(|namespace| !admits(webhook, namespace)) {
        let name = namespace.name_any();
        wrong.push(if keeps_webhooks_away(namespace) {
            Line::new(format!(
                "namespace {name} asks for the mesh, and keeps the injector away by its label {ADMISSION}: disabled"
            ))
            .fixed_by(format!("kubectl label namespace {name} {ADMISSION}-"))
            .own()
        } else {
            Line::new(format!(
                "namespace {name} asks for the mesh, and the registration's namespaceSelector leaves it out"
            ))
            .fixed_by(format!("kubectl annotate namespace {name} {}-, or correct proxyInjector.namespaceSelector and {{upgrade}}", annotation::INJECT))
        });
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// What follows for the whole cluster while no injector is ready; nothing where the API server goes
/// on without it.
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
