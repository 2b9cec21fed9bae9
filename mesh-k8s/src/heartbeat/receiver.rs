//! The URL that a user has reports sent to.

use std::fmt;
use std::str::FromStr;

use http::Uri;

use super::Report;

/// The URL of a receiver of reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    url: Uri,
    host: String,
}

/// Why a text is not the URL of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a URL such as https://reports.example.com/mesh: {0}")]
pub struct ReceiverError(&'static str);

/// Servers commonly accept 8 KiB of a request line, and the report may need most of it.
const MAX_URL: usize = 2048;

impl FromStr for Receiver {
    type Err = ReceiverError;

    fn from_str(text: &str) -> Result<Self, ReceiverError> {
        if text.len() > MAX_URL {
            return Err(ReceiverError("it is longer than 2048 bytes"));
        }
        let url: Uri = text
            .parse()
            .map_err(|_invalid| ReceiverError("it is invalid"))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(ReceiverError("the scheme must be http or https"));
        }
        let authority = url.authority().map_or("", |authority| authority.as_str());
        if authority.contains('@') {
            return Err(ReceiverError(
                "it must not have credentials, which the ConfigMap of values would show",
            ));
        }
        if url.query().is_some() || text.contains('#') {
            return Err(ReceiverError(
                "it must not have a query or fragment: the report is the query",
            ));
        }
        // An IPv6 address has brackets in a URL only.
        let host = url.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(ReceiverError("it has no host"));
        }
        Ok(Self {
            host: host.to_owned(),
            url,
        })
    }
}

impl Receiver {
    /// Returns the name or the address of the server.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        let default = if self.is_https() { 443 } else { 80 };
        self.url.port_u16().unwrap_or(default)
    }

    /// Returns whether the connection has TLS.
    pub fn is_https(&self) -> bool {
        self.url.scheme_str() == Some("https")
    }

    /// Returns the value of the Host header.
    pub fn authority(&self) -> &str {
        self.url
            .authority()
            .map_or("", |authority| authority.as_str())
    }

    /// Returns the target of the request that sends a report: path and query.
    pub fn target(&self, report: &Report) -> String {
        format!("{}?{}", self.url.path(), report.query())
    }

    /// Returns the whole URL of the request that sends a report.
    pub fn with_report(&self, report: &Report) -> String {
        format!("{self}?{}", report.query())
    }
}

impl fmt::Display for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_follow_from_url() {
        for (url, host, port, https) in [
            ("http://a.example", "a.example", 80, false),
            ("https://a.example/b", "a.example", 443, true),
            ("https://[2001:db8::1]:8443/", "2001:db8::1", 8443, true),
            ("http://192.0.2.1:8080/a/b", "192.0.2.1", 8080, false),
        ] {
            let receiver: Receiver = url.parse().unwrap();
            let found = (receiver.host(), receiver.port(), receiver.is_https());
            assert_eq!(found, (host, port, https), "{url}");
        }
    }

    #[test]
    fn other_urls_are_refused_with_reason() {
        let long = format!("http://a/{}", "b".repeat(MAX_URL));
        for (url, problem) in [
            ("", "invalid"),
            ("a b", "invalid"),
            ("reports.example.com", "the scheme"),
            ("/reports", "the scheme"),
            ("ftp://a", "the scheme"),
            ("https://user:secret@a", "credentials"),
            ("https://a?token=b", "query"),
            ("https://a/#b", "query"),
            ("https://:80", "no host"),
            (&long, "longer than 2048 bytes"),
        ] {
            let error = url.parse::<Receiver>().unwrap_err().to_string();
            assert!(error.contains(problem), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let longest = format!("http://a/{}", "b".repeat(MAX_URL - "http://a/".len()));
        assert!(longest.parse::<Receiver>().is_ok());
    }
}
