//! The server with real TLS, HTTP/1 and HTTP/2, and valid and invalid bodies.

use std::time::SystemTime;

use serde_json::{Value, json};

use tokio::sync::mpsc;

use self::tls::Client;
use super::certificate::{CertificateAndKey, generate};
use super::*;

mod tls;

const NAME: &str = "injector.linkerd.svc";

/// A server on loopback, with its CA.
struct Server {
    addr: SocketAddr,
    authority: String,
    serving: Arc<ServingCertificate>,
    requests: Arc<Semaphore>,
    drain: drain::Drain,
}

impl Server {
    async fn start(reviewer: impl Reviewer + 'static) -> Self {
        let made = generate(&[NAME.to_owned()], SystemTime::now()).unwrap();
        let pair =
            CertificateAndKey::read(made.certificate_pem.as_bytes(), made.key_pem.as_bytes())
                .unwrap();
        let serving = Arc::new(ServingCertificate::default());
        serving.set(&pair).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (drain, watch) = drain::channel();
        let server = WebhookServer::new(serving.clone(), Arc::new(reviewer), watch);
        let requests = server.requests.clone();
        tokio::spawn(server.serve(listener));
        Self {
            requests,
            addr,
            authority: made.authority_pem,
            serving,
            drain,
        }
    }

    async fn client(&self, http2: bool) -> Client {
        Client::connect(self.addr, NAME, &self.authority, http2)
            .await
            .unwrap()
    }
}

/// Returns the object's name as a warning; fails for an object without name, which denies it.
struct NameReviewer;

impl Reviewer for NameReviewer {
    fn review(&self, review: AdmissionRequest) -> ReviewFuture<'_> {
        Box::pin(async move {
            let object: Value = review.object()?;
            let name = object.pointer("/metadata/name").and_then(Value::as_str);
            let name = name.ok_or("the object has no name")?;
            Ok(AdmissionDecision {
                warnings: vec![name.to_owned()],
                ..AdmissionDecision::allow()
            })
        })
    }

    fn failed(&self, problem: String) -> AdmissionDecision {
        AdmissionDecision::deny(problem)
    }
}

/// Never decides.
struct PendingReviewer;

impl Reviewer for PendingReviewer {
    fn review(&self, _review: AdmissionRequest) -> ReviewFuture<'_> {
        Box::pin(std::future::pending())
    }

    fn failed(&self, problem: String) -> AdmissionDecision {
        AdmissionDecision {
            warnings: vec![problem],
            ..AdmissionDecision::allow()
        }
    }
}

fn review(object: &Value) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "object": object},
    })
    .to_string()
}

#[tokio::test]
async fn reviews_succeed_over_http1_and_http2() {
    let server = Server::start(NameReviewer).await;
    for http2 in [false, true] {
        let mut client = server.client(http2).await;
        // One connection, several reviews, any path.
        for name in ["a", "b"] {
            let body = review(&json!({"metadata": {"name": name}}));
            let (status, text) = client.post(&format!("/{name}"), body).await;
            assert_eq!(status, StatusCode::OK);
            let answer: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(answer["response"]["warnings"], json!([name]));
            assert_eq!(answer["response"]["allowed"], json!(true));
        }
    }
}

#[tokio::test]
async fn invalid_reviews_get_http_error_with_reason() {
    let server = Server::start(NameReviewer).await;
    let mut client = server.client(true).await;
    let mut check = async |body: String, status: StatusCode, reason: &str| {
        let (got, text) = client.post("/", body).await;
        assert_eq!(got, status, "{text}");
        assert!(text.contains(reason), "{text}");
    };
    check(String::new(), StatusCode::OK, "").await;
    check("{".into(), StatusCode::BAD_REQUEST, "not the JSON").await;
    check("{}".into(), StatusCode::BAD_REQUEST, "apiVersion").await;
    let large = "x".repeat(MAX_BODY + 1);
    check(large, StatusCode::PAYLOAD_TOO_LARGE, "larger than 10 MiB").await;
}

#[tokio::test]
async fn header_section_above_the_limit_is_refused() {
    let server = Server::start(NameReviewer).await;
    let check = async |path_bytes: usize, status: StatusCode| {
        let body = review(&json!({"metadata": {"name": "a"}}));
        let path = format!("/{}", "x".repeat(path_bytes));
        let (got, text) = server.client(false).await.post(&path, body).await;
        assert_eq!(got, status, "{text}");
    };
    check(MAX_HEADERS - 200, StatusCode::OK).await;
    // The rest of the section is longer than that.
    let beyond = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    check(MAX_HEADERS - 50, beyond).await;
}

#[tokio::test]
async fn response_to_failed_or_yaml_review_is_review() {
    let server = Server::start(NameReviewer).await;
    let mut client = server.client(true).await;
    let (status, text) = client.post("/", review(&json!({}))).await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_str(&text).unwrap();
    let response = &answer["response"];
    assert_eq!(
        (&response["uid"], &response["allowed"]),
        (&json!("u"), &json!(false))
    );
    assert_eq!(response["status"]["message"], "the object has no name");
    let given: Value = serde_json::from_str(&review(&json!({"metadata": {"name": "a"}}))).unwrap();
    let (status, text) = client
        .post("/", serde_norway::to_string(&given).unwrap())
        .await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["response"]["warnings"], json!(["a"]));
}

#[tokio::test]
async fn slow_review_gets_response_before_timeout_of_api_server() {
    let server = Server::start(PendingReviewer).await;
    let mut client = server.client(true).await;
    // After connecting, which takes real time.
    tokio::time::pause();
    let (status, text) = client.post("/", review(&json!({}))).await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(
        answer["response"]["warnings"],
        json!(["no response within 8 s"])
    );
}

#[tokio::test]
async fn replaced_certificate_is_used_for_new_connections() {
    let server = Server::start(NameReviewer).await;
    let made = generate(&[NAME.to_owned()], SystemTime::now()).unwrap();
    let pair =
        CertificateAndKey::read(made.certificate_pem.as_bytes(), made.key_pem.as_bytes()).unwrap();
    server.serving.set(&pair).unwrap();
    let old = Client::connect(server.addr, NAME, &server.authority, true).await;
    assert!(old.is_err());
    let new = Client::connect(server.addr, NAME, &made.authority_pem, true).await;
    assert!(new.is_ok());
}

#[tokio::test]
async fn server_accepts_connections_for_some_time_during_shutdown() {
    let server = Server::start(NameReviewer).await;
    let mut early = server.client(false).await;
    let drained = tokio::spawn(server.drain.drain(Duration::from_secs(60)));
    tokio::task::yield_now().await;
    let mut late = Client::connect(server.addr, NAME, &server.authority, false)
        .await
        .unwrap();
    for client in [&mut early, &mut late] {
        let (status, _) = client
            .post("/", review(&json!({"metadata": {"name": "a"}})))
            .await;
        assert_eq!(status, StatusCode::OK);
    }
    tokio::time::pause();
    assert_eq!(drained.await.unwrap(), drain::Outcome::Complete);
}

/// Announces each review, and decides when it is told to.
struct HeldReviewer {
    begun: mpsc::UnboundedSender<()>,
    release: Arc<Semaphore>,
}

impl Reviewer for HeldReviewer {
    fn review(&self, _review: AdmissionRequest) -> ReviewFuture<'_> {
        Box::pin(async move {
            self.begun.send(()).unwrap();
            let _released = self.release.acquire().await.unwrap();
            Ok(AdmissionDecision::allow())
        })
    }

    fn failed(&self, problem: String) -> AdmissionDecision {
        AdmissionDecision::deny(problem)
    }
}

#[tokio::test]
async fn large_reviews_in_flight_are_bounded_and_small_ones_still_pass() {
    let (begun, mut reviews) = mpsc::unbounded_channel();
    let release = Arc::new(Semaphore::new(0));
    let server = Server::start(HeldReviewer {
        begun,
        release: release.clone(),
    })
    .await;
    let large = || review(&json!({"padding": "x".repeat(MAX_BODY - 1024)}));
    let mut posts = Vec::new();
    for _ in 0..memory::POOL / MAX_BODY {
        let mut client = server.client(false).await;
        posts.push(tokio::spawn(async move { client.post("/", large()).await }));
        reviews.recv().await.unwrap();
    }
    let mut client = server.client(false).await;
    let (status, text) = client.post("/", large()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
    assert!(text.contains("more than 64 MiB"), "{text}");
    let mut client = server.client(false).await;
    posts.push(tokio::spawn(async move {
        client.post("/", review(&json!({}))).await
    }));
    reviews.recv().await.unwrap();
    release.add_permits(1);
    for post in posts {
        assert_eq!(post.await.unwrap().0, StatusCode::OK);
    }
}

/// Denies each object with a long reason.
struct LongReviewer;

impl Reviewer for LongReviewer {
    fn review(&self, _review: AdmissionRequest) -> ReviewFuture<'_> {
        Box::pin(async { Ok(AdmissionDecision::deny("x".repeat(8 << 20))) })
    }

    fn failed(&self, problem: String) -> AdmissionDecision {
        AdmissionDecision::deny(problem)
    }
}

#[tokio::test]
async fn unread_responses_count_until_their_connection_is_closed() {
    let server = Server::start(LongReviewer).await;
    let mut clients = Vec::new();
    // No byte, the first byte, the bytes that fit into the buffers of the kernel.
    for window in [Some(0), Some(1), None] {
        let http2 = window.is_some();
        let stream = tls::tls(server.addr, NAME, &server.authority, http2);
        let stream = stream.await.unwrap();
        clients.push(match window {
            Some(_) => Client::http2(stream, window).await,
            None => Client::http1(stream).await,
        });
    }
    let mut responses = Vec::new();
    for client in &mut clients {
        let response = client.send("/", review(&json!({}))).await;
        assert_eq!(response.status(), StatusCode::OK);
        responses.push(response);
    }
    assert_eq!(server.requests.available_permits(), MAX_REQUESTS - 3);
    // One that is read does not count.
    let (status, text) = server
        .client(true)
        .await
        .post("/", review(&json!({})))
        .await;
    assert_eq!((status, text.len() > 8 << 20), (StatusCode::OK, true));
    assert_eq!(server.requests.available_permits(), MAX_REQUESTS - 3);
    // The clients do not read before: with a window of one byte that would not end.
    tokio::time::pause();
    tokio::time::sleep(2 * SENDING).await;
    for response in responses {
        let read = response.into_body().collect().await;
        assert!(read.is_err(), "the connection is closed");
    }
    assert_eq!(server.requests.available_permits(), MAX_REQUESTS);
}

#[tokio::test]
async fn idle_connections_do_not_keep_out_an_api_server() {
    let server = Server::start(NameReviewer).await;
    let mut idle = Vec::new();
    // With and without a handshake.
    for number in 0..MAX_CONNECTIONS + 8 {
        if number % 8 == 0 {
            let stream = tls::tls(server.addr, NAME, &server.authority, true);
            idle.push((None, Some(Client::http2(stream.await.unwrap(), None).await)));
        } else {
            idle.push((Some(TcpStream::connect(server.addr).await.unwrap()), None));
        }
    }
    for http2 in [false, true] {
        let body = review(&json!({"metadata": {"name": "a"}}));
        let reviewed = async { server.client(http2).await.post("/", body).await };
        let reviewed = tokio::time::timeout(Duration::from_secs(60), reviewed);
        assert_eq!(reviewed.await.expect("it gets in").0, StatusCode::OK);
    }
}

#[tokio::test]
async fn object_too_large_in_memory_is_decided_by_the_failure_policy() {
    let server = Server::start(NameReviewer).await;
    let object = json!({"metadata": vec![json!({"": 0}); 170_000]});
    let (status, text) = server.client(true).await.post("/", review(&object)).await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_str(&text).unwrap();
    let message = answer["response"]["status"]["message"].as_str().unwrap();
    assert!(message.contains("more than 32 MiB of memory"), "{message}");
    // The memory has been returned.
    for _ in 0..4 {
        let (status, text) = server.client(true).await.post("/", review(&object)).await;
        assert_eq!((status, text.contains("32 MiB")), (StatusCode::OK, true));
    }
}
