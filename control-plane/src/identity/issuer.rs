//! The issuer: the key of a certificate authority, and its certificate chain.

use std::time::{Duration, SystemTime};

use mesh_api::identity::IssuedCertificate;
use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PublicKeyData, SanType,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use time::OffsetDateTime;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{FromDer, X509Certificate};

use mesh_cluster::certificate::{random_serial, read_key, system_time};

/// Signs certificates of workloads.
pub struct Issuer {
    signer: rcgen::Issuer<'static, KeyPair>,
    /// The certificate of the issuer, followed by the certificates above it, without trust anchors,
    /// each with its end. Some are only for proxies with earlier anchors: a proxy with the current
    /// anchors trusts a certificate below them.
    chain: Vec<(CertificateDer<'static>, SystemTime)>,
    anchors: Vec<CertificateDer<'static>>,
    validity: Validity,
    loaded: SystemTime,
    /// The earliest end of the certificates that a proxy with the current anchors needs, which caps
    /// issued certificates.
    not_after: SystemTime,
    /// The earliest end of the trust anchors; `None` if it is not within 1970 to 9999.
    anchors_not_after: Option<SystemTime>,
}

/// The validity of issued certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub lifetime: Duration,
    /// Tolerated difference between the clocks of two nodes.
    pub clock_skew: Duration,
}

/// Why an issuer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    #[error("the issuer's certificate file contains no valid PEM certificate")]
    Certificate,
    #[error("the issuer's key file contains no valid PEM private key")]
    Key,
    #[error("the trust anchors contain no valid PEM certificate")]
    Anchors,
    #[error("a certificate of the issuer's chain expires before 1970 or after 9999")]
    Dates,
    #[error("the issuer's certificate is not a CA certificate")]
    NotAnAuthority,
    #[error(
        "a certificate of this issuer would not be valid; check that key, certificate and trust anchors belong together and have not expired"
    )]
    NotValid(#[source] IssueError),
}

/// Why a certificate was not issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("the issuer has expired")]
    Expired,
    #[error("the identity is not a DNS name or a URI")]
    Name(#[source] rcgen::Error),
    #[error("signing failed")]
    Sign(#[source] rcgen::Error),
    #[error("no proxy would trust the certificate")]
    Untrusted(#[source] webpki::Error),
}

/// What a certificate is for.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// Client or server of mutual TLS.
    Peer,
    /// Signing the tokens of a machine. No proxy accepts the certificate.
    Tokens,
}

/// The usage of a machine's certificate: it signs tokens, which are documents (RFC 9336). Proxies
/// require another usage of their peers, and refuse the certificate.
const DOCUMENT_SIGNING: [u64; 9] = [1, 3, 6, 1, 5, 5, 7, 3, 36];
/// The same in DER.
const DOCUMENT_SIGNING_DER: [u8; 8] = [43, 6, 1, 5, 5, 7, 3, 36];

/// How long a machine's certificate is valid. A machine that is off for longer has to join again.
const MACHINE_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

impl Issuer {
    /// Parses an issuer and checks that it is usable, by issuing a certificate and verifying it
    /// against the anchors like a proxy.
    pub fn read(
        certificates: &[u8],
        key: &[u8],
        anchors: &[u8],
        validity: Validity,
        now: SystemTime,
    ) -> Result<Self, IssuerError> {
        let chain = read_certificates(certificates).ok_or(IssuerError::Certificate)?;
        let anchors = read_certificates(anchors).ok_or(IssuerError::Anchors)?;
        let key = read_key(key).map_err(|_error| IssuerError::Key)?;
        let signer = rcgen::Issuer::from_ca_cert_der(&chain[0], key)
            .map_err(|_error| IssuerError::Certificate)?;
        if !is_ca_certificate(&chain[0]) {
            return Err(IssuerError::NotAnAuthority);
        }
        let ends: Option<Vec<SystemTime>> = chain.iter().map(not_after).collect();
        let ends = ends.ok_or(IssuerError::Dates)?;
        let mut issuer = Self {
            signer,
            not_after: ends[0],
            chain: chain.into_iter().zip(ends).collect(),
            validity,
            loaded: now,
            anchors_not_after: earliest_not_after(&anchors),
            anchors,
        };
        issuer.not_after = issuer.verify_usable(now).map_err(IssuerError::NotValid)?;
        Ok(issuer)
    }

    /// Issues a certificate of `identity` for a key.
    pub(super) fn issue(
        &self,
        identity: &str,
        key: &impl PublicKeyData,
        purpose: Purpose,
        now: SystemTime,
    ) -> Result<IssuedCertificate, IssueError> {
        let name = identity.try_into().map_err(IssueError::Name)?;
        self.sign(SanType::DnsName(name), key, purpose, now)
    }

    /// Issues a certificate of a SPIFFE identity for a key.
    pub(crate) fn issue_spiffe(
        &self,
        identity: &str,
        key: &impl PublicKeyData,
        now: SystemTime,
    ) -> Result<IssuedCertificate, IssueError> {
        let name = identity.try_into().map_err(IssueError::Name)?;
        self.sign(SanType::URI(name), key, Purpose::Peer, now)
    }

    fn sign(
        &self,
        name: SanType,
        key: &impl PublicKeyData,
        purpose: Purpose,
        now: SystemTime,
    ) -> Result<IssuedCertificate, IssueError> {
        let Validity {
            lifetime,
            clock_skew,
        } = self.validity;
        let (lifetime, usages) = match purpose {
            Purpose::Peer => (
                lifetime,
                vec![
                    ExtendedKeyUsagePurpose::ServerAuth,
                    ExtendedKeyUsagePurpose::ClientAuth,
                ],
            ),
            Purpose::Tokens => (
                MACHINE_LIFETIME,
                vec![ExtendedKeyUsagePurpose::Other(DOCUMENT_SIGNING.to_vec())],
            ),
        };
        if now >= self.not_after {
            return Err(IssueError::Expired);
        }
        let not_after = (now + lifetime + clock_skew).min(self.not_after);
        let mut params = CertificateParams::default();
        // Verifiers use the subject alternative name, and some identities are too long for a common
        // name.
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![name];
        params.not_before = OffsetDateTime::from(now - clock_skew);
        params.not_after = OffsetDateTime::from(not_after);
        params.serial_number = Some(random_serial());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(key, &self.signer)
            .map_err(IssueError::Sign)?;
        Ok(IssuedCertificate {
            leaf: certificate.der().to_vec(),
            intermediates: self.intermediates(now),
            valid_until: whole_seconds(not_after),
        })
    }

    /// Verifies the chain of a certificate that a machine signs tokens with. The caller checks that
    /// the certificate [`is_for_tokens`].
    pub(super) fn verify_machine(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<(), webpki::Error> {
        EndEntityCert::try_from(leaf)?.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &self.trust_anchors(),
            intermediates,
            unix_time(now),
            KeyUsage::required_if_present(&DOCUMENT_SIGNING_DER),
            None,
            None,
        )?;
        Ok(())
    }

    fn trust_anchors(&self) -> Vec<TrustAnchor<'_>> {
        let anchors = self.anchors.iter();
        anchors
            .filter_map(|der| anchor_from_trusted_cert(der).ok())
            .collect()
    }

    /// Returns when the first certificate expires that a proxy with the current anchors needs.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Returns the SHA-256 of the issuer's certificate.
    pub fn fingerprint(&self) -> String {
        let (certificate, _end) = &self.chain[0];
        mesh_k8s::trust::fingerprint(certificate)
    }

    /// Returns when the issuer was loaded.
    pub fn loaded(&self) -> SystemTime {
        self.loaded
    }

    /// Returns when the first trust anchor expires.
    pub fn anchors_not_after(&self) -> Option<SystemTime> {
        self.anchors_not_after
    }

    /// Returns the chain without expired certificates, such as a certificate of the current anchor
    /// that an earlier one signed.
    fn intermediates(&self, now: SystemTime) -> Vec<Vec<u8>> {
        let valid = self.chain.iter().filter(|(_, end)| *end > now);
        valid.map(|(der, _)| der.to_vec()).collect()
    }

    /// Returns the earliest end of the certificates that chain to an anchor.
    fn verify_usable(&self, now: SystemTime) -> Result<SystemTime, IssueError> {
        let key = KeyPair::generate().map_err(IssueError::Sign)?;
        let issued = self.issue("probe.invalid", &key, Purpose::Peer, now)?;
        let anchors = self.trust_anchors();
        let leaf = CertificateDer::from(issued.leaf);
        let chain: Vec<CertificateDer<'_>> =
            self.chain.iter().map(|(der, _)| der.clone()).collect();
        let leaf = EndEntityCert::try_from(&leaf).map_err(IssueError::Untrusted)?;
        let path = leaf
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &anchors,
                &chain,
                unix_time(now),
                KeyUsage::server_auth(),
                None,
                None,
            )
            .map_err(IssueError::Untrusted)?;
        let needed: Vec<CertificateDer<'_>> = path
            .intermediate_certificates()
            .map(|certificate| certificate.der())
            .collect();
        let mut end = self.not_after;
        for (der, not_after) in &self.chain {
            if needed.iter().any(|needed| needed == der) {
                end = end.min(*not_after);
            }
        }
        Ok(end)
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

/// Returns whether a certificate was issued to a machine, for tokens. Verification also accepts one
/// without usages, because the issuer's certificate has none.
pub(super) fn is_for_tokens(certificate: &X509Certificate<'_>) -> bool {
    let usages = certificate.extended_key_usage().ok().flatten();
    usages.is_some_and(|usages| {
        let others = &usages.value.other;
        others
            .iter()
            .any(|oid| oid.as_bytes() == DOCUMENT_SIGNING_DER)
    })
}

fn unix_time(time: SystemTime) -> UnixTime {
    let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH);
    UnixTime::since_unix_epoch(since_1970.unwrap_or_default())
}

/// Parses at least one certificate.
fn read_certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .ok()?;
    (!certificates.is_empty()).then_some(certificates)
}

/// Verifiers check this for intermediate certificates, but not for a trust anchor that issues leaf
/// certificates.
fn is_ca_certificate(der: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(der).is_ok_and(|(_, certificate)| certificate.is_ca())
}

fn earliest_not_after(anchors: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let ends: Option<Vec<SystemTime>> = anchors.iter().map(not_after).collect();
    ends?.into_iter().min()
}

fn not_after(der: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    system_time(certificate.validity().not_after)
}

/// Rounds down to whole seconds, the precision of certificates.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}
