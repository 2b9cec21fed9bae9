//! Whether another cluster would trust the roots of this one for the names of its trust domain.

use std::collections::BTreeSet;

use anyhow::Context as _;
use mesh_core::trust_domain::{DomainRefusal, check_foreign};

use crate::certificate;
use crate::cluster::Cluster;
use crate::exit::Failure;

/// The trust domain of a cluster and its roots.
#[derive(Debug)]
struct Side {
    context: String,
    trust_domain: String,
    /// In DER.
    anchors: Vec<Vec<u8>>,
}

const OTHER_DOMAIN: &str =
    "install the mesh of one of them again with another value of identityTrustDomain";

/// Fails if the other cluster would refuse the trust domain of this one, as the identity service
/// does.
pub(super) async fn check(own: &Cluster, trusting: &Cluster) -> anyhow::Result<()> {
    let (own, trusting) = tokio::join!(Box::pin(side(own)), Box::pin(side(trusting)));
    Ok(compare(&own?, &trusting?).map_err(Failure::Input)?)
}

async fn side(cluster: &Cluster) -> anyhow::Result<Side> {
    let context = cluster.context.clone();
    let read = async {
        let (values, anchors) = tokio::join!(cluster.values(), cluster.trust_anchors());
        let anchors = certificate::read_pem(anchors?.as_bytes(), "its trust anchors");
        anyhow::Ok(Side {
            context: context.clone(),
            trust_domain: values?.trust_domain().to_owned(),
            anchors: anchors.map_err(Failure::Input)?,
        })
    };
    let read = Box::pin(read).await;
    read.with_context(|| format!("context {context}"))
}

fn compare(own: &Side, trusting: &Side) -> Result<(), String> {
    let (context, other) = (&own.context, &trusting.context);
    match check_foreign(&own.trust_domain, &trusting.trust_domain) {
        Ok(()) => Ok(()),
        Err(DomainRefusal::Own(domain)) if set(&own.anchors) == set(&trusting.anchors) => {
            Err(format!(
                "contexts {context} and {other} have the trust domain {domain} and the same trust anchors: a Link needs no trust bundle"
            ))
        }
        Err(DomainRefusal::Own(domain)) => Err(format!(
            "contexts {context} and {other} have the same trust domain {domain}, but different trust anchors ({context}: {}; {other}: {}): roots can differ only where trust domains differ; add the anchors of each cluster to ConfigMap linkerd-identity-trust-roots of the other one, or {OTHER_DOMAIN}",
            certificate::subjects(&own.anchors),
            certificate::subjects(&trusting.anchors)
        )),
        Err(refusal) => Err(format!(
            "context {other} would not trust context {context}: {refusal}; {OTHER_DOMAIN}"
        )),
    }
}

fn set(anchors: &[Vec<u8>]) -> BTreeSet<&[u8]> {
    anchors.iter().map(Vec::as_slice).collect()
}

#[cfg(test)]
mod tests {
    use mesh_test_support::certificates::TestCa;

    use super::*;

    fn side(context: &str, trust_domain: &str, anchor: &TestCa) -> Side {
        let anchors = certificate::read_pem(anchor.anchor_pem().as_bytes(), "a root").unwrap();
        Side {
            context: context.to_owned(),
            trust_domain: trust_domain.to_owned(),
            anchors,
        }
    }

    #[test]
    fn roots_may_differ_only_where_trust_domains_differ() {
        let (one, other) = (TestCa::new(), TestCa::new());
        let east = side("east", "east.example", &one);
        for anchor in [&one, &other] {
            assert_eq!(
                compare(&east, &side("west", "west.example", anchor)),
                Ok(())
            );
        }
        let same = compare(&east, &side("west", "east.example", &one)).unwrap_err();
        assert!(same.ends_with("a Link needs no trust bundle"), "{same}");
        for (domain, parts) in [
            (
                "east.example",
                [
                    "contexts east and west have the same trust domain east.example",
                    "linkerd-identity-trust-roots of the other one, or install",
                ],
            ),
            (
                "example",
                ["context west would not trust context east", "overlap"],
            ),
            ("a.east.example", ["context west", "identityTrustDomain"]),
        ] {
            let problem = compare(&east, &side("west", domain, &other)).unwrap_err();
            let is_named = parts.iter().all(|part| problem.contains(part));
            assert!(is_named, "{problem}");
        }
    }

    #[test]
    fn refusal_names_the_anchors_of_both_clusters() {
        let (one, other) = (TestCa::new(), TestCa::new());
        let both = |first: &TestCa, second: &TestCa| Side {
            anchors: [side("", "", first).anchors, side("", "", second).anchors].concat(),
            ..side("west", "cluster.local", first)
        };
        let east = side("east", "cluster.local", &one);
        // A common one is not enough: which of them the issuer has is unknown.
        let problem = compare(&east, &both(&one, &other)).unwrap_err();
        let subject = certificate::subjects(&east.anchors);
        let expect = format!("(east: {subject}; west: {subject}, {subject})");
        assert!(problem.contains(&expect), "{problem}");
        assert!(subject.contains("CN="), "{subject}");
    }
}
