//! The new trust anchor and issuer of a rotation: created, or given by the user.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail, ensure};
use mesh_api::identity::MAX_TRUST_BUNDLE;
use mesh_cluster::certificate::authority::{Authority, CertificateAndKey};
use mesh_cluster::certificate::pem_blocks;
use mesh_k8s::kinds::ObjectMeta;
use mesh_k8s::trust::ANCHOR_SECRET;
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;

use crate::certificate::{
    self, algorithm_problem, is_signed_by, read_pem, signing_problem, time_problem,
};
use crate::clients::tls;
use crate::commands::cross_sign::cross_certificate;
use crate::exit::Failure;
use crate::facts::trust::bundle;
use crate::facts::{Facts, fact_ref};
use crate::rotation::stored::Stored;
use crate::rotation::{Direction, Roots, bundle as bundles};

/// The flags for certificates and keys of the user.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Files {
    /// The new trust anchor, in PEM; by default one is created
    #[arg(long, value_name = "FILE")]
    anchor_cert: Option<PathBuf>,
    /// Its private key. The mesh stores it and renews issuers with it; without it, give an issuer
    #[arg(
        long,
        value_name = "FILE",
        requires = "anchor_cert",
        conflicts_with = "status"
    )]
    anchor_key: Option<PathBuf>,
    /// An issuer that the new anchor signed, followed by the certificates between them
    #[arg(long, value_name = "FILE", requires_all = ["anchor_cert", "issuer_key"], conflicts_with = "status")]
    issuer_cert: Option<PathBuf>,
    /// The private key of the issuer
    #[arg(
        long,
        value_name = "FILE",
        requires = "issuer_cert",
        conflicts_with = "status"
    )]
    issuer_key: Option<PathBuf>,
    /// The new anchor signed by the old one (meshctl cross-sign), if the mesh lacks the old key
    #[arg(long, value_name = "FILE", requires = "anchor_cert", conflicts_with_all = ["status", "compromised"])]
    cross_cert: Option<PathBuf>,
}

/// What the user gave.
#[derive(Default)]
pub(super) struct Given {
    pub(super) anchor: Option<CertificateAndKey>,
    issuer: Option<CertificateAndKey>,
    cross_certificate: Option<String>,
}

/// A bundle of certificates is smaller.
const MAX_FILE: u64 = 1 << 20;

/// An anchor that began within this time is the result of a rotation that has just ended.
const NEW_ANCHOR_SECONDS: i64 = 24 * 3600;

impl Files {
    pub(super) fn read(&self) -> anyhow::Result<Given> {
        let text = |path: &Option<PathBuf>| path.as_deref().map(read).transpose();
        let pair = |certificate, key| {
            anyhow::Ok(match text(certificate)? {
                Some(certificate) => Some(CertificateAndKey {
                    certificate,
                    key: text(key)?.unwrap_or_default(),
                }),
                None => None,
            })
        };
        let given = Given {
            anchor: pair(&self.anchor_cert, &self.anchor_key)?,
            issuer: pair(&self.issuer_cert, &self.issuer_key)?,
            cross_certificate: text(&self.cross_cert)?,
        };
        if let Some(anchor) = &given.anchor {
            let anchors = read_pem(anchor.certificate.as_bytes(), "--anchor-cert");
            let anchors = anchors.map_err(Failure::Input)?;
            if anchors.len() != 1 {
                let text = format!("--anchor-cert has {} certificates: give one", anchors.len());
                return Err(Failure::Input(text).into());
            }
        }
        Ok(given)
    }
}

impl Given {
    /// Returns the new anchor, in DER.
    pub(super) fn anchor_der(&self) -> Option<Vec<u8>> {
        let anchor = self.anchor.as_ref()?;
        let blocks = pem_blocks(&anchor.certificate);
        blocks.into_iter().next().map(|block| block.der)
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let input =
        |reason: String| Failure::Input(format!("cannot read {}: {reason}", path.display()));
    let size = std::fs::metadata(path)
        .map_err(|error| input(error.to_string()))?
        .len();
    if size > MAX_FILE {
        return Err(input(format!("it has {size} bytes, more than {MAX_FILE}")).into());
    }
    let text = std::fs::read_to_string(path).map_err(|error| input(error.to_string()))?;
    Ok(text)
}

/// Returns the anchors that signed the issuer, in DER. At most one, unless anchors share a key.
fn signers(facts: &Facts) -> anyhow::Result<Vec<Vec<u8>>> {
    let input =
        |reason: String| Failure::Input(format!("{reason}; `meshctl check` shows the repair"));
    let anchors = fact_ref(&facts.trust.anchors).map_err(input)?;
    let issuer = fact_ref(&facts.trust.issuer).map_err(input)?;
    fact_ref(&facts.trust.key).map_err(input)?;
    let chain = parsed(issuer)?;
    let mut signers = Vec::new();
    for der in anchors {
        let anchor = certificate::parse(der, "a trust anchor").map_err(Failure::Input)?;
        if is_signed_by(&chain, std::slice::from_ref(&anchor)) {
            signers.push(der.clone());
        }
    }
    if signers.is_empty() {
        return Err(input("no trust anchor signed the issuer".to_owned()).into());
    }
    Ok(signers)
}

/// Returns why there is nothing to rotate: the given anchor is in use, or, without a given one, the
/// anchor in use is new. A command that is repeated after its end thus does not begin again.
pub(super) fn in_use(facts: &Facts, given: &Given) -> anyhow::Result<Option<String>> {
    let signers = signers(facts)?;
    if let Some(new) = given.anchor_der() {
        let is_only = signers == [new];
        return Ok(is_only.then(|| "the trust anchor of --anchor-cert is in use".to_owned()));
    }
    let now = i64::try_from(facts.clock()).unwrap_or(i64::MAX);
    for der in &signers {
        let anchor = certificate::parse(der, "a trust anchor").map_err(Failure::Input)?;
        let begin = anchor.validity().not_before;
        if now - begin.timestamp() < NEW_ANCHOR_SECONDS {
            return Ok(Some(format!(
                "the trust anchor {} is new, valid since {begin}; --again replaces it nevertheless",
                anchor.subject()
            )));
        }
    }
    Ok(None)
}

/// Returns the Secret of a new rotation. `old` is the anchor that the mesh created, if it did.
pub(super) fn create(
    facts: &Facts,
    given: Given,
    old: Option<CertificateAndKey>,
    is_compromised: bool,
) -> anyhow::Result<Stored> {
    let now = SystemTime::now();
    let old_anchors = signers(facts)?;
    let values = fact_ref(&facts.values().cloned())
        .map_err(Failure::Input)?
        .clone();
    let authority = Authority {
        control_namespace: facts.control_namespace.clone(),
        trust_domain: values.trust_domain().to_owned(),
        anchor_lifetime: Authority::ANCHOR_LIFETIME,
        issuer_lifetime: Authority::ISSUER_LIFETIME,
    };
    let anchor = match given.anchor {
        Some(anchor) => anchor,
        None => authority.anchor(now).context("create a trust anchor")?,
    };
    let issuer = match given.issuer {
        Some(issuer) => issuer,
        None if anchor.key.is_empty() => {
            let text = "an issuer is needed: give it with --issuer-cert and --issuer-key, or the key of the new anchor with --anchor-key";
            return Err(Failure::Input(text.to_owned()).into());
        }
        None => authority.issuer(&anchor, now).map_err(|error| {
            Failure::Input(format!("sign an issuer with --anchor-key: {error}"))
        })?,
    };
    let text = bundle(facts).map_err(Failure::Input)?;
    let roots = Roots {
        new: one(&anchor.certificate, "the new anchor")?,
        old: old_anchors,
        direction: Direction::Forward,
    };
    check(&roots, &anchor, &issuer, &text, facts.clock())
        .map_err(|error| Failure::Input(format!("{error:#}")))?;
    let cross = match (is_compromised, given.cross_certificate) {
        (true, _) => None,
        (false, Some(cross)) => Some(cross),
        (false, None) => Some(sign_cross(&roots, old, &anchor)?),
    };
    if let Some(cross) = &cross {
        check_cross(&roots, cross, facts.clock())
            .map_err(|error| Failure::Input(format!("the cross-certificate: {error:#}")))?;
    }
    let old_text = pem_blocks(&text)
        .into_iter()
        .filter(|block| roots.old.contains(&block.der))
        .map(|block| format!("{}\n", block.text))
        .collect();
    Ok(Stored {
        meta: ObjectMeta::default(),
        direction: Direction::Forward,
        is_compromised,
        old_anchors: old_text,
        anchor,
        issuer,
        cross_certificate: cross,
        replaced: None,
    })
}

/// Signs the new anchor with the old one, whose key the mesh has if it created the anchor.
fn sign_cross(
    roots: &Roots,
    old: Option<CertificateAndKey>,
    new: &CertificateAndKey,
) -> anyhow::Result<String> {
    let own = old.filter(|old| {
        let der = one(&old.certificate, "it");
        !old.key.is_empty() && der.is_ok_and(|der| roots.old.contains(&der))
    });
    let Some(old) = own else {
        let text = format!(
            "the key of the old anchor is not in Secret {ANCHOR_SECRET}: sign the new anchor with it (meshctl cross-sign --old-anchor … --old-key … --new-anchor …) and give the result with --cross-cert. If the key is lost, or others may know it, --compromised rotates without it"
        );
        return Err(Failure::Input(text).into());
    };
    cross_certificate(
        &old.certificate,
        &old.key,
        &new.certificate,
        OffsetDateTime::now_utc(),
    )
    .context("sign the new trust anchor with the old one")
}

/// Checks a new anchor and issuer as proxies do.
fn check(
    roots: &Roots,
    anchor: &CertificateAndKey,
    issuer: &CertificateAndKey,
    bundle: &str,
    now: u64,
) -> anyhow::Result<()> {
    let chain =
        read_pem(issuer.certificate.as_bytes(), "the new issuer").map_err(anyhow::Error::msg)?;
    let chain = parsed(&chain)?;
    let new = certificate::parse(&roots.new, "the new anchor").map_err(anyhow::Error::msg)?;
    for old in parsed(&roots.old)? {
        ensure!(
            old.public_key() != new.public_key(),
            "the new anchor has the key of the old one: then no issuer has to be replaced, and the anchors of the ConfigMap can be exchanged by hand, first both and then the new one"
        );
    }
    for (above, one) in (0_u32..).zip(chain.iter().chain([&new])) {
        let is_rsa_allowed = above > 0;
        let problem = time_problem(one, now)
            .or_else(|| algorithm_problem(one, is_rsa_allowed))
            .or_else(|| signing_problem(one, above));
        if let Some(problem) = problem {
            bail!(problem);
        }
    }
    ensure!(
        is_signed_by(&chain, std::slice::from_ref(&new)),
        "the new anchor did not sign the new issuer"
    );
    let leaf = one(&issuer.certificate, "the new issuer")?;
    tls::check_key_matches(&leaf, issuer.key.as_bytes())
        .map_err(|reason| anyhow::anyhow!("the key of the new issuer does not match: {reason}"))?;
    if !anchor.key.is_empty() {
        tls::check_key_matches(&roots.new, anchor.key.as_bytes()).map_err(|reason| {
            anyhow::anyhow!("the key of the new anchor does not match: {reason}")
        })?;
    }
    let size = bundles::with(bundle, &anchor.certificate).len();
    ensure!(
        size <= MAX_TRUST_BUNDLE,
        "both anchors have {size} bytes together, more than {MAX_TRUST_BUNDLE}: remove anchors that are not needed"
    );
    Ok(())
}

fn check_cross(roots: &Roots, cross: &str, now: u64) -> anyhow::Result<()> {
    let der = one(cross, "it")?;
    ensure!(
        roots.is_cross_certificate(&der),
        "it does not have the key of the new anchor"
    );
    let parsed_cross = certificate::parse(&der, "it").map_err(anyhow::Error::msg)?;
    let is_signed = is_signed_by(std::slice::from_ref(&parsed_cross), &parsed(&roots.old)?);
    ensure!(is_signed, "the old anchor did not sign it");
    match time_problem(&parsed_cross, now) {
        Some(problem) => bail!(problem),
        None => Ok(()),
    }
}

/// Returns the first certificate, in DER.
fn one(pem: &str, what: &str) -> anyhow::Result<Vec<u8>> {
    let all = read_pem(pem.as_bytes(), what).map_err(anyhow::Error::msg)?;
    all.into_iter()
        .next()
        .with_context(|| format!("{what} contains no certificate"))
}

fn parsed(all: &[Vec<u8>]) -> anyhow::Result<Vec<X509Certificate<'_>>> {
    let parsed = all
        .iter()
        .map(|der| certificate::parse(der, "a certificate"));
    parsed.collect::<Result<_, _>>().map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests;
