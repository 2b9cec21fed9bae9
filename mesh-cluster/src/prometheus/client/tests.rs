//! The client with a server whose responses are scripted.

use std::fmt::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;

/// A server that gives one response to each request, and then none.
struct Server {
    url: String,
    requests: mpsc::UnboundedReceiver<String>,
}

impl Server {
    async fn start(responses: Vec<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/prom/", listener.local_addr().unwrap());
        let (received, requests) = mpsc::unbounded_channel();
        // Locked while a response is taken.
        let responses = Arc::new(Mutex::new(responses.into_iter()));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (received, responses) = (received.clone(), responses.clone());
                tokio::spawn(async move {
                    while let Some(request) = read_request(&mut stream).await {
                        let _ = received.send(request);
                        let response = responses.lock().next();
                        match response {
                            // The client closes the connection if the response is too large.
                            Some(response) => drop(stream.write_all(&response).await),
                            None => std::future::pending::<()>().await,
                        }
                    }
                });
            }
        });
        Self { url, requests }
    }

    fn client(&self, credentials: Option<CredentialFiles>) -> PrometheusClient {
        PrometheusClient::new(&self.url, credentials, &Registry::new()).unwrap()
    }
}

/// Returns the next request; `None` when the client has closed the connection.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        let Some((headers, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = headers
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().unwrap());
        if body.len() >= length {
            return Some(text);
        }
    }
    None
}

fn response(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

fn vector() -> Vec<u8> {
    let body = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"pod":"a"},"value":[1,"2"]}]}}"#;
    response("200 OK", body)
}

#[tokio::test]
async fn query_is_posted_with_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let credentials = CredentialFiles {
        user: file("user", "mesh\n"),
        password: file("password", "secret"),
    };
    credentials.check().await.unwrap();
    let mut server = Server::start(vec![vector(), vector()]).await;
    let client = server.client(Some(credentials));
    let samples = client.query(r#"sum(a{b="c"})"#).await.unwrap();
    assert_eq!(samples[0].count(), 2);
    let request = server.requests.recv().await.unwrap();
    assert!(
        request.starts_with("POST /prom/api/v1/query HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.ends_with("query=sum%28a%7Bb%3D%22c%22%7D%29"),
        "{request}"
    );
    assert!(
        request.contains("authorization: Basic bWVzaDpzZWNyZXQ=\r\n"),
        "{request}"
    );
    // A changed Secret is used.
    file("password", "other");
    client.query("a").await.unwrap();
    let request = server.requests.recv().await.unwrap();
    assert!(
        request.contains("authorization: Basic bWVzaDpvdGhlcg==\r\n"),
        "{request}"
    );
}

#[tokio::test]
async fn errors_name_url_and_status() {
    let rejected = r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#;
    let server = Server::start(vec![
        response("503 Service Unavailable", "starting\n"),
        response("400 Bad Request", rejected),
        response("200 OK", "<html>"),
    ])
    .await;
    let client = server.client(None);
    let url = format!("{}api/v1/query", server.url);
    for expect in [
        "it responded with 503 Service Unavailable: starting",
        "it responded with 400 Bad Request: bad_data: parse error",
        "its response is not one of Prometheus' HTTP API",
    ] {
        let error = client.query("a").await.unwrap_err().to_string();
        let expect = format!("cannot query Prometheus at {url}: {expect}");
        assert!(error.starts_with(&expect), "{error}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let client = PrometheusClient::new(&url, None, &Registry::new()).unwrap();
    let error = client.query("a").await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("cannot query Prometheus at {url}/api/v1/query: ")),
        "{error}"
    );
    assert!(error.contains("refused"), "{error}");
}

#[tokio::test]
async fn query_without_response_times_out() {
    let mut server = Server::start(vec![vector()]).await;
    let client = server.client(None);
    client.query("a").await.unwrap();
    server.requests.recv().await.unwrap();
    let query = tokio::spawn(async move { client.query("b").await });
    server.requests.recv().await.unwrap();
    tokio::time::pause();
    let error = query.await.unwrap().unwrap_err().to_string();
    assert!(error.ends_with(": no response within 10 s"), "{error}");
}

#[tokio::test]
async fn queries_and_responses_are_bounded() {
    let mut large = String::new();
    write!(
        large,
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
        MAX_BODY + 1
    )
    .unwrap();
    let mut large = large.into_bytes();
    large.resize(large.len() + MAX_BODY + 1, b' ');
    let server = Server::start(vec![large]).await;
    let client = server.client(None);
    let error = client.query("a").await.unwrap_err().to_string();
    assert!(error.contains("larger than 32 MiB"), "{error}");
    let error = client.query(&"a".repeat(MAX_QUERY + 1)).await.unwrap_err();
    assert!(error.to_string().contains("the query is longer"), "{error}");
}

#[tokio::test]
async fn scrape_interval_is_optional() {
    let body = r#"{"status":"success","data":{"yaml":"global:\n  scrape_interval: 10s\n"}}"#;
    let server = Server::start(vec![
        response("200 OK", body),
        response("404 Not Found", ""),
    ])
    .await;
    let client = server.client(None);
    assert_eq!(client.scrape_interval().await.as_deref(), Some("10s"));
    assert_eq!(client.scrape_interval().await, None);
}

#[test]
fn urls_without_http_or_with_credentials_are_refused() {
    for (url, problem) in [
        ("prometheus:9090", "scheme must be http"),
        ("https://prometheus", "scheme must be http"),
        ("http://user:secret@prometheus", "--prometheus-user-file"),
        ("http://prometheus/?a", "query"),
        ("http://", "invalid"),
    ] {
        let error = parse_url(url).unwrap_err().to_string();
        assert!(error.contains(problem), "{url}: {error}");
    }
    assert!(parse_url("http://prometheus.linkerd-viz.svc:9090/prefix").is_ok());
}
