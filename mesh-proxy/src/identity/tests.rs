//! The certifier with a fake identity service.

use std::io::Write as _;
use std::sync::Arc;

use mesh_api::proto::identity::CertifyRequest;
use mesh_runtime::admin::Readiness;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::*;
use crate::config::tests::with_control_plane;
use crate::control::dns::Resolver;
use crate::tests::fake_control_plane::{Call, ControlPlane};
use crate::tls::tests::TestCa;

struct Running {
    control: ControlPlane,
    credentials: watch::Receiver<Option<Arc<Credentials>>>,
    anchors: watch::Sender<TrustAnchors>,
    readiness: Readiness,
    registry: Registry,
    token: tempfile::NamedTempFile,
}

async fn start(ca: &TestCa) -> Running {
    start_with(ca, &[]).await
}

async fn start_with(ca: &TestCa, changes: &[(&str, Option<&str>)]) -> Running {
    let control = ControlPlane::start().await;
    let mut token = tempfile::NamedTempFile::new().unwrap();
    token.write_all(b"token-1").unwrap();
    let path = token.path().to_str().unwrap();
    let token_file = ("IDENTITY_TOKEN_FILE", Some(path));
    let config = with_control_plane(control.addr, &[&[token_file], changes].concat());
    let registry = Registry::new();
    let resolver = Resolver::from_system(&config.control, &registry).unwrap();
    let (publish, credentials) = watch::channel(None);
    let (anchors, receive_anchors) = watch::channel(ca.anchors());
    let trust = Trust::Anonymous(credentials.clone(), receive_anchors.clone());
    let IdentitySource::Service(service) = &config.identity.source else {
        panic!("the environment has a token");
    };
    let options = &config.control;
    let client = Client::new(
        "identity",
        &service.addr,
        options,
        trust,
        &resolver,
        &registry,
    );
    let readiness = Readiness::new();
    let published = Published::new(
        publish,
        Peers::default(),
        readiness.condition("identity"),
        &registry,
    );
    let certifier = Certifier::new(
        &config.identity,
        service,
        client,
        published,
        receive_anchors,
    );
    tokio::spawn(certifier.run());
    Running {
        control,
        credentials,
        anchors,
        readiness,
        registry,
        token,
    }
}

type Certify = Call<CertifyRequest, mesh_api::proto::identity::CertifyResponse>;

fn sign(ca: &TestCa, call: Certify) {
    sign_until(ca, call, SystemTime::now() + Duration::from_secs(3600));
}

fn sign_until(ca: &TestCa, call: Certify, end: SystemTime) {
    let issued = ca.sign_until(&call.request.certificate_signing_request, end);
    call.answer(mesh_api::identity::to_proto(
        &mesh_api::identity::IssuedCertificate {
            leaf: issued.leaf,
            intermediates: issued.intermediates,
            valid_until: end,
        },
    ));
}

#[tokio::test]
async fn each_request_uses_the_current_token() {
    let ca = TestCa::new();
    let mut running = start(&ca).await;
    let call = running.control.certify.recv().await.unwrap();
    assert_eq!(call.request.token, b"token-1");
    let name = "web.shop.serviceaccount.identity.linkerd.cluster.local";
    assert_eq!(call.request.identity, name);
    assert!(!running.readiness.is_ready());
    std::fs::write(running.token.path(), "token-2").unwrap();
    call.refuse(Status::unavailable("starting"));
    let call = running.control.certify.recv().await.unwrap();
    assert_eq!(call.request.token, b"token-2");
    sign(&ca, call);
    let certified = running
        .credentials
        .wait_for(Option::is_some)
        .await
        .unwrap()
        .clone();
    assert_eq!(certified.unwrap().id().as_str(), name);
    assert!(running.readiness.is_ready());
    let text = String::from_utf8(running.registry.encode()).unwrap();
    for line in [
        "control_identity_cert_refreshes_total{result=\"ok\"} 1\n",
        "control_identity_cert_refreshes_total{result=\"error\"} 1\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[tokio::test]
async fn refusal_with_malformed_details_is_tried_again() {
    let ca = TestCa::new();
    let mut running = start(&ca).await;
    let call = running.control.certify.recv().await.unwrap();
    let mut fields = http::HeaderMap::new();
    fields.insert("grpc-status-details-bin", "%%%".parse().unwrap());
    let details = MetadataMap::from_headers(fields);
    call.refuse(Status::with_metadata(Code::Unavailable, "no", details));
    let retry = timeout(Duration::from_secs(20), running.control.certify.recv());
    sign(&ca, retry.await.expect("the certifier lives").unwrap());
    running.credentials.wait_for(Option::is_some).await.unwrap();
}

#[tokio::test]
async fn short_lived_certificate_is_renewed_with_a_new_key() {
    let ca = TestCa::new();
    let mut running = start_with(&ca, &[("IDENTITY_MIN_REFRESH", Some("10ms"))]).await;
    let call = running.control.certify.recv().await.unwrap();
    let first = call.request.certificate_signing_request.clone();
    let end = SystemTime::now() + Duration::from_secs(3);
    sign_until(&ca, call, end);
    let renewal = timeout(Duration::from_secs(20), running.control.certify.recv());
    let call = renewal.await.expect("the certificate is renewed").unwrap();
    assert_ne!(call.request.certificate_signing_request, first);
    assert!(running.readiness.is_ready(), "the first one stays in use");
    sign(&ca, call);
}

#[tokio::test]
async fn certificate_that_peers_would_reject_is_not_used() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let mut running = start(&ca).await;
    let call = running.control.certify.recv().await.unwrap();
    let first_request = call.request.certificate_signing_request.clone();
    sign(&other, call);
    let call = running.control.certify.recv().await.unwrap();
    assert!(running.credentials.borrow().is_none());
    assert_ne!(
        call.request.certificate_signing_request, first_request,
        "a new key"
    );
    sign(&ca, call);
    running.credentials.wait_for(Option::is_some).await.unwrap();
}

#[tokio::test]
async fn changed_anchors_are_applied_while_running() {
    let (old, new) = (TestCa::new(), TestCa::new());
    let mut running = start(&old).await;
    sign(&old, running.control.certify.recv().await.unwrap());
    let credentials = &mut running.credentials;
    credentials.wait_for(Option::is_some).await.unwrap();

    // Both roots: the certificate stays.
    let both = TrustAnchors::from_pem(&format!("{}{}", old.pem, new.pem)).unwrap();
    running.anchors.send_replace(both.clone());
    let own = credentials.wait_for(|own| own.as_ref().is_some_and(|own| *own.anchors() == both));
    assert_eq!(own.await.unwrap().as_ref().unwrap().generation(), 2);
    assert!(running.control.certify.try_recv().is_err());

    // Only the new root: another certificate is required.
    running.anchors.send_replace(new.anchors());
    let call = running.control.certify.recv().await.unwrap();
    assert!(
        credentials
            .borrow()
            .as_ref()
            .is_some_and(|own| *own.anchors() == both)
    );
    sign(&new, call);
    let adopted = |own: &Option<Arc<Credentials>>| {
        own.as_ref()
            .is_some_and(|own| *own.anchors() == new.anchors())
    };
    credentials.wait_for(adopted).await.unwrap();
}
