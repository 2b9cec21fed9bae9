//! The server as API servers use it: real TLS, HTTP/1 and HTTP/2, and bodies of every kind.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::{
    certificate::{Pair, make},
    *,
};

mod tls;

use self::tls::Client;

const NAME: &str = "injector.linkerd.svc";

/// A server on loopback, and what is needed to talk to it.
struct Server {
    addr: SocketAddr,
    authority: String,
    serving: Arc<Serving>,
    drain: drain::Drain,
}

impl Server {
    async fn start(reviewer: impl Reviewer + 'static) -> Self {
        let made = make(&[NAME.to_owned()], SystemTime::now()).unwrap();
        let pair = Pair::read(made.certificate_pem.as_bytes(), made.key_pem.as_bytes()).unwrap();
        let serving = Arc::new(Serving::default());
        serving.set(&pair).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (drain, watch) = drain::channel();
        tokio::spawn(serve(listener, serving.clone(), Arc::new(reviewer), watch));
        Self {
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

/// Warns of the object's name; an object without one is a fault, which denies.
struct Names;

impl Reviewer for Names {
    fn review(&self, review: Review) -> Answer<'_> {
        Box::pin(async move {
            let name = review
                .object
                .pointer("/metadata/name")
                .and_then(Value::as_str);
            let name = name.ok_or("the object has no name")?;
            Ok(Verdict {
                warnings: vec![name.to_owned()],
                ..Verdict::allow()
            })
        })
    }

    fn failed(&self, problem: String) -> Verdict {
        Verdict::deny(problem)
    }
}

/// Never comes to a verdict.
struct Never;

impl Reviewer for Never {
    fn review(&self, _review: Review) -> Answer<'_> {
        Box::pin(std::future::pending())
    }

    fn failed(&self, problem: String) -> Verdict {
        Verdict {
            warnings: vec![problem],
            ..Verdict::allow()
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
async fn reviews_are_answered_over_both_versions_of_http() {
    let server = Server::start(Names).await;
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
async fn what_is_no_review_is_refused_with_a_reason() {
    let server = Server::start(Names).await;
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
async fn every_review_is_answered_with_a_review() {
    let server = Server::start(Names).await;
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
async fn a_review_that_takes_too_long_is_answered_before_the_api_server_gives_up() {
    let server = Server::start(Never).await;
    let mut client = server.client(true).await;
    // Only now, because connecting takes real time.
    tokio::time::pause();
    let (status, text) = client.post("/", review(&json!({}))).await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(
        answer["response"]["warnings"],
        json!(["no answer within 8 s"])
    );
}

#[tokio::test]
async fn the_certificate_changes_under_the_server() {
    let server = Server::start(Names).await;
    let made = make(&[NAME.to_owned()], SystemTime::now()).unwrap();
    let pair = Pair::read(made.certificate_pem.as_bytes(), made.key_pem.as_bytes()).unwrap();
    server.serving.set(&pair).unwrap();
    let old = Client::connect(server.addr, NAME, &server.authority, true).await;
    assert!(old.is_err());
    let new = Client::connect(server.addr, NAME, &made.authority_pem, true).await;
    assert!(new.is_ok());
}

#[tokio::test]
async fn a_stopping_server_takes_connections_a_little_longer() {
    let server = Server::start(Names).await;
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
