//! Trust anchors, issuer, and the certificates that proxies hold.

use std::collections::BTreeMap;

use mesh_k8s::{
    inject::TOKEN_AUDIENCE,
    kinds::{ConfigMap, Pod, ResourceExt},
    pod,
};
use x509_parser::certificate::X509Certificate;

use super::{
    Category, Check, Ends, Facts, Line, On, Outcome, Place, Verdict,
    causes::{AGENTS, NOT_RUNNING, NOT_WORKING, TRUST},
    certificate::{
        self, algorithm_problem, ending, expires_soon, first_expiry, is_signed_by, signing_problem,
        span, time_problem,
    },
    count,
    facts::{NEW_POD, PROPAGATION, Seen, full_name, proxy_container, see},
    repair,
};

/// The ConfigMap of trust anchors, in the control plane's namespace and wherever they are
/// published.
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
            explained_by: &[],
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
            explained_by: &[],
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
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: anchors_valid,
        },
        Check {
            anchor: "l5d-identity-trustAnchors-not-expiring-soon",
            description: "trust anchors are valid for 60 days more",
            advice: NEW_ANCHOR,
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: anchors_ending,
        },
        Check {
            anchor: "issuer-may-sign",
            description: "the issuer may sign certificates",
            advice: NEW_ISSUER,
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| {
                judge(&facts.trust.issuer, |chain| {
                    let wrong = (0_u32..)
                        .zip(chain)
                        .filter_map(|(below, one)| signing_problem(one, below));
                    Outcome::fail_if(wrong.collect(), "")
                })
            },
        },
        Check {
            anchor: "l5d-identity-issuer-cert-uses-supported-crypto",
            description: "the issuer uses a key that proxies accept",
            advice: NEW_ISSUER,
            explained_by: &[],
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
            explained_by: &[],
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
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| judge(&facts.trust.issuer, |chain| expires_soon(chain, facts.now)),
        },
        Check {
            anchor: "l5d-identity-issuer-cert-issued-by-trust-anchor",
            description: "the issuer is signed by a trust anchor",
            advice: "put the anchor that signed it back into ConfigMap linkerd-identity-trust-roots in {ns} (Secret linkerd-trust-anchor has the one that the mesh made), or replace the issuer",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: issued_by_anchor,
        },
        Check {
            anchor: "trust-roots-published",
            description: "every namespace with meshed pods has the current trust anchors",
            advice: "kubectl -n {ns} logs deployment/linkerd-identity -c identity; deleting a stale ConfigMap makes identity write it again",
            explained_by: &[
                NOT_RUNNING,
                &["controllers-permissions", "l5d-identity-cert-config-valid"],
            ],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: published,
        },
        Check {
            anchor: "l5d-identity-data-plane-proxies-certs-match-ca",
            description: "proxies trust the current anchors",
            advice: "kubectl -n NAMESPACE rollout restart WORKLOAD",
            explained_by: &[&["trust-roots-published"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: proxies_trust,
        },
        Check {
            anchor: "token-audience",
            description: "proxies have tokens for the identity service",
            advice: "kubectl -n NAMESPACE rollout restart WORKLOAD: the injector adds the right token",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: token_audience,
        },
        Check {
            anchor: "proxy-certificates",
            description: "proxies hold certificates that have not expired",
            advice: "meshctl diagnostics proxy-metrics NAMESPACE/POD; the proxy's log says whether identity refused or could not be reached",
            explained_by: &[
                &["token-audience"],
                NOT_RUNNING,
                TRUST,
                NOT_WORKING,
                AGENTS,
                &["pods-enrolled", "l5d-api-control-ready"],
            ],
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

/// Takes an anchor out of the bundle. The file that is edited is in the folder where the command is
/// typed.
const REMOVE_ANCHOR: &str = "kubectl -n {ns} get configmap linkerd-identity-trust-roots -o jsonpath='{.data.ca-bundle\\.crt}' > ca-bundle.crt, take the certificate out of the file, kubectl -n {ns} create configmap linkerd-identity-trust-roots --from-file=ca-bundle.crt --dry-run=client -o yaml | kubectl apply -f -";

/// Does the issuer need this anchor, or has another signed it?
fn is_needed(facts: &Facts, anchor: &X509Certificate<'_>) -> bool {
    let chain = facts.trust.issuer.as_deref().unwrap_or_default();
    let chain: Vec<_> = chain
        .iter()
        .filter_map(|der| certificate::parse(der, "the issuer").ok())
        .collect();
    is_signed_by(&chain, std::slice::from_ref(anchor))
}

fn anchors_ending(facts: &Facts) -> Verdict {
    judge(&facts.trust.anchors, |all| {
        let soon = ending(all, facts.now).map(|(anchor, left)| {
            let text = format!("{} expires in {}", anchor.subject(), span(left));
            if is_needed(facts, anchor) {
                return Line::new(text);
            }
            Line::new(format!(
                "{text}, and the issuer does not need it: another anchor signed it. Remove it a day after the issuer was replaced"
            ))
            .fixed_by(REMOVE_ANCHOR)
        });
        Outcome::warn_if(soon.collect(), first_expiry(all, facts.now))
    })
}

/// One good anchor is enough for the mesh to work: an old one is left in the bundle until nothing
/// needs it.
fn anchors_valid(facts: &Facts) -> Verdict {
    judge(&facts.trust.anchors, |all| {
        let wrong: Vec<Line> = all
            .iter()
            .filter_map(|anchor| {
                let line = Line::new(time_problem(anchor, facts.now)?);
                Some(match is_needed(facts, anchor) {
                    true => line,
                    false => line.fixed_by(REMOVE_ANCHOR),
                })
            })
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

/// The same certificates, whatever stands between them and in whichever order?
fn same_anchors(one: &str, other: &str) -> bool {
    let certificates = |text: &str| {
        let mut all = certificate::read_pem(text.as_bytes(), "a bundle").unwrap_or_default();
        all.sort_unstable();
        all.dedup();
        all
    };
    one.trim() == other.trim() || {
        let known = certificates(one);
        !known.is_empty() && known == certificates(other)
    }
}

/// When an object was last written, in seconds since 1970.
fn written(map: &ConfigMap) -> Option<u64> {
    let fields = map.metadata.managed_fields.iter().flatten();
    let times = fields.filter_map(|entry| entry.time.as_ref());
    let newest = times.chain(&map.metadata.creation_timestamp).max()?;
    u64::try_from(newest.0.as_second()).ok()
}

fn published(facts: &Facts) -> Verdict {
    let values = facts.values()?;
    if !values.identity.publish_trust_roots {
        return Ok(Outcome::ok("identity.publishTrustRoots is off"));
    }
    let bundle = bundle(facts)?;
    let maps = see(&facts.objects.trust_roots)?;
    let own = maps
        .iter()
        .find(|map| map.namespace().as_deref() == Some(&facts.control_namespace));
    let on_their_way = own
        .and_then(written)
        .is_some_and(|written| written + PROPAGATION > facts.clock());
    let mut wrong: BTreeMap<String, (&str, Vec<String>)> = BTreeMap::new();
    for pod in facts
        .meshed_pods()?
        .filter(|pod| follows(facts, pod) && !facts.is_new(pod))
    {
        let namespace = pod.namespace().unwrap_or_default();
        let map = maps
            .iter()
            .find(|map| map.namespace().as_ref() == Some(&namespace));
        let problem = match map.and_then(bundle_of) {
            None => "has no ConfigMap of them",
            Some(own) if !same_anchors(&own, &bundle) => "has other anchors than the control plane",
            Some(_) => continue,
        };
        let (_, pods) = wrong.entry(namespace).or_insert((problem, Vec::new()));
        pods.push(pod.name_any());
    }
    if on_their_way && !wrong.is_empty() {
        return Ok(Outcome::ok(format!(
            "changed less than {PROPAGATION} s ago: still on their way to {}",
            wrong.into_keys().collect::<Vec<_>>().join(", ")
        )));
    }
    let lines = wrong.into_iter().map(|(namespace, (problem, pods))| {
        Line::new(format!(
            "namespace {namespace} {problem}: {} old ones",
            match pods.as_slice() {
                [pod] => format!("pod {pod} trusts the"),
                pods => format!("pods {} trust the", listed(pods)),
            }
        ))
        .fixed_by(format!(
            "kubectl -n {namespace} delete configmap {TRUST_ROOTS}: identity writes it again; kubectl -n {{ns}} logs deployment/linkerd-identity -c identity says why it could not"
        ))
    });
    Ok(Outcome::fail_if(lines.collect(), ""))
}

/// Names in one line, and how many there are beside the first few.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let first = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Does the pod's proxy read the anchors from the ConfigMap of its namespace? Ours does where there
/// is one; Linkerd's knows its environment alone.
fn follows(facts: &Facts, pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let mounted = volumes.into_iter().flatten().any(|volume| {
        volume
            .config_map
            .as_ref()
            .is_some_and(|map| map.name == TRUST_ROOTS)
    });
    let of_linkerd = proxy_container(pod)
        .and_then(|proxy| proxy.image.as_deref())
        .is_some_and(|image| image.starts_with("cr.l5d.io/linkerd/proxy"));
    let published = facts
        .values()
        .map_or(true, |values| values.identity.publish_trust_roots);
    mounted && published && !of_linkerd
}

fn proxies_trust(facts: &Facts) -> Verdict {
    let bundle = bundle(facts)?;
    let mut wrong = Vec::new();
    for pod in facts.meshed_pods()?.filter(|pod| !follows(facts, pod)) {
        let env = proxy_container(pod).map(pod::plain_env).unwrap_or_default();
        let own = env.get("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS");
        if own.is_some_and(|own| !same_anchors(own, &bundle)) {
            wrong.push(
                Line::new(format!(
                    "{} started with other trust anchors, and keeps them until it is restarted",
                    full_name(pod)
                ))
                .fixed_by(repair::restart(pod)),
            );
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
            let line = Line::new(format!(
                "{} has no token for {TOKEN_AUDIENCE}{}: identity refuses any other",
                full_name(pod),
                match audiences.as_slice() {
                    [] => String::new(),
                    others => format!(" but for {}", others.join(", ")),
                }
            ));
            wrong.push(line.fixed_by(format!(
                "{}: the injector adds the right token",
                repair::restart(pod)
            )));
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// The proxies' own word, from their metrics.
const EXPIRY: &str = "control_identity_cert_expiration_timestamp_seconds";

fn proxy_certificates(facts: &Facts) -> Verdict {
    let (mut wrong, mut first, mut good, mut new) = (Vec::new(), u64::MAX, 0_usize, 0_usize);
    for proxy in &facts.proxies {
        if proxy.new && proxy.ready.is_err() {
            new += 1;
            continue;
        }
        let name = format!("{}/{}", proxy.namespace, proxy.pod);
        let fix = format!(
            "kubectl -n {} logs {} -c linkerd-proxy: it says whether identity refused or could not be reached",
            proxy.namespace, proxy.pod
        );
        let samples = match &proxy.metrics {
            Ok(samples) => samples,
            Err(reason) => {
                wrong.push(Line::new(format!("{name}: {reason}")).fixed_by(fix));
                continue;
            }
        };
        let expiry = samples.iter().find(|sample| sample.name == EXPIRY);
        let problem = match expiry.map(|sample| sample.value as u64) {
            None | Some(0) => format!("{name} has no certificate yet"),
            Some(expiry) if expiry <= facts.now => {
                format!("the certificate of {name} has expired")
            }
            Some(expiry) => {
                first = first.min(expiry - facts.now);
                good += 1;
                continue;
            }
        };
        wrong.push(Line::new(problem).fixed_by(fix));
    }
    let mut ok = match good {
        0 => "no proxy was asked".to_owned(),
        _ => format!(
            "{}, the next expiry is in {}",
            count(good, "proxy", "proxies"),
            span(first)
        ),
    };
    ok += &left_out(new);
    Ok(Outcome::fail_if(wrong, ok))
}

/// What is said of pods that are too young to be judged.
pub(super) fn left_out(new: usize) -> String {
    match new {
        0 => String::new(),
        _ => format!(
            "; without {} younger than {NEW_POD} s",
            count(new, "pod", "pods")
        ),
    }
}
