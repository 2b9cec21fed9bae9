//! Scrapes of servers whose responses are scripted.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::super::query::{Family, Grouping, Matchers};
use super::*;

/// Serves a response on every connection.
async fn serve(response: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let response = response.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while let Ok(1..) = stream.read(&mut request).await {
                    // The client closes the connection if the response is too large.
                    if stream.write_all(&response).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

fn response(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn target(pod: &str, addr: SocketAddr) -> Target {
    let labels = [("namespace", "shop"), ("pod", pod)];
    Target {
        pod: Name::new("shop", pod),
        addr,
        labels: labels
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    }
}

fn metrics() -> ProxyMetrics {
    ProxyMetrics::new(&Registry::new())
}

/// Returns the pods with current values.
fn scraped(metrics: &ProxyMetrics) -> Vec<String> {
    let pods = Grouping::of(&["pod"]);
    let query = Matchers::new().max(Family::ProcessStart, &pods);
    let samples = metrics.query(&query).unwrap();
    samples
        .iter()
        .map(|sample| sample.label("pod").to_owned())
        .collect()
}

const STARTED: &[u8] = b"process_start_time_seconds 1700000000\n";

#[tokio::test]
async fn failed_scrapes_are_reported_and_others_go_on() {
    let metrics = metrics();
    let good = serve(response("200 OK", STARTED)).await;
    let table = [
        (
            "error",
            serve(response("503 Service Unavailable", b"")).await,
            "503",
        ),
        (
            "binary",
            serve(response("200 OK", &[0xff])).await,
            "not text",
        ),
        ("other", serve(b"\0\0\0".to_vec()).await, "invalid HTTP"),
        ("gone", "127.0.0.1:1".parse().unwrap(), "refused"),
    ];
    let failing = table.iter().map(|(pod, addr, _)| target(pod, *addr));
    let targets = failing.clone().chain([target("good", good)]).collect();
    metrics.scrape_all(targets).await;
    assert_eq!(scraped(&metrics), ["good"]);
    let failures = metrics.0.failures.lock().clone();
    assert_eq!(failures.len(), table.len());
    for (pod, _, problem) in &table {
        let error = &failures[&Name::new("shop", pod)];
        assert!(error.contains(problem), "{pod}: {error}");
    }
    let error = metrics.check().unwrap_err();
    assert!(error.starts_with("4 proxies cannot be scraped"), "{error}");
    // Three of them are described.
    assert!(!error.contains("shop/other"), "{error}");
    metrics.scrape_all(vec![target("good", good)]).await;
    assert_eq!(metrics.check(), Ok(()));
}

#[tokio::test]
async fn size_of_a_scrape_is_bounded() {
    let metrics = metrics();
    let mut body = [STARTED, b"#"].concat();
    body.resize(MAX_BODY, b'x');
    let fits = serve(response("200 OK", &body)).await;
    body.push(b'x');
    let large = serve(response("200 OK", &body)).await;
    metrics
        .scrape_all(vec![target("fits", fits), target("large", large)])
        .await;
    assert_eq!(scraped(&metrics), ["fits"]);
    let error = metrics.check().unwrap_err();
    assert!(
        error.contains("shop/large: the response is larger than 16 MiB"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn proxy_without_response_times_out() {
    let metrics = metrics();
    let silent = serve(Vec::new()).await;
    metrics.scrape_all(vec![target("silent", silent)]).await;
    let error = metrics.check().unwrap_err();
    assert!(error.contains("no response within 3 s"), "{error}");
}

#[tokio::test]
async fn connection_to_a_pod_that_has_gone_is_closed() {
    let metrics = metrics();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut connection = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        while let Ok(1..) = stream.read(&mut request).await {
            let response = response("200 OK", STARTED);
            stream.write_all(&response).await.unwrap();
        }
    });
    metrics.scrape_all(vec![target("web", addr)]).await;
    assert_eq!(metrics.check(), Ok(()));
    assert!(!connection.is_finished());
    // The pool looks for idle connections in this interval.
    tokio::time::pause();
    let closed = timeout(3 * IDLE_TIMEOUT, &mut connection).await;
    closed.expect("the connection is closed").unwrap();
}

#[tokio::test]
async fn number_of_proxies_is_bounded() {
    let metrics = metrics();
    let addr = serve(response("200 OK", STARTED)).await;
    let targets = (0..=MAX_PROXIES).map(|at| target(&format!("web-{at:03}"), addr));
    metrics.scrape_all(targets.collect()).await;
    assert_eq!(scraped(&metrics).len(), MAX_PROXIES);
    let error = metrics.check().unwrap_err();
    let expected = "shop/web-256: 256 other proxies are scraped, which is the limit";
    assert!(error.contains(expected), "{error}");
}

#[tokio::test]
async fn windows_without_samples_are_refused() {
    let metrics = metrics();
    let by = Grouping::of(&["pod"]);
    for (window, problem) in [
        ("5s", Some("at least as long as two scrape intervals")),
        ("10s", None),
        ("5m", None),
        (
            "301s",
            Some("are kept for 5 min, which is less than the time window (301s)"),
        ),
    ] {
        let window = TimeWindow::parse(window).unwrap();
        let query = Matchers::new().increase(Family::Responses, &window, &by);
        let error = metrics.query(&query).err().map(|error| error.to_string());
        match problem {
            None => assert_eq!(error, None),
            Some(problem) => assert!(error.unwrap().contains(problem)),
        }
    }
}
