//! The input of `inject`: files, directories, standard input and URLs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use http::header::LOCATION;
use http::{Request, Uri};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use kube::{Client, Config};
use serde_json::Value;

use crate::exit::Failure;
use crate::output::manifests;

/// Time limit of a download, including name lookup and redirections.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Size limit of a download. The release manifests of large projects have two or three MiB.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Maximum number of redirections; download pages use one or two.
const MAX_REDIRECTS: usize = 5;

/// Reads the documents of all files in order.
pub(crate) async fn read(paths: &[PathBuf]) -> Result<Vec<Value>, Failure> {
    let mut documents = Vec::new();
    for path in paths {
        match url(path) {
            Some(url) => {
                let text = fetch(url)
                    .await
                    .map_err(|error| Failure::Input(format!("read {url}: {error:#}")))?;
                documents.extend(manifests::parse(&text, url)?);
            }
            None => {
                let word = path.to_str().unwrap_or_default();
                // The argument was meant as the value of a boolean flag, which requires an equals
                // sign as in Linkerd.
                if matches!(word, "true" | "false") && !path.exists() {
                    return Err(Failure::Input(format!(
                        "file {word:?} does not exist: the value of a boolean flag follows an equals sign, as in --native-sidecar={word}"
                    )));
                }
                documents.extend(manifests::read(std::slice::from_ref(path))?);
            }
        }
    }
    Ok(documents)
}

fn url(path: &std::path::Path) -> Option<&str> {
    let text = path.to_str()?;
    ["http://", "https://"]
        .iter()
        .any(|scheme| text.starts_with(scheme))
        .then_some(text)
}

async fn fetch(url: &str) -> anyhow::Result<String> {
    let fetched = tokio::time::timeout(FETCH_TIMEOUT, fetch_following_redirects(url)).await;
    fetched
        .map_err(|_elapsed| anyhow::anyhow!("not complete within {} s", FETCH_TIMEOUT.as_secs()))?
}

/// Follows redirections until a response has a body.
async fn fetch_following_redirects(url: &str) -> anyhow::Result<String> {
    let mut uri: Uri = url.parse()?;
    for _ in 0..=MAX_REDIRECTS {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::get(path).body(Body::empty())?;
        let server = Uri::builder()
            .scheme(uri.scheme_str().unwrap_or_default())
            .authority(uri.authority().context("the URL has no host")?.as_str())
            .path_and_query("/")
            .build()?;
        // With this configuration the Kubernetes client verifies certificates with the system's
        // root certificates and sends no credentials.
        let client = Client::try_from(Config::new(server))?;
        let response = client.send(request).await?;
        let status = response.status();
        if status.is_redirection() {
            let to = response.headers().get(LOCATION);
            let to = to.with_context(|| format!("{status} without a Location header"))?;
            uri = resolve_location(&uri, to.to_str()?)?;
            continue;
        }
        anyhow::ensure!(status.is_success(), "the server returned {status}");
        let body = Limited::new(response.into_body(), MAX_BYTES)
            .collect()
            .await;
        let body =
            body.map_err(|error| anyhow::anyhow!("{error}; the limit is {} MiB", MAX_BYTES >> 20))?;
        return Ok(String::from_utf8(body.to_bytes().into())?);
    }
    anyhow::bail!("more than {MAX_REDIRECTS} redirections")
}

/// Resolves a Location header, which may be a path on the same server. Redirections from HTTPS to
/// HTTP are rejected.
fn resolve_location(from: &Uri, to: &str) -> anyhow::Result<Uri> {
    let to: Uri = to.parse()?;
    let mut parts = to.into_parts();
    if parts.authority.is_none() {
        parts.authority = from.authority().cloned();
        parts.scheme = from.scheme().cloned();
    }
    let to = Uri::from_parts(parts)?;
    let is_safe = |uri: &Uri| uri.scheme_str() == Some("https");
    anyhow::ensure!(
        is_safe(&to) || !is_safe(from),
        "the server redirects from HTTPS to {to}"
    );
    Ok(to)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// Starts a server that responds to one request for each connection, and returns its URL.
    async fn server(respond: fn(&str) -> String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let has_credentials = request.to_lowercase().contains("authorization");
                assert!(!has_credentials, "{request}");
                let path = request.split(' ').nth(1).unwrap_or_default();
                // The client closes the connection when it has reached its limit.
                let _ignored = stream.write_all(respond(path).as_bytes()).await;
            }
        });
        format!("http://{addr}")
    }

    fn respond(path: &str) -> String {
        let ok = |body: &str| {
            let length = body.len();
            format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            )
        };
        let moved = |to: &str| {
            format!(
                "HTTP/1.1 302 Found\r\nconnection: close\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"
            )
        };
        match path {
            "/shop.yaml?a=b" => ok("kind: A\n---\nkind: B\n"),
            "/moved" => moved("/shop.yaml?a=b"),
            "/round" => moved("/round"),
            "/large" => ok(&"#".repeat(MAX_BYTES + 1)),
            _ => "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                .to_owned(),
        }
    }

    #[tokio::test]
    async fn download_limits_redirections_and_size() {
        let server = server(respond).await;
        let read = async |path: &str| read(&[format!("{server}{path}").into()]).await;
        for path in ["/shop.yaml?a=b", "/moved"] {
            assert_eq!(read(path).await.unwrap().len(), 2, "{path}");
        }
        let error = async |path: &str| read(path).await.unwrap_err().to_string();
        let none = error("/none").await;
        assert!(none.contains("404"), "{none}");
        assert!(error("/round").await.contains("more than 5 redirections"));
        let large = error("/large").await;
        assert!(large.contains("the limit is 16 MiB"), "{large}");
    }

    #[test]
    fn redirection_from_https_to_http_is_rejected() {
        let from: Uri = "https://a.example/x".parse().unwrap();
        for (to, expect) in [
            ("/y", "https://a.example/y"),
            ("https://b.example/", "https://b.example/"),
        ] {
            assert_eq!(resolve_location(&from, to).unwrap(), expect);
        }
        assert!(resolve_location(&from, "http://a.example/y").is_err());
    }
}
