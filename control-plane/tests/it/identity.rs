//! Certificates over gRPC and rotation of the issuer.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mesh_api::identity::{IssuedCertificate, certify_request, issued};
use mesh_api::mesh::identity::WatchRequest;
use mesh_api::mesh::identity::trust_anchors_client::TrustAnchorsClient;
use mesh_api::proto::identity::identity_client::IdentityClient;
use mesh_cluster::certificate::pem_blocks;
use mesh_k8s::trust::{ISSUER_LABEL, ISSUER_METRIC, fingerprint};
use mesh_test_support::certificates::TestCa;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tonic::transport::Channel;
use tonic::{Code, Status};
use x509_parser::prelude::{FromDer, X509Certificate};

use mesh_test_support::controller::Controller;
use mesh_test_support::eventually::eventually_async as eventually;

use crate::messages::csr;

const IDENTITY: &str = "web.shop.serviceaccount.identity.linkerd.cluster.local";

struct Fixture {
    dir: tempfile::TempDir,
    anchor: CertifiedIssuer<'static, KeyPair>,
    signer: EcdsaKeyPair,
}

fn ca(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

impl Fixture {
    fn new() -> Self {
        let anchor =
            CertifiedIssuer::self_signed(ca("anchor"), KeyPair::generate().unwrap()).unwrap();
        let tokens = KeyPair::generate().unwrap();
        let signer =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, tokens.serialized_der())
                .unwrap();
        let fixture = Self {
            dir: tempfile::tempdir().unwrap(),
            anchor,
            signer,
        };
        fs::write(fixture.path("anchors.pem"), fixture.anchor.pem()).unwrap();
        fs::write(fixture.path("tokens.pem"), tokens.public_key_pem()).unwrap();
        fixture.write_issuer("first");
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_issuer(&self, name: &str) {
        let key = KeyPair::generate().unwrap();
        let certificate = ca(name).signed_by(&key, &self.anchor).unwrap();
        fs::write(self.path("key.pem"), key.serialize_pem()).unwrap();
        fs::write(self.path("crt.pem"), certificate.pem()).unwrap();
    }

    fn args(&self) -> Vec<String> {
        vec![
            format!("--issuer-dir={}", self.dir.path().display()),
            format!("--trust-anchors={}", self.path("anchors.pem").display()),
            format!("--token-verify-key={}", self.path("tokens.pem").display()),
        ]
    }

    fn start(&self) -> Controller {
        Controller::start("identity", "--addr", "--admin-addr", &self.args())
    }

    fn token(&self, account: &str) -> Vec<u8> {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let claims = serde_json::json!({
            "iss": "https://kubernetes.default.svc",
            "sub": format!("system:serviceaccount:{account}"),
            "aud": ["identity.l5d.io"],
            "exp": (now + Duration::from_secs(600)).as_secs(),
        });
        let part = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let signed = format!(
            "{}.{}",
            part(serde_json::json!({ "alg": "ES256" })),
            part(claims)
        );
        let random = aws_lc_rs::rand::SystemRandom::new();
        let signature = self.signer.sign(&random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)).into_bytes()
    }
}

async fn certify(
    client: &mut IdentityClient<Channel>,
    token: Vec<u8>,
    csr: Vec<u8>,
) -> Result<IssuedCertificate, Status> {
    let response = client
        .certify(certify_request(IDENTITY, token, csr))
        .await?;
    Ok(issued(response.into_inner()).unwrap())
}

#[tokio::test]
async fn changed_trust_anchors_are_sent_with_a_higher_number() {
    let fixture = Fixture::new();
    let args = [fixture.args(), vec!["--publish-trust-roots".to_owned()]].concat();
    let controller = Controller::start("identity", "--addr", "--admin-addr", &args);
    let mut client = TrustAnchorsClient::new(controller.channel().await);
    let mut stream = client.watch(WatchRequest {}).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    assert_eq!(first.anchors, fixture.anchor.pem());
    let both = format!("{}{}", fixture.anchor.pem(), TestCa::new().anchor_pem());
    fs::write(fixture.path("anchors.pem"), &both).unwrap();
    let second = stream.message().await.unwrap().unwrap();
    assert!(second.number > first.number);
    assert_eq!(second.anchors, both);

    let silent = fixture.start();
    let mut client = TrustAnchorsClient::new(silent.channel().await);
    let refused = client.watch(WatchRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
}

fn issuer_of(issued: &IssuedCertificate) -> String {
    let (_, leaf) = X509Certificate::from_der(&issued.leaf).unwrap();
    let name = leaf.issuer().iter_common_name().next().unwrap();
    name.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn certificates_are_issued_and_invalid_requests_rejected() {
    let fixture = Fixture::new();
    let controller = fixture.start();
    let mut client = IdentityClient::new(controller.channel().await);
    let granted = certify(&mut client, fixture.token("shop:web"), csr(IDENTITY))
        .await
        .unwrap();
    let (_, leaf) = X509Certificate::from_der(&granted.leaf).unwrap();
    let (_, issuer) = X509Certificate::from_der(&granted.intermediates[0]).unwrap();
    assert_eq!(leaf.issuer(), issuer.subject());
    let life = granted
        .valid_until
        .duration_since(SystemTime::now())
        .unwrap();
    assert!(life > Duration::from_secs(23 * 3600), "{life:?}");

    let mut refused =
        async |token: Vec<u8>, csr: Vec<u8>| certify(&mut client, token, csr).await.unwrap_err();
    let token = || fixture.token("shop:web");
    for (token, csr, code) in [
        (Vec::new(), csr(IDENTITY), Code::InvalidArgument),
        (token(), b"x".to_vec(), Code::InvalidArgument),
        (b"x".to_vec(), csr(IDENTITY), Code::InvalidArgument),
        (token(), csr("other.example"), Code::FailedPrecondition),
    ] {
        assert_eq!(refused(token, csr).await.code(), code);
    }
    let other = refused(fixture.token("shop:other"), csr(IDENTITY)).await;
    assert_eq!(other.code(), Code::FailedPrecondition);
    assert!(
        other.message().contains("other.shop.serviceaccount"),
        "{other}"
    );
    let huge = refused(token(), vec![0x30; 1 << 20]).await;
    assert_eq!(huge.code(), Code::OutOfRange, "{huge}");

    let (_, metrics) = controller.admin_get("/metrics").unwrap();
    for name in [
        "issuer_cert_ttl_seconds ",
        "mesh_trust_anchors_ttl_seconds ",
    ] {
        let mut lines = metrics.lines();
        let ttl: f64 = lines
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .parse()
            .unwrap();
        assert!(ttl > 3600.0, "{name}{ttl}");
    }
    for secret in [token(), granted.leaf] {
        let secret = String::from_utf8_lossy(&secret).into_owned();
        assert!(!metrics.contains(&secret));
    }
}

#[tokio::test]
async fn valid_issuer_is_reloaded_and_invalid_one_is_not() {
    let fixture = Fixture::new();
    let controller = fixture.start();
    let mut client = IdentityClient::new(controller.channel().await);
    let mut issuer = async || {
        let issued = certify(&mut client, fixture.token("shop:web"), csr(IDENTITY)).await;
        issuer_of(&issued.unwrap())
    };
    assert_eq!(issuer().await, "first");
    let loaded = || {
        let (_, metrics) = controller.admin_get("/metrics").unwrap();
        let mut lines = metrics.lines();
        let line = lines.find(|line| line.starts_with(ISSUER_METRIC)).unwrap();
        let text = fs::read_to_string(fixture.path("crt.pem")).unwrap();
        let current = fingerprint(&pem_blocks(&text)[0].der);
        line.starts_with(&format!("{ISSUER_METRIC}{{{ISSUER_LABEL}=\"{current}\"}} "))
    };
    assert!(loaded());
    fs::write(fixture.path("crt.pem"), fixture.anchor.pem()).unwrap();
    controller.logged("keeping the previous ones").await;
    assert_eq!(issuer().await, "first");
    // The issuer of the file is not in use.
    assert!(!loaded());
    fixture.write_issuer("second");
    eventually("the second issuer", async || issuer().await == "second").await;
    assert!(loaded());
}

#[tokio::test]
async fn startup_fails_with_untrusted_issuer() {
    let fixture = Fixture::new();
    let other = TestCa::new();
    fs::write(fixture.path("anchors.pem"), other.anchor_pem()).unwrap();
    let mut controller = fixture.start();
    assert!(!controller.program.exited().await.success());
    let line = controller.logged("cannot start the identity service").await;
    assert!(
        line.contains("crt.pem") && line.contains("belong together"),
        "{line}"
    );
    fs::remove_file(fixture.path("tokens.pem")).unwrap();
    let mut controller = fixture.start();
    assert!(!controller.program.exited().await.success());
    let line = controller.logged("cannot start the identity service").await;
    assert!(
        line.contains("cannot read") && line.contains("tokens.pem"),
        "{line}"
    );
}
