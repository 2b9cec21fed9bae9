//! Messages of the identity service.

use std::time::SystemTime;

use mesh_core::deny_list::DenyList;
use mesh_core::trust_bundle::TrustBundle;
use mesh_core::trust_domain::{ForeignAnchors, MAX_FOREIGN_ANCHORS, MAX_FOREIGN_DOMAINS};

use crate::field::{InvalidField, required};
use crate::mesh::identity;
use crate::proto::identity::{CertifyRequest, CertifyResponse};

/// An issued certificate. All parts are DER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificate of the workload.
    pub leaf: Vec<u8>,
    /// The intermediate certificates, the issuer first, without trust anchors.
    pub intermediates: Vec<Vec<u8>>,
    /// The end of the certificate's validity.
    pub valid_until: SystemTime,
}

/// The largest bundle of trust anchors, in bytes: the limit on the ConfigMap that holds them.
pub const MAX_TRUST_BUNDLE: usize = 1 << 20;

/// Returns a request for a certificate of `identity` with a ServiceAccount token. `csr` is DER.
pub fn certify_request(identity: &str, token: Vec<u8>, csr: Vec<u8>) -> CertifyRequest {
    CertifyRequest {
        identity: identity.to_owned(),
        token,
        certificate_signing_request: csr,
    }
}

/// Converts a received response.
///
/// # Errors
///
/// The certificate or its end of validity is missing or invalid.
pub fn issued(response: CertifyResponse) -> Result<IssuedCertificate, InvalidField> {
    if response.leaf_certificate.is_empty() {
        return Err(InvalidField::missing("leaf_certificate"));
    }
    Ok(IssuedCertificate {
        leaf: response.leaf_certificate,
        intermediates: response.intermediate_certificates,
        valid_until: required("valid_until", response.valid_until, |until| {
            SystemTime::try_from(until).map_err(|_out_of_range| {
                InvalidField::not_a("point in time", "", until.to_string())
            })
        })?,
    })
}

/// Converts a certificate to a response.
pub fn to_proto(issued: &IssuedCertificate) -> CertifyResponse {
    CertifyResponse {
        leaf_certificate: issued.leaf.clone(),
        intermediate_certificates: issued.intermediates.clone(),
        valid_until: Some(issued.valid_until.into()),
    }
}

/// Converts received trust anchors, which are not parsed here.
///
/// # Errors
///
/// The number is missing, the anchors are missing or exceed [`MAX_TRUST_BUNDLE`], or foreign ones
/// exceed their limits or have a domain twice, or the list of denied identities is invalid.
pub fn trust_bundle(message: identity::TrustBundle) -> Result<TrustBundle, InvalidField> {
    let identity::TrustBundle {
        number,
        anchors,
        foreign,
        denied,
    } = message;
    if number == 0 {
        return Err(InvalidField::missing("number"));
    }
    if anchors.is_empty() {
        return Err(InvalidField::missing("anchors"));
    }
    if anchors.len() > MAX_TRUST_BUNDLE {
        let found = format!("{} bytes", anchors.len());
        return Err(InvalidField::not_a(
            "bundle of at most 1 MiB",
            "anchors",
            found,
        ));
    }
    Ok(TrustBundle {
        number,
        anchors,
        foreign: foreign_anchors(foreign)?,
        denied: denied.map(deny_list).transpose()?,
    })
}

fn deny_list(message: identity::DeniedIdentities) -> Result<DenyList, InvalidField> {
    let entries = message.entries.iter().map(String::as_str);
    DenyList::parse(entries).map_err(|error| {
        InvalidField::not_a("list of denied identities", "denied", error.to_string())
    })
}

fn foreign_anchors(
    messages: Vec<identity::ForeignAnchors>,
) -> Result<ForeignAnchors, InvalidField> {
    if messages.len() > MAX_FOREIGN_DOMAINS {
        let found = format!("{} domains", messages.len());
        return Err(InvalidField::not_a("list of at most 32", "foreign", found));
    }
    let mut foreign = ForeignAnchors::new();
    let mut bytes = 0;
    for message in messages {
        let identity::ForeignAnchors {
            trust_domain,
            anchors,
        } = message;
        bytes += anchors.len();
        if anchors.is_empty() {
            return Err(InvalidField::missing("foreign.anchors"));
        }
        if bytes > MAX_FOREIGN_ANCHORS {
            let found = format!("{bytes} bytes and more");
            return Err(InvalidField::not_a(
                "list of at most 512 KiB",
                "foreign",
                found,
            ));
        }
        if foreign.insert(trust_domain.clone(), anchors).is_some() {
            return Err(InvalidField::not_a(
                "list of different trust domains",
                "foreign",
                trust_domain,
            ));
        }
    }
    Ok(foreign)
}

/// Converts trust anchors to a message.
pub fn trust_bundle_to_proto(bundle: &TrustBundle) -> identity::TrustBundle {
    identity::TrustBundle {
        number: bundle.number,
        anchors: bundle.anchors.clone(),
        foreign: bundle
            .foreign
            .iter()
            .map(|(trust_domain, anchors)| identity::ForeignAnchors {
                trust_domain: trust_domain.clone(),
                anchors: anchors.clone(),
            })
            .collect(),
        denied: bundle
            .denied
            .as_ref()
            .map(|list| identity::DeniedIdentities {
                entries: list.texts().collect(),
            }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn issued_certificate_round_trips() {
        let issued_one = IssuedCertificate {
            leaf: vec![1, 2],
            intermediates: vec![vec![3], vec![4]],
            valid_until: SystemTime::UNIX_EPOCH + Duration::new(1_800_000_000, 500),
        };
        assert_eq!(issued(to_proto(&issued_one)), Ok(issued_one));
    }

    #[test]
    fn trust_bundle_round_trips_up_to_its_limit() {
        let bundle = |number, length| TrustBundle {
            number,
            anchors: "a".repeat(length),
            foreign: ForeignAnchors::new(),
            denied: None,
        };
        let largest = bundle(7, MAX_TRUST_BUNDLE);
        assert_eq!(trust_bundle(trust_bundle_to_proto(&largest)), Ok(largest));
        for invalid in [bundle(0, 1), bundle(7, 0), bundle(7, MAX_TRUST_BUNDLE + 1)] {
            trust_bundle(trust_bundle_to_proto(&invalid)).unwrap_err();
        }
    }

    #[test]
    fn foreign_anchors_round_trip_up_to_their_limits() {
        let with = |domains: usize, length: usize| {
            let foreign = (0..domains).map(|at| (format!("{at}.example"), "a".repeat(length)));
            trust_bundle_to_proto(&TrustBundle {
                number: 7,
                anchors: "a".to_owned(),
                foreign: foreign.collect(),
                denied: None,
            })
        };
        let most = MAX_FOREIGN_ANCHORS / MAX_FOREIGN_DOMAINS;
        let largest = with(MAX_FOREIGN_DOMAINS, most);
        let bundle = trust_bundle(largest.clone()).unwrap();
        assert_eq!(trust_bundle_to_proto(&bundle), largest);
        let mut twice = with(1, 1);
        twice.foreign.push(twice.foreign[0].clone());
        for invalid in [
            with(MAX_FOREIGN_DOMAINS + 1, 1),
            with(MAX_FOREIGN_DOMAINS, most + 1),
            with(1, 0),
            twice,
        ] {
            trust_bundle(invalid).unwrap_err();
        }
    }

    #[test]
    fn denied_identities_round_trip_and_an_empty_list_is_not_an_unknown_one() {
        let with = |denied: Option<&[&str]>| {
            trust_bundle_to_proto(&TrustBundle {
                number: 7,
                anchors: "a".to_owned(),
                foreign: ForeignAnchors::new(),
                denied: denied.map(|it| DenyList::parse(it.iter().copied()).unwrap()),
            })
        };
        for denied in [
            None,
            Some(&[][..]),
            Some(&["web.test", "spiffe://a/b", "*.b.test"]),
        ] {
            let message = with(denied);
            let bundle = trust_bundle(message.clone()).unwrap();
            assert_eq!(bundle.denied.is_some(), denied.is_some());
            assert_eq!(trust_bundle_to_proto(&bundle), message);
        }
        let many = (0..=mesh_core::deny_list::MAX_DENIED).map(|at| format!("a{at}.test"));
        for entries in [vec!["*".to_owned()], vec!["a b".to_owned()], many.collect()] {
            let mut message = with(None);
            message.denied = Some(identity::DeniedIdentities { entries });
            let error = trust_bundle(message).unwrap_err().to_string();
            assert!(error.starts_with("denied: "), "{error}");
        }
    }

    #[test]
    fn missing_field_is_named() {
        let error = |response| issued(response).unwrap_err().to_string();
        assert_eq!(
            error(CertifyResponse::default()),
            "leaf_certificate: is missing"
        );
        let no_end = CertifyResponse {
            leaf_certificate: vec![1],
            ..CertifyResponse::default()
        };
        assert_eq!(error(no_end), "valid_until: is missing");
    }
}
