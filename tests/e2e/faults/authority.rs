//! Certificates for faults: issuers signed by the mesh's trust anchor that are valid, expired, not
//! yet valid, about to expire or of the wrong kind, and one with another anchor.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, DnValue, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, SignatureAlgorithm,
};

use super::shell::Shell;

const DAY: i64 = 24 * 3600;

/// Writes each pair into a directory of its name, as `crt.pem` and `key.pem`; a valid one into the
/// shell's directory.
pub(super) fn write_certificates(shell: &Shell) {
    for entry in ["crt", "key"] {
        shell.run(&format!(
            "kubectl -n linkerd get secret linkerd-trust-anchor -o jsonpath='{{.data.tls\\.{entry}}}' | base64 -d > anchor.{entry}"
        ));
    }
    let directory = shell.directory();
    let read = |name: &str| fs::read_to_string(directory.join(name)).expect("the anchor is there");
    let key = KeyPair::from_pem(&read("anchor.key")).expect("the anchor's key");
    let anchor = Issuer::from_ca_cert_pem(&read("anchor.crt"), key).expect("the anchor");

    let p256 = &PKCS_ECDSA_P256_SHA256;
    let issue = |name: &str, from: i64, to: i64| {
        write(&directory.join(name), from, to, p256, Some(&anchor));
    };
    issue("", -1, 365);
    issue("expired", -300, -1);
    issue("tomorrow", 1, 365);
    issue("ending", -300, 10);
    let p384 = &PKCS_ECDSA_P384_SHA384;
    write(&directory.join("p384"), -1, 365, p384, Some(&anchor));
    write(&directory.join("stranger"), -1, 365, p256, None);
    write_server(&directory.join("server"), &anchor);
    write(&directory.join("old"), -300, -1, p256, None);
}

/// Writes a server certificate, which cannot sign others.
fn write_server(directory: &Path, signer: &Issuer<'_, KeyPair>) {
    let key = KeyPair::generate().expect("a key");
    let name = "identity.linkerd.cluster.local";
    let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
    params.not_before = day(-1).into();
    params.not_after = day(365).into();
    let certificate = params.signed_by(&key, signer).expect("a certificate").pem();
    write_pair(directory, &certificate, &key);
}

/// Writes a CA certificate valid between these days from now, self-signed without a `signer`.
fn write(
    directory: &Path,
    from: i64,
    to: i64,
    kind: &'static SignatureAlgorithm,
    signer: Option<&Issuer<'_, KeyPair>>,
) {
    let key = KeyPair::generate_for(kind).expect("a key");
    let name = "identity.linkerd.cluster.local";
    let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
    let subject = DnValue::Utf8String(name.to_owned());
    params.distinguished_name.push(DnType::CommonName, subject);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = day(from).into();
    params.not_after = day(to).into();
    let certificate = match signer {
        Some(signer) => params.signed_by(&key, signer),
        None => params.self_signed(&key),
    };
    let certificate = certificate.expect("a certificate").pem();
    write_pair(directory, &certificate, &key);
}

fn write_pair(directory: &Path, certificate: &str, key: &KeyPair) {
    fs::create_dir_all(directory).expect("a directory");
    fs::write(directory.join("crt.pem"), certificate).expect("the certificate is written");
    fs::write(directory.join("key.pem"), key.serialize_pem()).expect("the key is written");
}

fn day(from_now: i64) -> SystemTime {
    let span = Duration::from_secs((from_now * DAY).unsigned_abs());
    match from_now {
        0.. => SystemTime::now() + span,
        _ => SystemTime::now() - span,
    }
}
