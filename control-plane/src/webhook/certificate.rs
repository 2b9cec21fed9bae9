//! A serving certificate with its key: read from PEM, or made together with an authority of its
//! own.

use std::time::{Duration, SystemTime};

use rand::RngExt as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// A chain, the leaf first, and the leaf's key.
pub(crate) struct Pair {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    not_before: SystemTime,
    not_after: SystemTime,
    dns_names: Vec<String>,
}

/// A new certificate, and the authority that trusts it.
pub(crate) struct Made {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
    pub(crate) authority_pem: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PairError {
    #[error("there is no readable PEM certificate in it")]
    Certificate,
    #[error("there is no readable PEM private key in it")]
    Key,
    #[error("the certificate ends before 1970 or after 9999")]
    Dates,
}

/// A certificate is made for so long. Linkerd's chart makes them for a year at each render; here
/// they are renewed without anybody's help.
const LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// How far the API server's clock may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

impl Pair {
    pub(crate) fn read(certificate: &[u8], key: &[u8]) -> Result<Self, PairError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|_error| PairError::Certificate)?;
        let leaf = chain.first().ok_or(PairError::Certificate)?;
        let (_, parsed) =
            X509Certificate::from_der(leaf).map_err(|_error| PairError::Certificate)?;
        let time = |seconds: i64| {
            let since = Duration::from_secs(u64::try_from(seconds).ok()?);
            SystemTime::UNIX_EPOCH.checked_add(since)
        };
        let validity = parsed.validity();
        let not_before = time(validity.not_before.timestamp()).ok_or(PairError::Dates)?;
        let not_after = time(validity.not_after.timestamp()).ok_or(PairError::Dates)?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let names = names
            .iter()
            .flat_map(|extension| &extension.value.general_names);
        let dns_names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        let dns_names = dns_names.collect();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_error| PairError::Key)?;
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

    pub(crate) fn not_after(&self) -> SystemTime {
        self.not_after
    }

    pub(crate) fn is_for(&self, name: &str) -> bool {
        self.dns_names.iter().any(|known| known == name)
    }

    /// When two thirds of its life are over: a third is left to find out why a renewal failed.
    pub(crate) fn renew_at(&self) -> SystemTime {
        let life = self
            .not_after
            .duration_since(self.not_before)
            .unwrap_or_default();
        self.not_before + life * 2 / 3
    }
}

impl std::fmt::Debug for Pair {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair")
            .field("dns_names", &self.dns_names)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Makes a certificate for `names`, signed by an authority of which nobody keeps the key: what it
/// vouches for can never become more.
pub(crate) fn make(names: &[String], now: SystemTime) -> Result<Made, rcgen::Error> {
    let not_before = OffsetDateTime::from(now - CLOCK_SKEW);
    let not_after = OffsetDateTime::from(now + LIFETIME);
    let common_name = names.first().cloned().unwrap_or_default();
    let named = |name: &str| {
        let mut distinguished = DistinguishedName::new();
        distinguished.push(DnType::CommonName, name);
        distinguished
    };

    let mut params = CertificateParams::default();
    // Told apart from the authority before it, whose name the same key identifier could not.
    let serial = random_serial();
    params.distinguished_name = named(&format!("{common_name} authority"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = not_before;
    params.not_after = not_after;
    params.serial_number = Some(serial);
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
    Ok(Made {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
        authority_pem,
    })
}

/// Positive and of full length.
fn random_serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::rng().random();
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    SerialNumber::from_slice(&bytes)
}

#[cfg(test)]
mod tests {
    use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

    use super::*;

    #[test]
    fn what_is_made_is_trusted_by_its_authority_and_by_no_other() {
        let now = SystemTime::now();
        let names = [
            "a.linkerd.svc".to_owned(),
            "a.linkerd.svc.cluster.local".to_owned(),
        ];
        let (made, other) = (make(&names, now).unwrap(), make(&names, now).unwrap());
        let pair = Pair::read(made.certificate_pem.as_bytes(), made.key_pem.as_bytes()).unwrap();
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
    fn what_cannot_be_read_is_said() {
        let made = make(&["a".to_owned()], SystemTime::now()).unwrap();
        let error = |certificate: &str, key: &str| {
            Pair::read(certificate.as_bytes(), key.as_bytes())
                .unwrap_err()
                .to_string()
        };
        assert!(error("", &made.key_pem).contains("certificate"));
        assert!(error(&made.certificate_pem, &made.certificate_pem).contains("key"));
    }
}
