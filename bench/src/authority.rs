//! The certificates of a benchmark: anchor, issuer and leaves, as files. `control` signs with the
//! issuer; Envoy and HAProxy load their leaves from the directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use mesh_api::identity::IssuedCertificate;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer};
use time::OffsetDateTime;

/// Longer than any benchmark.
pub(crate) const LIFETIME: Duration = Duration::from_hours(24);
/// Backdates certificates, in case the clock is set back during a benchmark.
const EARLIER: Duration = Duration::from_mins(10);

const ANCHOR: &str = "anchor.pem";
const ISSUER: &str = "issuer.pem";
const ISSUER_KEY: &str = "issuer-key.pem";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Directory for `anchor.pem`, `issuer.pem`, `issuer-key.pem`, and for each leaf `NAME.pem`
    /// (chain) and `NAME-key.pem`
    #[arg(long, value_name = "DIR")]
    directory: PathBuf,
    /// A leaf to issue, as in `client=web.shop.example`: the base name of its files and the DNS
    /// name in the certificate
    #[arg(long, value_name = "NAME=DNS")]
    leaf: Vec<String>,
}

/// An issuer whose certificate is signed by the trust anchor.
pub(crate) struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Vec<u8>,
    /// Lifetime of the leaves.
    lifetime: Duration,
}

/// Generates all files.
pub(crate) fn generate(options: &Options) -> anyhow::Result<()> {
    let write = |name: &str, text: &str| {
        let path = options.directory.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    let (anchor_key, issuer_key) = (new_key()?, new_key()?);
    let anchor_params = ca("benchmark anchor")?;
    let anchor = anchor_params.self_signed(&anchor_key)?;
    let issuer_params = ca("benchmark issuer")?;
    let anchor_issuer = Issuer::new(anchor_params, anchor_key);
    let issuer = issuer_params.signed_by(&issuer_key, &anchor_issuer)?;
    write(ANCHOR, &anchor.pem())?;
    write(ISSUER, &issuer.pem())?;
    write(ISSUER_KEY, &issuer_key.serialize_pem())?;
    let issuing = Issuer::new(issuer_params, issuer_key);
    for leaf in &options.leaf {
        let (name, dns) = leaf
            .split_once('=')
            .with_context(|| format!("{leaf:?} is not NAME=DNS"))?;
        let key = new_key()?;
        let mut params = CertificateParams::new(vec![dns.to_owned()])?;
        valid_for(LIFETIME, &mut params);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let certificate = params.signed_by(&key, &issuing)?;
        write(
            &format!("{name}.pem"),
            &format!("{}{}", certificate.pem(), issuer.pem()),
        )?;
        write(&format!("{name}-key.pem"), &key.serialize_pem())?;
    }
    Ok(())
}

impl CertificateAuthority {
    /// Loads the issuer that [`generate`] wrote into a directory.
    pub(crate) fn load(directory: &Path, lifetime: Duration) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        let key = KeyPair::from_pem(&read(ISSUER_KEY)?).context("parse the issuer's key")?;
        let pem = read(ISSUER)?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| anyhow::anyhow!("parse the issuer's certificate: {error}"))?
            .to_vec();
        let issuer =
            Issuer::from_ca_cert_pem(&pem, key).context("parse the issuer's certificate")?;
        Ok(Self {
            issuer,
            certificate,
            lifetime,
        })
    }

    /// Issues a leaf for a certificate signing request in DER.
    pub(crate) fn sign(&self, request: &[u8]) -> anyhow::Result<IssuedCertificate> {
        let der = CertificateSigningRequestDer::from(request);
        let mut request = CertificateSigningRequestParams::from_der(&der)?;
        valid_for(self.lifetime, &mut request.params);
        let until = request.params.not_after;
        Ok(IssuedCertificate {
            leaf: request.signed_by(&self.issuer)?.der().to_vec(),
            intermediates: vec![self.certificate.clone()],
            valid_until: until.into(),
        })
    }
}

fn new_key() -> anyhow::Result<KeyPair> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).context("generate a key")
}

fn ca(name: &str) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(vec![])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(LIFETIME, &mut params);
    Ok(params)
}

fn valid_for(lifetime: Duration, params: &mut CertificateParams) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - EARLIER;
    params.not_after = now + lifetime;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_issuer_signs_certificate_requests() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            directory: directory.path().to_owned(),
            leaf: vec!["client=a.example".to_owned()],
        };
        generate(&options).unwrap();
        let authority =
            CertificateAuthority::load(directory.path(), Duration::from_mins(1)).unwrap();
        let key = new_key().unwrap();
        let params = CertificateParams::new(vec!["b.example".to_owned()]).unwrap();
        let request = params.serialize_request(&key).unwrap();
        let issued = authority.sign(request.der()).unwrap();
        assert_eq!(issued.intermediates.len(), 1);
        let left = issued
            .valid_until
            .duration_since(std::time::SystemTime::now());
        assert!(
            left.unwrap() <= Duration::from_mins(1),
            "the requested lifetime"
        );
        let chain = fs::read_to_string(directory.path().join("client.pem")).unwrap();
        assert_eq!(chain.matches("BEGIN CERTIFICATE").count(), 2);
    }
}
