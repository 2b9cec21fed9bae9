//! Requests to a receiver whose responses are scripted.

use std::net::SocketAddr;

use mesh_k8s::heartbeat::Observations;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;

/// A receiver that sends one response, or none.
struct Server {
    addr: SocketAddr,
    request: oneshot::Receiver<String>,
}

impl Server {
    async fn start(response: Option<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (received, request) = oneshot::channel();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            received.send(String::from_utf8(head).unwrap()).unwrap();
            match response {
                // The client closes the connection if the response is too large.
                Some(response) => drop(stream.write_all(&response).await),
                None => std::future::pending().await,
            }
        });
        Self { addr, request }
    }

    fn receiver(&self, path: &str) -> Receiver {
        format!("http://{}{path}", self.addr).parse().unwrap()
    }
}

fn response(head: &str, body: &str) -> Option<Vec<u8>> {
    let length = body.len();
    let text = format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\n\r\n{body}");
    Some(text.into_bytes())
}

fn report() -> Report {
    let observations = Observations {
        architecture: Ok("a b".to_owned()),
        config: Err(String::new()),
        kubernetes_version: Err(String::new()),
        extensions: Err(String::new()),
        service_profiles: Err(String::new()),
    };
    Report::new(&observations, Vec::new())
}

/// Returns the error, with its causes, for a response.
async fn error(response: Option<Vec<u8>>) -> String {
    let server = Server::start(response).await;
    let error = send(&server.receiver("/"), &report()).await.unwrap_err();
    mesh_runtime::log::chain(&error)
}

#[tokio::test]
async fn report_is_query_of_request_and_nothing_else_is_sent() {
    for (path, target) in [("", "/"), ("/mesh/reports", "/mesh/reports")] {
        let server = Server::start(response("204 No Content", "")).await;
        send(&server.receiver(path), &report()).await.unwrap();
        let expect = format!(
            "GET {target}?arch=a+b&source=heartbeat HTTP/1.1\r\nhost: {}\r\n\r\n",
            server.addr
        );
        assert_eq!(server.request.await.unwrap(), expect);
    }
}

#[tokio::test]
async fn responses_other_than_success_are_errors() {
    let redirection = error(response("302 Found\r\nlocation: http://127.0.0.1:1/", "")).await;
    assert!(
        redirection.contains("302 Found: redirections are not followed"),
        "{redirection}"
    );
    let refused = error(response("403 Forbidden", "no\u{1b}[2J\r\nentry\n")).await;
    assert_eq!(refused, "it responded with 403 Forbidden: no [2J  entry");
    let malformed = error(Some(b"SSH-2.0-OpenSSH\r\n".to_vec())).await;
    assert!(
        malformed.starts_with("the connection failed: "),
        "{malformed}"
    );
}

#[tokio::test]
async fn header_section_and_body_are_bounded() {
    let field = format!("200 OK\r\na: {}", "b".repeat(MAX_HEADERS));
    let large = error(response(&field, "")).await;
    assert!(large.starts_with("the connection failed: "), "{large}");

    let body = |length: usize| response("500 Internal Server Error", &"a".repeat(length));
    let shown = error(body(MAX_BODY)).await;
    assert!(
        shown.ends_with(&format!(": {}", "a".repeat(MAX_TEXT))),
        "{shown}"
    );
    let large = error(body(MAX_BODY + 1)).await;
    assert!(large.ends_with(": (no readable body)"), "{large}");
}

#[tokio::test]
async fn receiver_without_response_times_out() {
    let server = Server::start(None).await;
    let receiver = server.receiver("/");
    let sending = tokio::spawn(async move { send(&receiver, &report()).await });
    server.request.await.unwrap();
    tokio::time::pause();
    let error = sending.await.unwrap().unwrap_err().to_string();
    assert_eq!(error, "no response within 30 s");
}

#[tokio::test]
async fn closed_port_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = send(&url.parse().unwrap(), &report()).await.unwrap_err();
    let error = mesh_runtime::log::chain(&error);
    assert!(error.starts_with("cannot connect to it: "), "{error}");
}
