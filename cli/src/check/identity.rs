//! Trust anchors, issuer and the certificates of proxies.

mod bundles;
mod cert_manager;
mod denied;

use mesh_k8s::inject::TOKEN_AUDIENCE;
use x509_parser::certificate::X509Certificate;

use super::causes::{AGENTS, NOT_RUNNING, NOT_WORKING, TRUST};
use super::fix;
use super::framework::{AppliesTo, Category, Check, CheckResult, Finding, OnFailure, Outcome};
use crate::certificate::{
    self, algorithm_problem, expiring, first_expiry, format_expiry, is_signed_by, signing_problem,
    time_problem,
};
use crate::facts::trust::certificate_expiry;
use crate::facts::{
    Environment, Fact, Facts, NEW_POD_SECONDS, fact_ref, full_name, proxy_container,
};
use crate::output::count;
use crate::rotation::{Hints, InProgress};

const NEW_ISSUER: &str = "if the mesh created the issuer: kubectl -n {ns} delete secret linkerd-identity-issuer, then upgrade; if you provided it: replace that Secret by one that the anchor signed";
const ROTATE: &str = "meshctl identity rotate replaces the anchor step by step, and waits for the workloads that have not followed";
const NEW_ANCHOR: &str = "add a new anchor to ConfigMap linkerd-identity-trust-roots in {ns} first, then replace the issuer";

pub(super) const CATEGORY: Category = Category {
    name: "linkerd-identity",
    applies: |facts| facts.environment != Environment::Machine && facts.is_installed_mode(),
    checks: &[
        Check::new(
            "issuer-certificate",
            "cert-manager keeps the issuer up to date, if it writes it",
            "kubectl -n {ns} describe certificate, and the log of cert-manager",
            cert_manager::is_renewed,
        ),
        Check::new(
            "l5d-identity-cert-config-valid",
            "trust anchors and issuer are readable, and the issuer's key matches its certificate",
            "delete the invalid object (Secret linkerd-identity-issuer or ConfigMap linkerd-identity-trust-roots in {ns}) and upgrade: the mesh recreates what it created, and you provide yours again",
            readable,
        )
        .explained_by(&[&["issuer-certificate"]])
        .on_failure(OnFailure::SkipCategory)
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "l5d-identity-trustAnchors-use-supported-crypto",
            "proxies support the keys of the trust anchors",
            NEW_ANCHOR,
            |facts| fail_each(&facts.trust.anchors, |one| algorithm_problem(one, true)),
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "anchors-may-sign",
            "trust anchors are CA certificates",
            NEW_ANCHOR,
            anchors_may_sign,
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "l5d-identity-trustAnchors-are-time-valid",
            "trust anchors are valid now",
            NEW_ANCHOR,
            anchors_valid,
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "l5d-identity-trustAnchors-not-expiring-soon",
            "trust anchors are valid for another 60 days",
            ROTATE,
            anchors_expiring,
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "issuer-may-sign",
            "the issuer may sign certificates",
            NEW_ISSUER,
            |facts| {
                with_certificates(&facts.trust.issuer, |chain| {
                    let wrong = (0_u32..)
                        .zip(chain)
                        .filter_map(|(below, one)| signing_problem(one, below));
                    Outcome::fail_if(wrong, "")
                })
            },
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "l5d-identity-issuer-cert-uses-supported-crypto",
            "proxies support the issuer's key",
            NEW_ISSUER,
            |facts| fail_each(&facts.trust.issuer, |one| algorithm_problem(one, false)),
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "l5d-identity-issuer-cert-is-time-valid",
            "the issuer is valid now",
            NEW_ISSUER,
            |facts| {
                with_issuer(facts, |chain| {
                    let wrong = chain.iter().filter_map(|one| time_problem(one, facts.now));
                    Outcome::fail_if(wrong, "")
                })
            },
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "l5d-identity-issuer-cert-not-expiring-soon",
            "the issuer is valid for another 60 days",
            NEW_ISSUER,
            |facts| with_issuer(facts, |chain| cert_manager::expiry(facts, chain)),
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "l5d-identity-issuer-cert-issued-by-trust-anchor",
            "the issuer is signed by a trust anchor",
            "put the anchor that signed it back into ConfigMap linkerd-identity-trust-roots in {ns} (Secret linkerd-trust-anchor has the one that the mesh created), or replace the issuer",
            issued_by_anchor,
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "anchor-rotation",
            "no rotation of the trust anchor is in progress",
            "meshctl identity rotate --status shows its steps and what they wait for; meshctl identity rotate continues it",
            rotation,
        ),
        Check::new(
            "trust-roots-published",
            "running proxies take trust anchors from the identity service only",
            "kubectl -n NAMESPACE rollout restart WORKLOAD; then kubectl -n NAMESPACE delete configmap linkerd-identity-trust-roots",
            bundles::published,
        ),
        Check::new(
            "l5d-identity-data-plane-proxies-certs-match-ca",
            "proxies have the current trust anchors",
            "kubectl -n NAMESPACE rollout restart WORKLOAD",
            bundles::proxies_trust,
        )
        .explained_by(&[TRUST, &["trust-roots-published"]]),
        Check::new(
            "denied-identities",
            "the list of denied identities is valid",
            "kubectl -n {ns} edit configmap linkerd-denied-identities: the last valid list is in effect until it is corrected",
            denied::list_valid,
        ),
        Check::new(
            "denied-identities-followed",
            "proxies follow the list of denied identities",
            "kubectl -n NAMESPACE rollout restart WORKLOAD gives pods a proxy that follows it; AuthorizationPolicies keep denied identities from pods with Linkerd's proxy",
            denied::followed,
        ),
        Check::new(
            "token-audience",
            "proxies have tokens for the identity service",
            "kubectl -n NAMESPACE rollout restart WORKLOAD: the injector adds the right token",
            token_audience,
        ),
        Check::new(
            "proxy-certificates",
            "proxies have certificates that have not expired",
            "meshctl diagnostics proxy-metrics NAMESPACE/POD; the proxy's log shows whether identity rejected the request or was unreachable",
            proxy_certificates,
        )
        .explained_by(&[
            &["token-audience"],
            NOT_RUNNING,
            TRUST,
            NOT_WORKING,
            AGENTS,
            &["pods-enrolled", "l5d-api-control-ready"],
        ])
        .applies_to(AppliesTo::Everywhere),
    ],
};

/// Fails with the object that cannot be used.
fn readable(facts: &Facts) -> CheckResult {
    let anchors = fact_ref(&facts.trust.anchors)?;
    let issuer = fact_ref(&facts.trust.issuer).and(fact_ref(&facts.trust.key));
    match (issuer, cert_manager::rewrite(facts)) {
        (Err(problem), Some(fix)) => Ok(Outcome::fail(Finding::new(problem).with_fix(fix))),
        (Err(problem), None) => Err(problem),
        (Ok(()), _) => Ok(Outcome::ok(count(
            anchors.len(),
            "trust anchor",
            "trust anchors",
        ))),
    }
}

/// Fails with the problems of single certificates.
fn fail_each(
    chain: &Fact<Vec<Vec<u8>>>,
    problem: impl Fn(&X509Certificate<'_>) -> Option<String>,
) -> CheckResult {
    with_certificates(chain, |all| {
        Outcome::fail_if(all.iter().filter_map(&problem), "")
    })
}

fn with_certificates(
    chain: &Fact<Vec<Vec<u8>>>,
    outcome: impl Fn(&[X509Certificate<'_>]) -> Outcome,
) -> CheckResult {
    let certificates: Result<Vec<_>, _> = fact_ref(chain)?
        .iter()
        .map(|der| certificate::parse(der, "the certificate"))
        .collect();
    Ok(outcome(&certificates?))
}

/// Leaves out the cross-certificates of the current anchors, which no proxy with these anchors
/// needs, and which the identity service leaves out once they have expired.
fn with_issuer(facts: &Facts, outcome: impl Fn(&[X509Certificate<'_>]) -> Outcome) -> CheckResult {
    let anchors = facts.trust.anchors.iter().flatten();
    let anchors: Vec<_> = anchors
        .filter_map(|der| certificate::parse(der, "an anchor").ok())
        .collect();
    with_certificates(&facts.trust.issuer, |chain| {
        let needed = chain.iter().enumerate().filter(|(above, one)| {
            let mut anchors = anchors.iter();
            *above == 0 || !anchors.any(|anchor| anchor.public_key() == one.public_key())
        });
        let needed: Vec<_> = needed.map(|(_, one)| one.clone()).collect();
        outcome(&needed)
    })
}

/// Names a rotation in progress and what it waits for.
fn rotation(facts: &Facts) -> CheckResult {
    let Some(found) = InProgress::read(facts, &Hints::default())? else {
        return Ok(Outcome::ok(""));
    };
    let mut text = found.summary(facts.clock());
    if found.is_partial {
        text += "; meshctl check --proxy inspects all workloads";
    }
    Ok(Outcome::warn(text))
}

/// Removes an anchor from the bundle, by way of a file in the current directory.
const REMOVE_ANCHOR: &str = "kubectl -n {ns} get configmap linkerd-identity-trust-roots -o jsonpath='{.data.ca-bundle\\.crt}' > ca-bundle.crt, remove the certificate from the file, kubectl -n {ns} create configmap linkerd-identity-trust-roots --from-file=ca-bundle.crt --dry-run=client -o yaml | kubectl apply -f -";

/// Returns whether the issuer's chain ends in this anchor.
fn is_needed(facts: &Facts, anchor: &X509Certificate<'_>) -> bool {
    let chain = facts.trust.issuer.as_deref().unwrap_or_default();
    let chain: Vec<_> = chain
        .iter()
        .filter_map(|der| certificate::parse(der, "the issuer").ok())
        .collect();
    is_signed_by(&chain, std::slice::from_ref(anchor))
}

fn anchors_expiring(facts: &Facts) -> CheckResult {
    with_certificates(&facts.trust.anchors, |all| {
        let soon = expiring(all, facts.now).map(|(anchor, left)| {
            let text = format!("{} expires {}", anchor.subject(), format_expiry(left, facts.now));
            if is_needed(facts, anchor) {
                return Finding::new(text);
            }
            Finding::new(format!(
                "{text}, and the issuer does not need it, because another anchor signed it: remove it a day after the issuer was replaced"
            ))
            .with_fix(REMOVE_ANCHOR)
        });
        Outcome::warn_if(soon, first_expiry(all, facts.now))
    })
}

/// Finds certificates in the bundle that anchor nothing. They harm nothing beside a valid one; the
/// issuer is then signed by another.
fn anchors_may_sign(facts: &Facts) -> CheckResult {
    with_certificates(&facts.trust.anchors, |all| {
        let wrong: Vec<Finding> = all
            .iter()
            .filter_map(|anchor| signing_problem(anchor, 0))
            .map(|problem| Finding::new(problem).with_fix(REMOVE_ANCHOR))
            .collect();
        fail_if_all(all, wrong)
    })
}

/// Fails only if all anchors are invalid. The mesh works with one valid anchor; old ones stay in
/// the bundle until no certificate needs them.
fn anchors_valid(facts: &Facts) -> CheckResult {
    with_certificates(&facts.trust.anchors, |all| {
        let wrong: Vec<Finding> = all
            .iter()
            .filter_map(|anchor| {
                let finding = Finding::new(time_problem(anchor, facts.now)?);
                Some(if is_needed(facts, anchor) {
                    finding
                } else {
                    finding.with_fix(REMOVE_ANCHOR)
                })
            })
            .collect();
        fail_if_all(all, wrong)
    })
}

/// Fails if all anchors are wrong, and warns if one is left.
fn fail_if_all(anchors: &[X509Certificate<'_>], wrong: Vec<Finding>) -> Outcome {
    if wrong.len() < anchors.len() {
        Outcome::warn_if(wrong, "")
    } else {
        Outcome::fail_if(wrong, "")
    }
}

fn issued_by_anchor(facts: &Facts) -> CheckResult {
    let anchors = fact_ref(&facts.trust.anchors)?;
    let anchors: Result<Vec<_>, _> = anchors
        .iter()
        .map(|der| certificate::parse(der, "the trust anchors"))
        .collect();
    let anchors = anchors?;
    with_certificates(&facts.trust.issuer, |chain| {
        if is_signed_by(chain, &anchors) {
            return Outcome::ok("");
        }
        let finding = match missing_intermediate(chain, &anchors) {
            Some(name) => Finding::new(format!(
                "no trust anchor signed it, but {name} did, which is neither an anchor nor in its file: proxies reject the certificates that it issues"
            ))
            .with_fix(format!(
                "append the certificate of {name} to tls.crt of Secret linkerd-identity-issuer in {{ns}}, after the issuer's own"
            )),
            None => Finding::new(
                "no trust anchor signed it: proxies reject the certificates that it issues",
            ),
        };
        Outcome::fail(match cert_manager::add_source(facts) {
            Some(fix) => finding.with_fix(fix),
            None => finding,
        })
    })
}

/// Returns the name of the CA that signed the last certificate of a chain, if neither the chain nor
/// the anchors have a certificate of that name: an intermediate CA is then missing.
fn missing_intermediate(
    chain: &[X509Certificate<'_>],
    anchors: &[X509Certificate<'_>],
) -> Option<String> {
    let last = chain.last()?;
    let issuer = last.issuer();
    let is_known = chain
        .iter()
        .chain(anchors)
        .any(|one| one.subject() == issuer);
    (!is_known).then(|| issuer.to_string())
}

fn token_audience(facts: &Facts) -> CheckResult {
    if !facts.values()?.identity.service_account_token_projection {
        return Ok(Outcome::ok(
            "identity.serviceAccountTokenProjection is off: proxies use the default tokens of their service accounts",
        ));
    }
    let mut wrong = Vec::new();
    let own = facts.control_pods()?.filter(|pod| {
        // The agents have no proxy.
        proxy_container(pod).is_some()
    });
    for pod in facts.meshed_pods()?.chain(own) {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        let audiences: Vec<&str> = volumes
            .into_iter()
            .flatten()
            .filter_map(|volume| volume.projected.as_ref()?.sources.as_ref())
            .flatten()
            .filter_map(|source| source.service_account_token.as_ref()?.audience.as_deref())
            .collect();
        if !audiences.contains(&TOKEN_AUDIENCE) {
            let finding = Finding::new(format!(
                "{} has no token for {TOKEN_AUDIENCE}{}: identity rejects any other",
                full_name(pod),
                match audiences.as_slice() {
                    [] => String::new(),
                    others => format!(" but for {}", others.join(", ")),
                }
            ));
            wrong.push(finding.with_fix(format!(
                "{}: the injector adds the right token",
                fix::restart_command(pod)
            )));
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

fn proxy_certificates(facts: &Facts) -> CheckResult {
    let (mut wrong, mut first, mut good, mut new) = (Vec::new(), u64::MAX, 0_usize, 0_usize);
    for proxy in &facts.proxies {
        if proxy.is_new && proxy.ready.is_err() {
            new += 1;
            continue;
        }
        let name = format!("{}/{}", proxy.namespace, proxy.pod);
        let fix = format!(
            "kubectl -n {} logs {} -c linkerd-proxy: it shows whether identity rejected the request or was unreachable",
            proxy.namespace, proxy.pod
        );
        let samples = match &proxy.metrics {
            Ok(samples) => samples,
            Err(reason) => {
                wrong.push(Finding::new(format!("{name}: {reason}")).with_fix(fix));
                continue;
            }
        };
        let problem = match certificate_expiry(samples) {
            None => format!("{name} has no certificate yet"),
            Some(expiry) if expiry <= facts.now => {
                format!("the certificate of {name} has expired")
            }
            Some(expiry) => {
                first = first.min(expiry - facts.now);
                good += 1;
                continue;
            }
        };
        wrong.push(Finding::new(problem).with_fix(fix));
    }
    let mut ok = match good {
        0 => "no proxy was queried".to_owned(),
        _ => format!(
            "{}, the next expiry is {}",
            count(good, "proxy", "proxies"),
            format_expiry(first, facts.now)
        ),
    };
    ok += &excluded_new_pods(new);
    Ok(Outcome::fail_if(wrong, ok))
}

/// Describes the number of pods that a check excluded because they may still be starting.
pub(super) fn excluded_new_pods(new: usize) -> String {
    match new {
        0 => String::new(),
        _ => format!(
            "; excluding {} younger than {NEW_POD_SECONDS} s",
            count(new, "pod", "pods")
        ),
    }
}
