//! Messages of the identity service.

use std::time::SystemTime;

use crate::field::{InvalidField, required};
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
