//! `meshctl cross-sign`: signs a new trust anchor with the old one.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use rcgen::string::{Ia5String, PrintableString};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, Issuer,
    KeyIdMethod, KeyUsagePurpose, PublicKeyData as _, SubjectPublicKeyInfo,
};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::Tag;
use x509_parser::extensions::ParsedExtension;
use x509_parser::pem::parse_x509_pem;
use x509_parser::x509::X509Name;

use crate::clients::tls;
use crate::output;

const EXAMPLES: &str = "\
Example, for a rotation of the trust anchor:
  meshctl cross-sign --old-anchor old.crt --old-key old.key --new-anchor new.crt > cross.crt
  cat issuer.crt cross.crt > crt.pem

With crt.pem as the certificate of the issuer, proxies that know only the old anchor trust certificates below the new one, until the old one expires. Do not sign a new anchor with an old one whose key may be known to others.";

/// Sign a new trust anchor with the old one, for proxies that know only the old one
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The certificate of the old trust anchor, in PEM
    #[arg(long, value_name = "FILE")]
    old_anchor: PathBuf,
    /// The private key of the old trust anchor, in PEM
    #[arg(long, value_name = "FILE")]
    old_key: PathBuf,
    /// The certificate of the new trust anchor, in PEM
    #[arg(long, value_name = "FILE")]
    new_anchor: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
    };
    let (old, key, new) = (
        read(&args.old_anchor)?,
        read(&args.old_key)?,
        read(&args.new_anchor)?,
    );
    let signed = cross_certificate(&old, &key, &new, OffsetDateTime::now_utc())
        .context("sign the new trust anchor")?;
    output::text(&signed)
}

/// Returns a certificate of the new anchor's name and key that the old anchor has signed, in PEM.
/// It expires with the anchor that expires first.
pub(super) fn cross_certificate(
    old: &str,
    old_key: &str,
    new: &str,
    now: OffsetDateTime,
) -> anyhow::Result<String> {
    let (_, old_pem) = parse_x509_pem(old.as_bytes())
        .ok()
        .context("the old anchor is not PEM")?;
    let (_, new_pem) = parse_x509_pem(new.as_bytes())
        .ok()
        .context("the new anchor is not PEM")?;
    let old_anchor = old_pem
        .parse_x509()
        .ok()
        .context("the old anchor is invalid")?;
    let new_anchor = new_pem
        .parse_x509()
        .ok()
        .context("the new anchor is invalid")?;
    ensure!(new_anchor.is_ca(), "the new anchor is not a CA certificate");
    ensure!(
        old_anchor.public_key() != new_anchor.public_key(),
        "both anchors have the same key, so that none has to be signed"
    );
    let key = tls::read_key(old_key.as_bytes())
        .context("the old anchor's key is not a PEM private key")?;
    ensure!(
        key.subject_public_key_info() == old_anchor.public_key().raw,
        "the key is not that of the old anchor"
    );
    let ends = [&old_anchor, &new_anchor].map(|anchor| anchor.validity().not_after.to_datetime());
    let end = ends[0].min(ends[1]);
    ensure!(end > now, "the old or the new anchor has expired");
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(new_anchor.subject())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = new_anchor.validity().not_before.to_datetime();
    params.not_after = end;
    params.use_authority_key_identifier_extension = true;
    if let Some(id) = key_identifier(&new_anchor) {
        params.key_identifier_method = KeyIdMethod::PreSpecified(id);
    }
    let public_key = SubjectPublicKeyInfo::from_der(new_anchor.public_key().raw)
        .context("the key of the new anchor is not supported")?;
    let signer =
        Issuer::from_ca_cert_pem(old, key).context("the old anchor is not a CA certificate")?;
    let signed = params.signed_by(&public_key, &signer)?;
    let parsed = x509_parser::parse_x509_certificate(signed.der());
    let (_, parsed) = parsed.ok().context("the signed certificate is invalid")?;
    // Verifiers compare names byte by byte.
    ensure!(
        parsed.subject().as_raw() == new_anchor.subject().as_raw()
            && parsed.issuer().as_raw() == old_anchor.subject().as_raw(),
        "the subjects of the anchors have attributes that this command does not support"
    );
    Ok(signed.pem())
}

fn key_identifier(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    let mut extensions = certificate.extensions().iter();
    extensions.find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
        _ => None,
    })
}

fn subject(name: &X509Name<'_>) -> anyhow::Result<DistinguishedName> {
    let mut subject = DistinguishedName::new();
    for attribute in name.iter_attributes() {
        let oid = attribute
            .attr_type()
            .iter()
            .context("an object identifier is too long")?;
        let text = attribute.as_str()?;
        let value = match attribute.attr_value().header.tag() {
            Tag::Utf8String => DnValue::Utf8String(text.to_owned()),
            Tag::PrintableString => DnValue::PrintableString(PrintableString::try_from(text)?),
            Tag::Ia5String => DnValue::Ia5String(Ia5String::try_from(text)?),
            tag => bail!("the subject of the new anchor has a value of type {tag:?}"),
        };
        subject.push(DnType::from_oid(&oid.collect::<Vec<u64>>()), value);
    }
    Ok(subject)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedIssuer, KeyPair};

    use super::*;

    fn anchor(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        anchor_with(name, KeyPair::generate().unwrap())
    }

    fn anchor_with(name: &str, key: KeyPair) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let organization = PrintableString::try_from("Mesh").unwrap();
        params.distinguished_name.push(
            DnType::OrganizationName,
            DnValue::PrintableString(organization),
        );
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = OffsetDateTime::now_utc() + time::Duration::days(30);
        CertifiedIssuer::self_signed(params, key).unwrap()
    }

    /// As `openssl ecparam -genkey` writes it.
    #[test]
    fn key_after_parameters_of_its_curve_is_read() {
        let key = KeyPair::generate().unwrap().serialize_pem();
        let with_parameters = format!(
            "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{key}"
        );
        let old = anchor_with("old", KeyPair::from_pem(&key).unwrap());
        let new = anchor("new");
        let now = OffsetDateTime::now_utc();
        cross_certificate(&old.pem(), &with_parameters, &new.pem(), now).unwrap();
    }

    #[test]
    fn new_anchor_chains_to_the_old_one_until_that_expires() {
        let (old, new) = (anchor("old"), anchor("new"));
        let now = OffsetDateTime::now_utc();
        let cross = cross_certificate(&old.pem(), &old.key().serialize_pem(), &new.pem(), now);
        let (_, cross) = parse_x509_pem(cross.unwrap().as_bytes()).unwrap();
        let cross = cross.parse_x509().unwrap();
        let (_, old_certificate) = x509_parser::parse_x509_certificate(old.der()).unwrap();
        let (_, new_certificate) = x509_parser::parse_x509_certificate(new.der()).unwrap();
        let signer = old_certificate.public_key();
        cross.verify_signature(Some(signer)).unwrap();
        assert_eq!(cross.public_key(), new_certificate.public_key());
        assert_eq!(key_identifier(&cross), key_identifier(&new_certificate));
        let end = old_certificate.validity().not_after;
        assert_eq!(cross.validity().not_after, end);
    }

    #[test]
    fn unusable_anchors_and_keys_are_named() {
        let (old, new) = (anchor("old"), anchor("new"));
        let now = OffsetDateTime::now_utc();
        let later = now + time::Duration::days(40);
        let (old_key, new_key) = (old.key().serialize_pem(), new.key().serialize_pem());
        for (key, new, now, expected) in [
            (
                &new_key,
                new.pem(),
                now,
                "the key is not that of the old anchor",
            ),
            (&old_key, old.pem(), now, "both anchors have the same key"),
            (&old_key, new.pem(), later, "has expired"),
            (&old_key, "x".to_owned(), now, "the new anchor is not PEM"),
        ] {
            let error = cross_certificate(&old.pem(), key, &new, now).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
