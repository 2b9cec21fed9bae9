//! Trust anchors, issuer, and the certificates that proxies hold.

use std::collections::BTreeMap;

use mesh_k8s::{
    inject::TOKEN_AUDIENCE,
    kinds::{ConfigMap, Pod, ResourceExt},
    pod,
};
use x509_parser::certificate::X509Certificate;

use super::{
    Category, Check, Ends, Facts, On, Outcome, Place, Verdict,
    certificate::{self, algorithm_problem, expires_soon, is_signed_by, span, time_problem},
    count,
    facts::{Seen, full_name, proxy_container, see},
};

/// The ConfigMap of trust anchors, in the control plane's namespace and wherever they are published.
pub(super) const TRUST_ROOTS: &str = "linkerd-identity-trust-roots";
pub(super) const BUNDLE_KEY: &str = "ca-bundle.crt";

const NEW_ISSUER: &str = "an issuer that the mesh made: kubectl -n {ns} delete secret linkerd-identity-issuer, then upgrade; one that you gave: replace that Secret by one signed by the anchor";
const NEW_ANCHOR: &str = "add a new anchor to ConfigMap linkerd-identity-trust-roots in {ns} first, then replace the issuer";

pub(super) const CATEGORY: Category = Category {
    name: "linkerd-identity",
    applies: |facts| facts.place != Place::Machine && facts.is_installed_mode(),
    checks: &[
        Check {
            anchor: "l5d-identity-cert-config-valid",
            description: "trust anchors and issuer can be read, and the issuer's key is its own",
            advice: "delete the one that cannot be read (Secret linkerd-identity-issuer or ConfigMap linkerd-identity-trust-roots in {ns}) and upgrade: the mesh makes what it made before; what you gave, give anew",
            ends: Ends::Category,
            on: On::Anywhere,
            look: |facts| {
                let anchors = see(&facts.trust.anchors)?;
                see(&facts.trust.issuer)?;
                see(&facts.trust.key)?;
                Ok(Outcome::ok(count(
                    anchors.len(),
                    "trust anchor",
                    "trust anchors",
                )))
            },
        },
        Check {
            anchor: "l5d-identity-trustAnchors-use-supported-crypto",
            description: "trust anchors use keys that proxies accept",
            advice: NEW_ANCHOR,
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| {
                judge(&facts.trust.anchors, |all| {
                    Outcome::fail_if(
                        all.iter()
                            .filter_map(|one| algorithm_problem(one, true))
                            .collect(),
                        "",
                    )
                })
            },
        },
        Check {
            anchor: "l5d-identity-trustAnchors-are-time-valid",
            description: "trust anchors are valid now",
            advice: NEW_ANCHOR,
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: anchors_valid,
        },
        Check {
            anchor: "l5d-identity-trustAnchors-not-expiring-soon",
            description: "trust anchors are valid for 60 days more",
            advice: NEW_ANCHOR,
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| judge(&facts.trust.anchors, |all| expires_soon(all, facts.now)),
        },
        Check {
            anchor: "l5d-identity-issuer-cert-uses-supported-crypto",
            description: "the issuer uses a key that proxies accept",
            advice: NEW_ISSUER,
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| {
                judge(&facts.trust.issuer, |chain| {
                    Outcome::fail_if(
                        chain
                            .iter()
                            .filter_map(|one| algorithm_problem(one, false))
                            .collect(),
                        "",
                    )
                })
            },
        },
        Check {
            anchor: "l5d-identity-issuer-cert-is-time-valid",
            description: "the issuer is valid now",
            advice: NEW_ISSUER,
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| {
                judge(&facts.trust.issuer, |chain| {
                    Outcome::fail_if(
                        chain
                            .iter()
                            .filter_map(|one| time_problem(one, facts.now))
                            .collect(),
                        "",
                    )
                })
            },
        },
        Check {
            anchor: "l5d-identity-issuer-cert-not-expiring-soon",
            description: "the issuer is valid for 60 days more",
            advice: NEW_ISSUER,
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| judge(&facts.trust.issuer, |chain| expires_soon(chain, facts.now)),
        },
        Check {
            anchor: "l5d-identity-issuer-cert-issued-by-trust-anchor",
            description: "the issuer is signed by a trust anchor",
            advice: "put the anchor that signed it back into ConfigMap linkerd-identity-trust-roots in {ns} (Secret linkerd-trust-anchor has the one that the mesh made), or replace the issuer",
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: issued_by_anchor,
        },
        Check {
            anchor: "trust-roots-published",
            description: "every namespace with meshed pods has the current trust anchors",
            advice: "kubectl -n {ns} logs deployment/linkerd-identity -c identity; deleting a stale ConfigMap makes identity write it again",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: published,
        },
        Check {
            anchor: "l5d-identity-data-plane-proxies-certs-match-ca",
            description: "proxies trust the current anchors",
            advice: "kubectl -n NAMESPACE rollout restart WORKLOAD",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: proxies_trust,
        },
        Check {
            anchor: "token-audience",
            description: "proxies have tokens for the identity service",
            advice: "kubectl -n NAMESPACE rollout restart WORKLOAD: the injector adds the right token",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: token_audience,
        },
        Check {
            anchor: "proxy-certificates",
            description: "proxies hold certificates that have not expired",
            advice: "meshctl diagnostics proxy-metrics NAMESPACE/POD; the proxy's log says whether identity refused or could not be reached",
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: proxy_certificates,
        },
    ],
};

fn judge(
    seen: &Seen<Vec<Vec<u8>>>,
    outcome: impl Fn(&[X509Certificate<'_>]) -> Outcome,
) -> Verdict {
    let certificates: Result<Vec<_>, _> = see(seen)?
        .iter()
        .map(|der| certificate::parse(der, "the certificate"))
        .collect();
    Ok(outcome(&certificates?))
}

/// One good anchor is enough for the mesh to work: an old one is left in the bundle until nothing needs it.
fn anchors_valid(facts: &Facts) -> Verdict {
    judge(&facts.trust.anchors, |all| {
        let wrong: Vec<String> = all
            .iter()
            .filter_map(|anchor| time_problem(anchor, facts.now))
            .collect();
        if wrong.len() < all.len() {
            Outcome::warn_if(wrong, "")
        } else {
            Outcome::fail_if(wrong, "")
        }
    })
}

fn issued_by_anchor(facts: &Facts) -> Verdict {
    let anchors = see(&facts.trust.anchors)?;
    let anchors: Result<Vec<_>, _> = anchors
        .iter()
        .map(|der| certificate::parse(der, "the trust anchors"))
        .collect();
    let anchors = anchors?;
    judge(&facts.trust.issuer, |chain| {
        if is_signed_by(chain, &anchors) {
            Outcome::ok("")
        } else {
            Outcome::fail("no trust anchor signed it: no proxy would trust what it issues")
        }
    })
}

/// The bundle of the control plane's own ConfigMap.
fn bundle(facts: &Facts) -> Seen<String> {
    let maps = see(&facts.objects.trust_roots)?;
    let own = maps
        .iter()
        .find(|map| map.namespace().as_deref() == Some(&facts.control_namespace));
    own.and_then(bundle_of).ok_or_else(|| {
        format!(
            "namespace {} has no ConfigMap {TRUST_ROOTS} with key {BUNDLE_KEY}",
            facts.control_namespace
        )
    })
}

fn bundle_of(map: &ConfigMap) -> Option<String> {
    Some(map.data.as_ref()?.get(BUNDLE_KEY)?.trim().to_owned())
}

fn published(facts: &Facts) -> Verdict {
    let values = facts.values()?;
    if !values.identity.publish_trust_roots {
        return Ok(Outcome::ok("identity.publishTrustRoots is off"));
    }
    let bundle = bundle(facts)?;
    let maps = see(&facts.objects.trust_roots)?;
    let mut wrong = BTreeMap::new();
    for pod in facts.meshed_pods()?.filter(|pod| follows(pod)) {
        let namespace = pod.namespace().unwrap_or_default();
        let map = maps
            .iter()
            .find(|map| map.namespace().as_ref() == Some(&namespace));
        let problem = match map.and_then(bundle_of) {
            None => Some("has no ConfigMap"),
            Some(own) if own != bundle => Some("has other anchors than the control plane"),
            Some(_) => None,
        };
        if let Some(problem) = problem {
            wrong.insert(
                namespace.clone(),
                format!("namespace {namespace} {problem}"),
            );
        }
    }
    Ok(Outcome::fail_if(wrong.into_values().collect(), ""))
}

/// Does the pod's proxy read the anchors from the ConfigMap of its namespace?
fn follows(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().any(|volume| {
        volume
            .config_map
            .as_ref()
            .is_some_and(|map| map.name == TRUST_ROOTS)
    })
}

fn proxies_trust(facts: &Facts) -> Verdict {
    let bundle = bundle(facts)?;
    let mut wrong = Vec::new();
    for pod in facts.meshed_pods()?.filter(|pod| !follows(pod)) {
        let env = proxy_container(pod).map(pod::plain_env).unwrap_or_default();
        let own = env.get("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS");
        if own.is_some_and(|own| own.trim() != bundle) {
            wrong.push(format!(
                "{} started with other trust anchors",
                full_name(pod)
            ));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn token_audience(facts: &Facts) -> Verdict {
    if !facts.values()?.identity.service_account_token_projection {
        return Ok(Outcome::ok(
            "identity.serviceAccountTokenProjection is off: tokens are the service accounts' own",
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
            wrong.push(format!(
                "{} has no token for {TOKEN_AUDIENCE}{}: identity refuses any other",
                full_name(pod),
                match audiences.as_slice() {
                    [] => String::new(),
                    others => format!(" but for {}", others.join(", ")),
                }
            ));
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// The proxies' own word, from their metrics.
const EXPIRY: &str = "control_identity_cert_expiration_timestamp_seconds";

fn proxy_certificates(facts: &Facts) -> Verdict {
    let (mut wrong, mut first, mut good) = (Vec::new(), u64::MAX, 0_usize);
    for proxy in &facts.proxies {
        let name = format!("{}/{}", proxy.namespace, proxy.pod);
        let samples = match &proxy.metrics {
            Ok(samples) => samples,
            Err(reason) => {
                wrong.push(format!("{name}: {reason}"));
                continue;
            }
        };
        let expiry = samples.iter().find(|sample| sample.name == EXPIRY);
        match expiry.map(|sample| sample.value as u64) {
            None | Some(0) => wrong.push(format!("{name} has no certificate yet")),
            Some(expiry) if expiry <= facts.now => {
                wrong.push(format!("the certificate of {name} has expired"));
            }
            Some(expiry) => {
                first = first.min(expiry - facts.now);
                good += 1;
            }
        }
    }
    let ok = match good {
        0 => "no proxy was asked".to_owned(),
        _ => format!(
            "{}, the next expiry is in {}",
            count(good, "proxy", "proxies"),
            span(first)
        ),
    };
    Ok(Outcome::fail_if(wrong, ok))
}
