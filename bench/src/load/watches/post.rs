//! The request that changes a Service.

use std::str::FromStr;

use anyhow::{Context as _, bail};
use http::uri::Uri;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A URL without TLS. `{namespace}` and `{name}` stand for the namespace and the name of a Service.
#[derive(Clone, Debug)]
pub(super) struct ChangeUrl(String);

impl FromStr for ChangeUrl {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let url = Self(text.to_owned());
        url.of("name.namespace.svc:80")?;
        Ok(url)
    }
}

impl ChangeUrl {
    /// Requests a change of the Service with a path, and waits for the response.
    pub(super) async fn post(&self, path: &str) -> anyhow::Result<()> {
        let uri = self.of(path)?;
        post(&uri).await.context("request a change")
    }

    fn of(&self, path: &str) -> anyhow::Result<Uri> {
        let mut labels = path.split('.');
        let (name, namespace) = (labels.next(), labels.next());
        let url = self.0.replace("{name}", name.unwrap_or_default());
        let url = url.replace("{namespace}", namespace.unwrap_or_default());
        let uri: Uri = url.parse().with_context(|| format!("parse {url:?}"))?;
        uri.authority().context("the URL has no host")?;
        Ok(uri)
    }
}

/// Sends a POST without a body.
async fn post(uri: &Uri) -> anyhow::Result<()> {
    let authority = uri.authority().context("the URL has no host")?;
    let mut tcp = TcpStream::connect(authority.as_str())
        .await
        .with_context(|| format!("connect to {authority}"))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    tcp.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    tcp.read_to_string(&mut response).await?;
    if !response.starts_with("HTTP/1.1 200") {
        bail!("{}", response.lines().next().unwrap_or("no response"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_the_name_and_the_namespace_of_a_service() {
        let url: ChangeUrl = "http://127.0.0.1:1/toggle/{namespace}/{name}"
            .parse()
            .expect("a URL");
        let of_service = url.of("web.shop.svc.cluster.local:80").expect("a URL");
        assert_eq!(of_service, "http://127.0.0.1:1/toggle/shop/web");
        assert!("/without/host".parse::<ChangeUrl>().is_err());
    }
}
