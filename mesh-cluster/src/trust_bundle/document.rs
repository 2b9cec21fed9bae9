//! The document of a bundle: the trust anchors of a trust domain as a set of JSON Web Keys (SPIFFE
//! Trust Domain and Bundle, section 4).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use mesh_core::trust_domain::{ForeignBundle, MAX_DOMAIN_ANCHORS};
use mesh_k8s::foreign_domain::MAX_DOCUMENT;
use serde::Deserialize;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::public_key::PublicKey;

use crate::certificate::{pem_blocks, to_pem};

/// A bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleDocument {
    pub bundle: ForeignBundle,
    /// How long the trust domain asks to wait for the next bundle.
    pub refresh_hint: Option<Duration>,
}

/// Why a document is not a bundle.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("it has {0} bytes, at most {MAX_DOCUMENT} are read")]
    TooLarge(usize),
    #[error("it is not a bundle of SPIFFE in JSON")]
    Json(#[source] serde_json::Error),
    #[error("it has {0} keys, at most {MAX_KEYS} are read")]
    Keys(usize),
    #[error("its key {0} is not of one certificate of an authority (x5c)")]
    Key(usize),
    #[error("its certificates have {0} bytes in PEM, at most {MAX_DOMAIN_ANCHORS} are used")]
    Anchors(usize),
}

/// Why trust anchors cannot be written to a document.
#[derive(Debug, thiserror::Error)]
#[error(
    "trust anchor {0} has a public key that is not of RSA, P-256, P-384, P-521 or Ed25519, or is invalid"
)]
pub struct UnknownKeyError(usize);

/// The keys of a document, also of other uses.
const MAX_KEYS: usize = 64;

/// The use of a key that verifies X.509 certificates.
const X509: &str = "x509-svid";

const ED25519: &str = "1.3.101.112";

#[derive(Deserialize)]
struct Document {
    keys: Vec<Key>,
    spiffe_sequence: Option<u64>,
    spiffe_refresh_hint: Option<u64>,
}

#[derive(Deserialize)]
struct Key {
    #[serde(rename = "use")]
    use_: Option<String>,
    #[serde(default)]
    x5c: Vec<String>,
}

/// Reads a document. Keys of other uses, as of tokens, are ignored. A bundle without anchors
/// withdraws all of the domain.
pub fn read(text: &[u8]) -> Result<BundleDocument, DocumentError> {
    if text.len() > MAX_DOCUMENT {
        return Err(DocumentError::TooLarge(text.len()));
    }
    let document: Document = serde_json::from_slice(text).map_err(DocumentError::Json)?;
    if document.keys.len() > MAX_KEYS {
        return Err(DocumentError::Keys(document.keys.len()));
    }
    let mut anchors = String::new();
    for (index, key) in document.keys.iter().enumerate() {
        if key.use_.as_deref() == Some(X509) {
            let der = authority(&key.x5c).ok_or(DocumentError::Key(index + 1))?;
            anchors += &to_pem(&der);
        }
    }
    if anchors.len() > MAX_DOMAIN_ANCHORS {
        return Err(DocumentError::Anchors(anchors.len()));
    }
    Ok(BundleDocument {
        bundle: ForeignBundle {
            sequence: document.spiffe_sequence,
            anchors,
        },
        refresh_hint: document.spiffe_refresh_hint.map(Duration::from_secs),
    })
}

/// Returns the document of anchors in PEM.
pub fn write(
    anchors: &str,
    sequence: u64,
    refresh_hint: Duration,
) -> Result<String, UnknownKeyError> {
    let mut keys = Vec::new();
    for (index, block) in pem_blocks(anchors).iter().enumerate() {
        let mut key = public_key(&block.der).ok_or(UnknownKeyError(index + 1))?;
        key["use"] = json!(X509);
        key["x5c"] = json!([STANDARD.encode(&block.der)]);
        keys.push(key);
    }
    let document = json!({
        "keys": keys,
        "spiffe_sequence": sequence,
        "spiffe_refresh_hint": refresh_hint.as_secs(),
    });
    Ok(document.to_string())
}

/// Returns the only certificate of a key, if it is one of an authority.
fn authority(x5c: &[String]) -> Option<Vec<u8>> {
    let [text] = x5c else {
        return None;
    };
    let der = STANDARD.decode(text).ok()?;
    let (rest, certificate) = X509Certificate::from_der(&der).ok()?;
    let is_authority = rest.is_empty() && certificate.is_ca();
    is_authority.then_some(der)
}

/// Returns the public key of a certificate as a JSON Web Key (RFC 7517), without which other
/// programs refuse it.
fn public_key(der: &[u8]) -> Option<Value> {
    let (_rest, certificate) = X509Certificate::from_der(der).ok()?;
    let key = certificate.public_key();
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    if key.algorithm.algorithm.to_id_string() == ED25519 {
        let x = encode(&key.subject_public_key.data);
        return Some(json!({ "kty": "OKP", "crv": "Ed25519", "x": x }));
    }
    match key.parsed().ok()? {
        PublicKey::RSA(rsa) => {
            let unsigned = |bytes: &[u8]| {
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                encode(&bytes[zeros..])
            };
            Some(json!({ "kty": "RSA", "n": unsigned(rsa.modulus), "e": unsigned(rsa.exponent) }))
        }
        PublicKey::EC(point) => {
            // Uncompressed, as verifiers expect it.
            let coordinates = point.data().strip_prefix(&[4])?;
            let (x, y) = coordinates.split_at(coordinates.len() / 2);
            let curve = match (x.len(), y.len()) {
                (32, 32) => "P-256",
                (48, 48) => "P-384",
                (66, 66) => "P-521",
                _ => return None,
            };
            Some(json!({ "kty": "EC", "crv": curve, "x": encode(x), "y": encode(y) }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use rcgen::{
        BasicConstraints, CertificateParams, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256,
        PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, SignatureAlgorithm,
    };

    use super::*;

    const HINT: Duration = Duration::from_secs(60);

    fn anchor(algorithm: &'static SignatureAlgorithm, is_ca: IsCa) -> String {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let mut params = CertificateParams::default();
        params.not_before = SystemTime::now().into();
        params.is_ca = is_ca;
        params
            .self_signed(&key)
            .unwrap()
            .pem()
            .replace("\r\n", "\n")
    }

    fn authority(algorithm: &'static SignatureAlgorithm) -> String {
        anchor(algorithm, IsCa::Ca(BasicConstraints::Unconstrained))
    }

    #[test]
    fn anchors_round_trip_with_the_keys_that_authorities_have() {
        for (algorithm, parts) in [
            (&PKCS_ECDSA_P256_SHA256, ["kty", "crv", "x", "y"].as_slice()),
            (&PKCS_ECDSA_P384_SHA384, &["kty", "crv", "x", "y"]),
            (&PKCS_ED25519, &["kty", "crv", "x"]),
            (&PKCS_RSA_SHA256, &["kty", "n", "e"]),
        ] {
            let anchors = authority(algorithm) + &authority(algorithm);
            let text = write(&anchors, 7, HINT).unwrap();
            let read = read(text.as_bytes()).unwrap();
            assert_eq!(read.bundle.sequence, Some(7));
            assert_eq!(read.bundle.anchors, anchors);
            assert_eq!(read.refresh_hint, Some(HINT));
            let value: Value = serde_json::from_str(&text).unwrap();
            let key = &value["keys"][1];
            for part in parts {
                assert!(key[*part].is_string(), "{part}: {key}");
            }
        }
    }

    #[test]
    fn keys_of_other_uses_are_ignored_and_no_keys_withdraw_the_anchors() {
        let mut document: Value =
            serde_json::from_str(&write(&authority(&PKCS_ED25519), 7, HINT).unwrap()).unwrap();
        let keys = document["keys"].as_array_mut().unwrap();
        keys.push(json!({ "use": "jwt-svid", "kid": "a", "kty": "EC" }));
        keys.push(json!({ "kty": "EC" }));
        let read_one = read(document.to_string().as_bytes()).unwrap();
        assert_eq!(read_one.bundle.anchors.matches("BEGIN").count(), 1);
        for empty in [r#"{"keys":[]}"#, r#"{"keys":[{"use":"jwt-svid"}]}"#] {
            let read = read(empty.as_bytes()).unwrap();
            assert_eq!(read.bundle.anchors, "");
            assert_eq!((read.bundle.sequence, read.refresh_hint), (None, None));
        }
    }

    #[test]
    fn documents_that_are_no_bundles_are_refused() {
        let leaf = anchor(&PKCS_ED25519, IsCa::ExplicitNoCa);
        let leaf = pem_blocks(&leaf)[0].der.clone();
        let good = pem_blocks(&authority(&PKCS_ED25519))[0].der.clone();
        let key = |x5c: Value| json!({ "keys": [{ "use": "x509-svid", "x5c": x5c }] });
        let longer = [&good[..], b"x"].concat();
        let many = json!({ "keys": vec![json!({ "use": "a" }); MAX_KEYS + 1] });
        let rsa = write(&authority(&PKCS_RSA_SHA256).repeat(20), 1, HINT).unwrap();
        let padded = format!("{}{}", r#"{"keys":[]}"#, " ".repeat(MAX_DOCUMENT));
        for (text, problem) in [
            (String::new(), "not a bundle"),
            ("{}".to_owned(), "not a bundle"),
            (
                r#"{"keys":[],"spiffe_sequence":-1}"#.to_owned(),
                "not a bundle",
            ),
            (
                key(json!([])).to_string(),
                "its key 1 is not of one certificate",
            ),
            (key(json!(["?"])).to_string(), "its key 1"),
            (key(json!([STANDARD.encode("x")])).to_string(), "its key 1"),
            (key(json!([STANDARD.encode(leaf)])).to_string(), "its key 1"),
            (
                key(json!([STANDARD.encode(longer)])).to_string(),
                "its key 1",
            ),
            (
                key(json!([STANDARD.encode(&good), STANDARD.encode(&good)])).to_string(),
                "its key 1",
            ),
            (many.to_string(), "65 keys"),
            (rsa, "bytes in PEM, at most 16384 are used"),
            (padded, "at most 65536 are read"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
