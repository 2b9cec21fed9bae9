//! Serving certificates with their keys: parsed from PEM, or generated together with a CA.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::certificate::{random_serial, system_time};

/// A certificate chain, the leaf first, and the key of the leaf.
pub struct CertificateAndKey {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    not_before: SystemTime,
    not_after: SystemTime,
    dns_names: Vec<String>,
}

/// A generated certificate and its CA.
pub struct GeneratedCertificate {
    pub certificate_pem: String,
    pub key_pem: String,
    pub authority_pem: String,
}

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("no valid PEM certificate")]
    Certificate,
    #[error("no valid PEM private key")]
    Key,
    #[error("the certificate expires before 1970 or after 9999")]
    Dates,
}

/// The lifetime of generated certificates, which are renewed automatically.
const LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// How far the clock of the API server may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

impl CertificateAndKey {
    pub fn read(certificate: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|_error| CertificateError::Certificate)?;
        let leaf = chain.first().ok_or(CertificateError::Certificate)?;
        let (_, parsed) =
            X509Certificate::from_der(leaf).map_err(|_error| CertificateError::Certificate)?;
        let time = |time| system_time(time).ok_or(CertificateError::Dates);
        let not_before = time(parsed.validity().not_before)?;
        let not_after = time(parsed.validity().not_after)?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let names = names
            .iter()
            .flat_map(|extension| &extension.value.general_names);
        let dns_names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        let dns_names = dns_names.collect();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_error| CertificateError::Key)?;
        Ok(Self {
            chain,
            key,
            not_before,
            not_after,
            dns_names,
        })
    }

    pub(super) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    pub(super) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }

    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    pub fn is_for(&self, name: &str) -> bool {
        self.dns_names.iter().any(|known| known == name)
    }

    /// Returns the time after two thirds of the lifetime. The last third is left for failed
    /// renewals.
    pub fn renew_at(&self) -> SystemTime {
        let life = self
            .not_after
            .duration_since(self.not_before)
            .unwrap_or_default();
        self.not_before + life * 2 / 3
    }
}

impl std::fmt::Debug for CertificateAndKey {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateAndKey")
            .field("dns_names", &self.dns_names)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Generates a certificate for `names`, signed by a new CA. The key of the CA is dropped, so that
/// it cannot sign other certificates.
pub fn generate(names: &[String], now: SystemTime) -> Result<GeneratedCertificate, rcgen::Error> {
    let not_before = OffsetDateTime::from(now - CLOCK_SKEW);
    let not_after = OffsetDateTime::from(now + LIFETIME);
    let common_name = names.first().cloned().unwrap_or_default();
    let named = |name: &str| {
        let mut distinguished = DistinguishedName::new();
        distinguished.push(DnType::CommonName, name);
        distinguished
    };

    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("{common_name} authority"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = not_before;
    params.not_after = not_after;
    // Distinguishes it from the previous CA, which has the same name.
    params.serial_number = Some(random_serial());
    let authority_key = KeyPair::generate()?;
    let authority_pem = params.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(params, authority_key);

    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name = named(&common_name);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = not_before;
    params.not_after = not_after;
    params.serial_number = Some(random_serial());
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(GeneratedCertificate {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
        authority_pem,
    })
}

#[cfg(test)]
mod tests {
    use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

    use super::*;

    #[test]
    fn generated_certificate_is_only_trusted_by_its_ca() {
        let now = SystemTime::now();
        let names = [
            "a.linkerd.svc".to_owned(),
            "a.linkerd.svc.cluster.local".to_owned(),
        ];
        let (made, other) = (
            generate(&names, now).unwrap(),
            generate(&names, now).unwrap(),
        );
        let pair =
            CertificateAndKey::read(made.certificate_pem.as_bytes(), made.key_pem.as_bytes())
                .unwrap();
        assert!(pair.is_for("a.linkerd.svc") && !pair.is_for("b.linkerd.svc"));
        let life = pair.not_after().duration_since(now).unwrap();
        assert!(life <= LIFETIME && life > LIFETIME - Duration::from_secs(2));
        assert!(pair.renew_at() > now + LIFETIME / 2 && pair.renew_at() < pair.not_after());
        let leaf = EndEntityCert::try_from(&pair.chain()[0]).unwrap();
        let verify = |authority: &str| {
            let der = CertificateDer::from_pem_slice(authority.as_bytes()).unwrap();
            let anchor = anchor_from_trusted_cert(&der).unwrap();
            let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            leaf.verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &[anchor],
                &[],
                rustls_pki_types::UnixTime::since_unix_epoch(since),
                KeyUsage::server_auth(),
                None,
                None,
            )
            .is_ok()
        };
        assert!(verify(&made.authority_pem));
        assert!(!verify(&other.authority_pem));
    }

    #[test]
    fn errors_name_invalid_part() {
        let made = generate(&["a".to_owned()], SystemTime::now()).unwrap();
        let error = |certificate: &str, key: &str| {
            CertificateAndKey::read(certificate.as_bytes(), key.as_bytes())
                .unwrap_err()
                .to_string()
        };
        assert!(error("", &made.key_pem).contains("certificate"));
        assert!(error(&made.certificate_pem, &made.certificate_pem).contains("key"));
    }
}
