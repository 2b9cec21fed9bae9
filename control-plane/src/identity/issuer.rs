//! The issuer: a certificate authority's key and the chain below the trust anchors.

use std::time::{Duration, SystemTime};

use mesh_api::identity::Issued;
use rand::RngExt as _;
use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PublicKeyData, SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime, pem::PemObject};
use time::OffsetDateTime;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Signs certificates of workloads.
pub struct Issuer {
    signer: rcgen::Issuer<'static, KeyPair>,
    /// The issuer's certificate first, then those above it; trust anchors are not among them.
    chain: Vec<CertificateDer<'static>>,
    validity: Validity,
    /// The earliest end in the chain: nothing signed here may live longer.
    not_after: SystemTime,
}

/// How long certificates live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub lifetime: Duration,
    /// How far the clocks of two nodes may be apart.
    pub clock_skew: Duration,
}

/// Why an issuer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    #[error("the issuer's certificate file holds no readable PEM certificate")]
    Certificate,
    #[error("the issuer's key file holds no readable PEM private key")]
    Key,
    #[error("the trust anchors hold no readable PEM certificate")]
    Anchors,
    #[error("the issuer's own certificates end before 1970 or after 9999")]
    Dates,
    #[error("the issuer's certificate is not that of a certificate authority")]
    NotAnAuthority,
    #[error(
        "a certificate of this issuer would not be valid (do key, certificate and trust anchors belong together, and are all of them valid today?)"
    )]
    NotValid(#[source] IssueError),
}

/// Why a certificate was not issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("the issuer expired")]
    Expired,
    #[error("the name is no DNS name")]
    Name(#[source] rcgen::Error),
    #[error("signing failed")]
    Sign(#[source] rcgen::Error),
    #[error("no proxy would trust the certificate")]
    Untrusted(#[source] webpki::Error),
}

impl Issuer {
    /// Reads an issuer and proves that it can be used, by signing a certificate and verifying it
    /// against the anchors as a proxy will.
    pub fn read(
        certificates: &[u8],
        key: &[u8],
        anchors: &[u8],
        validity: Validity,
        now: SystemTime,
    ) -> Result<Self, IssuerError> {
        let chain = read_certificates(certificates).ok_or(IssuerError::Certificate)?;
        let anchors = read_certificates(anchors).ok_or(IssuerError::Anchors)?;
        let key = std::str::from_utf8(key)
            .ok()
            .and_then(|pem| KeyPair::from_pem(pem).ok())
            .ok_or(IssuerError::Key)?;
        let signer = rcgen::Issuer::from_ca_cert_der(&chain[0], key)
            .map_err(|_error| IssuerError::Certificate)?;
        if !is_authority(&chain[0]) {
            return Err(IssuerError::NotAnAuthority);
        }
        let not_after = earliest_end(&chain).ok_or(IssuerError::Dates)?;
        let issuer = Self {
            signer,
            chain,
            validity,
            not_after,
        };
        issuer.prove(&anchors, now).map_err(IssuerError::NotValid)?;
        Ok(issuer)
    }

    /// Issues a certificate of `identity` for a key.
    pub(super) fn issue(
        &self,
        identity: &str,
        key: &impl PublicKeyData,
        now: SystemTime,
    ) -> Result<Issued, IssueError> {
        let Validity {
            lifetime,
            clock_skew,
        } = self.validity;
        if now >= self.not_after {
            return Err(IssueError::Expired);
        }
        let not_after = (now + lifetime + clock_skew).min(self.not_after);
        let mut params = CertificateParams::default();
        // The identity alone: whoever verifies looks at the alternative name, and some identities
        // are too long for a common name.
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::DnsName(
            identity.try_into().map_err(IssueError::Name)?,
        )];
        params.not_before = OffsetDateTime::from(now - clock_skew);
        params.not_after = OffsetDateTime::from(not_after);
        params.serial_number = Some(random_serial());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(key, &self.signer)
            .map_err(IssueError::Sign)?;
        Ok(Issued {
            leaf: certificate.der().to_vec(),
            intermediates: self.chain.iter().map(|der| der.to_vec()).collect(),
            valid_until: whole_seconds(not_after),
        })
    }

    /// When the first certificate of the chain ends.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    fn prove(&self, anchors: &[CertificateDer<'_>], now: SystemTime) -> Result<(), IssueError> {
        let key = KeyPair::generate().map_err(IssueError::Sign)?;
        let issued = self.issue("probe.invalid", &key, now)?;
        let anchors: Vec<TrustAnchor<'_>> = anchors
            .iter()
            .filter_map(|der| anchor_from_trusted_cert(der).ok())
            .collect();
        let leaf = CertificateDer::from(issued.leaf);
        let since_1970 = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        EndEntityCert::try_from(&leaf)
            .and_then(|leaf| {
                leaf.verify_for_usage(
                    webpki::ALL_VERIFICATION_ALGS,
                    &anchors,
                    &self.chain,
                    UnixTime::since_unix_epoch(since_1970),
                    KeyUsage::server_auth(),
                    None,
                    None,
                )
                .map(drop)
            })
            .map_err(IssueError::Untrusted)
    }
}

impl std::fmt::Debug for Issuer {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issuer")
            .field("not_after", &self.not_after)
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

/// At least one, or nothing.
fn read_certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .ok()?;
    (!certificates.is_empty()).then_some(certificates)
}

/// Verifiers ask this of intermediate certificates, but not of a trust anchor that issues by
/// itself.
fn is_authority(der: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(der).is_ok_and(|(_, certificate)| certificate.is_ca())
}

fn earliest_end(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let end = |der: &CertificateDer<'_>| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    let ends: Option<Vec<SystemTime>> = chain.iter().map(end).collect();
    ends?.into_iter().min()
}

/// 128 random bits, so that no serial tells how many certificates there are or is ever used twice.
/// The first bits make it positive and of full length.
fn random_serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::rng().random();
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    SerialNumber::from_slice(&bytes)
}

/// Certificates count in seconds; the answer must not promise more than the certificate does.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}
