//! The source of certificates with a scripted Workload API at a real socket.

use std::collections::BTreeMap;
use std::pin::Pin;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use mesh_api::spiffe::wire::spiffe_workload_api_server::{
    SpiffeWorkloadApi, SpiffeWorkloadApiServer,
};
use mesh_api::spiffe::wire::{X509svid, X509svidRequest};
use mesh_runtime::admin::Readiness;
use rcgen::{CertificateParams, KeyPair, SanType};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::Stream;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;
use crate::config::IdentitySource;
use crate::config::tests::with_control_plane;
use crate::tls::Peers;
use crate::tls::tests::TestCa;

const ID: &str = "spiffe://own.test/vm";

/// Longer than anything takes that must happen.
const LIMIT: Duration = Duration::from_secs(30);

/// The responses of one call. Dropping it ends the call without a status.
type Call = mpsc::UnboundedSender<Result<X509svidResponse, Status>>;

type Responses = Pin<Box<dyn Stream<Item = Result<X509svidResponse, Status>> + Send>>;

/// An agent at a socket, which passes each call to the test.
struct Agent {
    calls: mpsc::UnboundedReceiver<Call>,
    serving: JoinSet<()>,
}

#[derive(Clone)]
struct Script(mpsc::UnboundedSender<Call>);

#[tonic::async_trait]
impl SpiffeWorkloadApi for Script {
    type FetchX509SVIDStream = Responses;

    async fn fetch_x509svid(
        &self,
        request: tonic::Request<X509svidRequest>,
    ) -> Result<tonic::Response<Responses>, Status> {
        // As servers must.
        let field = request.metadata().get("workload.spiffe.io");
        if field.is_none_or(|value| value != "true") {
            return Err(Status::invalid_argument("security header missing"));
        }
        let (call, responses) = mpsc::unbounded_channel();
        self.0
            .send(call)
            .map_err(|_ended| Status::unavailable("the test has ended"))?;
        Ok(tonic::Response::new(Box::pin(
            UnboundedReceiverStream::new(responses),
        )))
    }
}

impl Agent {
    fn listen(directory: &TempDir) -> Self {
        let listener = UnixListener::bind(directory.path().join("agent.sock")).unwrap();
        let (send, calls) = mpsc::unbounded_channel();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (io, _) = listener.accept().await.unwrap();
                let service = SpiffeWorkloadApiServer::new(Script(send.clone()));
                connections.spawn(
                    http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(io), TowerToHyperService::new(service)),
                );
            }
        });
        Self { calls, serving }
    }

    async fn call(&mut self) -> Call {
        let call = timeout(LIMIT, self.calls.recv()).await;
        call.expect("the proxy calls").unwrap()
    }

    /// Closes the socket and all connections, as an agent that ends.
    async fn stop(mut self, directory: &TempDir) {
        self.serving.shutdown().await;
        std::fs::remove_file(directory.path().join("agent.sock")).unwrap();
    }
}

struct Running {
    directory: TempDir,
    credentials: watch::Receiver<Option<Arc<Credentials>>>,
    anchors: watch::Sender<TrustAnchors>,
    readiness: Readiness,
    registry: Registry,
}

/// Starts the source. There is no agent yet.
fn start(mesh: &TestCa) -> Running {
    start_with(mesh, &[])
}

fn start_with(mesh: &TestCa, changes: &[(&str, Option<&str>)]) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let socket = format!("unix://{}/agent.sock", directory.path().display());
    let mut all = vec![
        ("IDENTITY_SPIRE_WORKLOAD_API_ADDRESS", Some(socket.as_str())),
        ("IDENTITY_SERVER_ID", Some(ID)),
        ("IDENTITY_SERVER_NAME", Some("vm.test")),
        ("IDENTITY_LOCAL_NAME", None),
        ("LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MIN", Some("1ms")),
        ("LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MAX", Some("5ms")),
    ];
    all.extend(changes);
    let config = with_control_plane(([127, 0, 0, 1], 1).into(), &all).identity;
    let IdentitySource::WorkloadApi(api) = &config.source else {
        panic!("the environment has a socket");
    };
    let registry = Registry::new();
    let readiness = Readiness::new();
    let (publish, credentials) = watch::channel(None);
    let (anchors, receive_anchors) = watch::channel(mesh.anchors());
    let published = Published::new(
        publish,
        Peers::default(),
        readiness.condition("identity"),
        &registry,
    );
    let source = WorkloadApi::new(&config, api, published, receive_anchors, &registry);
    tokio::spawn(source.run());
    Running {
        directory,
        credentials,
        anchors,
        readiness,
        registry,
    }
}

impl Running {
    /// Waits for credentials.
    async fn wait(
        &mut self,
        what: &str,
        accept: impl Fn(&Credentials) -> bool,
    ) -> Arc<Credentials> {
        let waiting = self
            .credentials
            .wait_for(|own| own.as_ref().is_some_and(|own| accept(own)));
        let found = timeout(LIMIT, waiting).await;
        let found = found.unwrap_or_else(|_elapsed| panic!("{what}: not within {LIMIT:?}"));
        found.unwrap().clone().unwrap()
    }

    async fn wait_for_anchors(&mut self, what: &str, anchors: &TrustAnchors) -> Arc<Credentials> {
        self.wait(what, |own| own.anchors() == anchors).await
    }

    fn current(&self) -> Arc<Credentials> {
        self.credentials.borrow().clone().unwrap()
    }

    fn metrics(&self) -> String {
        String::from_utf8(self.registry.encode()).unwrap()
    }

    /// Waits until a line of the metrics is there.
    async fn counted(&self, line: &str) {
        mesh_test_support::eventually::eventually_async(line, async || {
            let metrics = self.metrics();
            metrics.contains(line).then_some(()).ok_or(metrics)
        })
        .await;
    }
}

/// An identity that `ca` has issued, with its bundle.
fn svid(ca: &TestCa, name: &str) -> X509svid {
    svid_until(ca, name, SystemTime::now() + Duration::from_secs(3600))
}

fn svid_until(ca: &TestCa, name: &str, end: SystemTime) -> X509svid {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
    let request = params.serialize_request(&key).unwrap();
    let issued = ca.sign_until(request.der(), end);
    X509svid {
        spiffe_id: name.to_owned(),
        x509_svid: [vec![issued.leaf], issued.intermediates].concat().concat(),
        x509_svid_key: key.serialize_der(),
        bundle: ca.der(),
        hint: String::new(),
    }
}

fn response(svids: impl Into<Vec<X509svid>>) -> X509svidResponse {
    X509svidResponse {
        svids: svids.into(),
        ..X509svidResponse::default()
    }
}

fn with_bundles(response: X509svidResponse, bundles: &[(&str, &TestCa)]) -> X509svidResponse {
    let named = bundles
        .iter()
        .map(|(domain, ca)| (format!("spiffe://{domain}"), ca.der()));
    X509svidResponse {
        federated_bundles: BTreeMap::from_iter(named),
        ..response
    }
}

/// The anchors of `mesh` with bundles of trust domains.
fn anchors(mesh: &TestCa, bundles: &[(&str, &[u8])]) -> TrustAnchors {
    let mut domains = DomainBundles::default();
    for (domain, der) in bundles {
        domains.insert(domain, der).unwrap();
    }
    mesh.anchors().with_domains(domains)
}

#[tokio::test]
async fn first_certificate_makes_the_proxy_ready() {
    let ca = TestCa::new();
    let mut running = start(&ca);
    assert!(!running.metrics().contains("cert_expiration_timestamp"));
    // The agent starts after the proxy.
    running
        .counted("mesh_proxy_workload_api_unreachable 1\n")
        .await;
    let mut agent = Agent::listen(&running.directory);
    let call = agent.call().await;
    assert!(!running.readiness.is_ready());
    let others = [svid(&ca, "spiffe://own.test/other"), svid(&ca, ID)];
    call.send(Ok(response(others))).unwrap();
    let own = running.wait("a certificate", |_| true).await;
    assert_eq!(own.id().as_str(), ID);
    assert_eq!(own.server_name(), "vm.test");
    assert!(running.readiness.is_ready());
    let end = own
        .not_after()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    for line in [
        "control_identity_cert_refreshes_total{result=\"ok\"} 1\n",
        &format!(
            "control_identity_cert_expiration_timestamp_seconds {}\n",
            end.as_secs()
        ),
        "mesh_proxy_workload_api_unreachable 0\n",
    ] {
        running.counted(line).await;
    }
}

#[tokio::test]
async fn pushed_certificates_and_bundles_are_used_at_once() {
    let (mesh, old, new, foreign) = (TestCa::new(), TestCa::new(), TestCa::new(), TestCa::new());
    let mut running = start(&mesh);
    let mut agent = Agent::listen(&running.directory);
    let call = agent.call().await;
    let first = svid(&old, ID);
    let federated = with_bundles(response([first.clone()]), &[("foreign.test", &foreign)]);
    call.send(Ok(federated)).unwrap();
    let (old_der, foreign_der) = (old.der(), foreign.der());
    let expected = anchors(
        &mesh,
        &[("own.test", &old_der), ("foreign.test", &foreign_der)],
    );
    let own = running.wait_for_anchors("both bundles", &expected).await;
    let generation = own.generation();

    // A foreign domain that is left out is not trusted any longer. The certificate stays.
    let both = [old.der(), new.der()].concat();
    let united = X509svid {
        bundle: both.clone(),
        ..first.clone()
    };
    call.send(Ok(response([united]))).unwrap();
    let expected = anchors(&mesh, &[("own.test", &both)]);
    let own = running.wait_for_anchors("a bundle of two", &expected).await;
    assert_eq!(own.generation(), generation + 1);
    running
        .counted("control_identity_cert_refreshes_total{result=\"ok\"} 1\n")
        .await;

    call.send(Ok(response([svid(&new, ID)]))).unwrap();
    let new_der = new.der();
    let expected = anchors(&mesh, &[("own.test", &new_der)]);
    running
        .wait_for_anchors("the new root alone", &expected)
        .await;
    running
        .counted("control_identity_cert_refreshes_total{result=\"ok\"} 2\n")
        .await;
}

#[tokio::test]
async fn repeated_response_changes_nothing() {
    let ca = TestCa::new();
    let mut running = start(&ca);
    let mut agent = Agent::listen(&running.directory);
    let call = agent.call().await;
    let same = response([svid(&ca, ID)]);
    call.send(Ok(same.clone())).unwrap();
    let first = running.wait("a certificate", |_| true).await;
    call.send(Ok(same)).unwrap();
    let next = svid(&ca, ID);
    call.send(Ok(response([next]))).unwrap();
    let second = running
        .wait("another", |own| own.generation() > first.generation())
        .await;
    assert_eq!(second.generation(), first.generation() + 1);
}

#[tokio::test]
async fn unusable_responses_leave_the_last_certificate() {
    let ca = TestCa::new();
    let mut running = start(&ca);
    let mut agent = Agent::listen(&running.directory);
    let call = agent.call().await;
    let good = svid(&ca, ID);
    call.send(Ok(response([good.clone()]))).unwrap();
    let first = running.wait("a certificate", |_| true).await;
    let changed = |change: fn(&mut X509svid)| {
        let mut svid = svid(&ca, ID);
        change(&mut svid);
        response([svid])
    };
    let unusable = [
        response([]),
        response([svid(&ca, "spiffe://own.test/other")]),
        changed(|svid| svid.x509_svid.clear()),
        changed(|svid| svid.x509_svid.truncate(20)),
        changed(|svid| svid.x509_svid_key = KeyPair::generate().unwrap().serialize_der()),
        changed(|svid| svid.bundle.push(0)),
        // Of another issuer than the bundle's.
        changed(|svid| svid.bundle = TestCa::new().der()),
    ];
    let count = unusable.len();
    for response in unusable {
        call.send(Ok(response)).unwrap();
    }
    running
        .counted(&format!(
            "control_identity_cert_refreshes_total{{result=\"error\"}} {count}\n"
        ))
        .await;
    running
        .counted("mesh_proxy_workload_api_unreachable 1\n")
        .await;
    assert!(Arc::ptr_eq(&running.current(), &first));
    assert!(running.readiness.is_ready());
    // The stream has stayed open.
    call.send(Ok(response([good]))).unwrap();
    running
        .counted("mesh_proxy_workload_api_unreachable 0\n")
        .await;
    assert!(agent.calls.try_recv().is_err());
}

#[tokio::test]
async fn invalid_bundle_of_a_foreign_domain_is_left_out() {
    let (ca, foreign) = (TestCa::new(), TestCa::new());
    let mut running = start(&ca);
    let mut agent = Agent::listen(&running.directory);
    let mut federated = with_bundles(response([svid(&ca, ID)]), &[("foreign.test", &foreign)]);
    federated
        .federated_bundles
        .insert("spiffe://broken.test".to_owned(), b"x".to_vec());
    agent.call().await.send(Ok(federated)).unwrap();
    let (own, der) = (ca.der(), foreign.der());
    let expected = anchors(&ca, &[("own.test", &own), ("foreign.test", &der)]);
    running
        .wait_for_anchors("the other bundles", &expected)
        .await;
}

#[tokio::test]
async fn longer_response_than_the_limit_ends_the_stream() {
    let ca = TestCa::new();
    let mut running = start(&ca);
    let mut agent = Agent::listen(&running.directory);
    let call = agent.call().await;
    let mut large = response([svid(&ca, ID)]);
    large.crl = vec![vec![0; spiffe::MAX_RESPONSE]];
    call.send(Ok(large)).unwrap();
    let call = agent.call().await;
    assert!(running.credentials.borrow().is_none());
    let mut large = response([svid(&ca, ID)]);
    large.crl = vec![vec![0; spiffe::MAX_RESPONSE - 4096]];
    call.send(Ok(large)).unwrap();
    running.wait("a certificate", |_| true).await;
}

#[tokio::test]
async fn vanished_socket_is_connected_to_again() {
    let ca = TestCa::new();
    let mut running = start(&ca);
    let mut agent = Agent::listen(&running.directory);
    agent
        .call()
        .await
        .send(Ok(response([svid(&ca, ID)])))
        .unwrap();
    let first = running.wait("a certificate", |_| true).await;
    agent.stop(&running.directory).await;
    running
        .counted("mesh_proxy_workload_api_unreachable 1\n")
        .await;
    assert!(Arc::ptr_eq(&running.current(), &first));
    assert!(running.readiness.is_ready());
    let mut agent = Agent::listen(&running.directory);
    agent
        .call()
        .await
        .send(Ok(response([svid(&ca, ID)])))
        .unwrap();
    running
        .wait("another", |own| own.generation() > first.generation())
        .await;
    running
        .counted("mesh_proxy_workload_api_unreachable 0\n")
        .await;
}

#[tokio::test]
async fn refusal_of_an_unknown_process_is_tried_again() {
    let ca = TestCa::new();
    let mut running = start(&ca);
    let mut agent = Agent::listen(&running.directory);
    for status in [
        Status::permission_denied("no identity issued"),
        Status::unavailable("starting"),
    ] {
        agent.call().await.send(Err(status)).unwrap();
    }
    agent
        .call()
        .await
        .send(Ok(response([svid(&ca, ID)])))
        .unwrap();
    running.wait("a certificate", |_| true).await;
}

#[test]
fn only_a_server_of_another_kind_is_left_alone_for_longer() {
    for (code, decision) in [
        (Code::PermissionDenied, RetryDecision::Retry),
        (Code::Unavailable, RetryDecision::Retry),
        (Code::Unknown, RetryDecision::Retry),
        (
            Code::InvalidArgument,
            RetryDecision::RetryAfter(RETRY_MISTAKEN),
        ),
        (
            Code::Unimplemented,
            RetryDecision::RetryAfter(RETRY_MISTAKEN),
        ),
    ] {
        assert_eq!(decide(code), decision, "{code:?}");
    }
}

#[tokio::test]
async fn stream_without_a_renewal_is_opened_again() {
    let ca = TestCa::new();
    let mut running = start_with(&ca, &[("IDENTITY_MIN_REFRESH", Some("10ms"))]);
    let mut agent = Agent::listen(&running.directory);
    let lost = agent.call().await;
    let soon = svid_until(&ca, ID, SystemTime::now() + Duration::from_secs(2));
    lost.send(Ok(response([soon]))).unwrap();
    running.wait("a certificate", |_| true).await;
    let call = agent.call().await;
    call.send(Ok(response([svid(&ca, ID)]))).unwrap();
    let later = SystemTime::now() + Duration::from_secs(60);
    running
        .wait("the renewed one", |own| own.not_after() > later)
        .await;
}

#[tokio::test]
async fn changed_anchors_of_the_mesh_keep_the_bundles() {
    let (old, new, own_ca) = (TestCa::new(), TestCa::new(), TestCa::new());
    let mut running = start(&old);
    let mut agent = Agent::listen(&running.directory);
    // Before the first certificate.
    running.anchors.send_replace(new.anchors());
    let call = agent.call().await;
    let same = response([svid(&own_ca, ID)]);
    call.send(Ok(same.clone())).unwrap();
    let der = own_ca.der();
    let expected = anchors(&new, &[("own.test", &der)]);
    running.wait_for_anchors("the new anchors", &expected).await;
    running.anchors.send_replace(old.anchors());
    let expected = anchors(&old, &[("own.test", &der)]);
    running.wait_for_anchors("the old anchors", &expected).await;
    running
        .counted("control_identity_cert_refreshes_total{result=\"ok\"} 1\n")
        .await;
}
