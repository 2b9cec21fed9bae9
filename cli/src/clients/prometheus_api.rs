//! Client of Prometheus' query API, for statistics that the metrics API does not have.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use http::Uri;
use serde::Deserialize;
use tokio::net::TcpStream;

use super::http::{Get, get_any_status};
use crate::clients::connection::Connection;
use crate::cluster::Cluster;
use crate::cluster::service::PodPort;
use crate::exit::Failure;

pub(crate) const PORT: u16 = 9090;

/// Where queries are sent. Each has its own connection.
pub(crate) enum Prometheus {
    /// A port of a pod, through the API server.
    Pod {
        cluster: Box<Cluster>,
        pod: PodPort,
        /// The path of its API, without a slash at its end.
        prefix: String,
    },
    /// A server that is reached directly.
    Server {
        /// Host and port.
        authority: String,
        /// The path of its API, without a slash at its end.
        prefix: String,
    },
}

/// One element of an instant vector.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// The body of a response.
#[derive(Deserialize)]
struct Body {
    data: Option<Data>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Element>,
}

#[derive(Deserialize)]
struct Element {
    metric: BTreeMap<String, String>,
    /// The time, and the number as a text.
    value: (f64, String),
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout of the metrics API for a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

impl Prometheus {
    /// Reads a URL such as `http://prometheus.example:9090/base`.
    pub(crate) fn from_url(url: &str) -> Result<Self, Failure> {
        let invalid =
            |problem: &str| Failure::Input(format!("invalid URL of Prometheus {url:?}: {problem}"));
        let uri: Uri = url
            .parse()
            .map_err(|_error| invalid("expected http://HOST:PORT"))?;
        if uri.scheme_str() != Some("http") {
            return Err(invalid("expected the scheme http"));
        }
        let host = uri.host().ok_or_else(|| invalid("expected a host"))?;
        if uri.query().is_some() {
            return Err(invalid("expected a URL without a query"));
        }
        Ok(Self::Server {
            authority: format!("{host}:{}", uri.port_u16().unwrap_or(80)),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Connects as the mesh does: to a pod if the host of the URL is the name of a Service, which
    /// this machine cannot resolve.
    pub(crate) async fn of_mesh(url: &str, cluster: Box<Cluster>) -> anyhow::Result<Self> {
        let server = Self::from_url(url)?;
        let Self::Server { authority, prefix } = &server else {
            return Ok(server);
        };
        let Some((host, port)) = authority.rsplit_once(':') else {
            return Ok(server);
        };
        let pod = cluster.pod_of_service(host, port.parse()?).await?;
        Ok(match pod {
            Some(pod) => Self::Pod {
                cluster,
                pod,
                prefix: prefix.clone(),
            },
            None => server,
        })
    }

    /// Evaluates a query now. Samples that are not numbers are left out.
    pub(crate) async fn query(&self, query: &str) -> anyhow::Result<Vec<Sample>> {
        let (server, host, prefix) = match self {
            Self::Pod { pod, prefix, .. } => {
                let server = format!("Prometheus in pod {}/{}", pod.namespace, pod.name);
                (server, "localhost", prefix.as_str())
            }
            Self::Server { authority, prefix } => {
                let server = format!("Prometheus at {authority}");
                (server, authority.as_str(), prefix.as_str())
            }
        };
        let connection = self.connect(&server).await?;
        let request = Get {
            server: &server,
            host,
            path: &format!("{prefix}/api/v1/query?query={}", percent_encoded(query)),
            timeout: QUERY_TIMEOUT,
        };
        // An invalid query has a status of its own, and a body with the reason.
        let (status, body) = get_any_status(connection, &request).await?;
        parse(&body).with_context(|| format!("{server} responded with {status}"))
    }

    async fn connect(&self, server: &str) -> anyhow::Result<Connection> {
        let authority = match self {
            Self::Pod { cluster, pod, .. } => {
                return cluster.forward(&pod.namespace, &pod.name, pod.port).await;
            }
            Self::Server { authority, .. } => authority,
        };
        let connect = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(authority)).await;
        match connect {
            Ok(Ok(stream)) => Ok(Connection::new(stream)),
            Ok(Err(error)) => {
                Err(Failure::Unreachable(format!("cannot connect to {server}: {error}")).into())
            }
            Err(_elapsed) => Err(Failure::TimedOut(format!("no connection to {server}")).into()),
        }
    }
}

impl Sample {
    /// Returns the value of a label; empty if it is absent.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

fn parse(body: &str) -> anyhow::Result<Vec<Sample>> {
    let body: Body = serde_json::from_str(body).context("the response is not an instant vector")?;
    if let Some(error) = body.error {
        anyhow::bail!(error);
    }
    let result = body.data.context("the response has no data")?.result;
    let samples = result.into_iter().filter_map(|element| {
        let value: f64 = element.value.1.parse().ok()?;
        value.is_finite().then_some(Sample {
            labels: element.metric,
            value,
        })
    });
    Ok(samples.collect())
}

/// Encodes everything but letters and digits.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(byte.into());
        } else {
            // A write to a string does not fail.
            let _infallible = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_parsed_and_errors_shown() {
        let body = r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"a":"b"},"value":[1.5,"2.25"]},
            {"metric":{},"value":[1,"NaN"]},
            {"metric":{},"value":[1,"+Inf"]}]}}"#;
        let samples = parse(body).unwrap();
        let [sample] = &samples[..] else {
            panic!("{samples:?}");
        };
        assert_eq!((sample.label("a"), sample.label("c")), ("b", ""));
        assert_eq!(sample.value, 2.25);
        let error = parse(r#"{"status":"error","error":"bad query"}"#).unwrap_err();
        assert_eq!(error.to_string(), "bad query");
        for bad in ["", "<html>", "{}", r#"{"data":{"result":[{"metric":{}}]}}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn urls_are_checked() {
        let Ok(Prometheus::Server { authority, prefix }) =
            Prometheus::from_url("http://prometheus:9090/base/")
        else {
            panic!("a valid URL");
        };
        assert_eq!((&*authority, &*prefix), ("prometheus:9090", "/base"));
        for (bad, problem) in [
            ("https://a", "the scheme http"),
            ("prometheus:9090", "the scheme http"),
            ("http://a/?b", "without a query"),
            ("a b", "expected http://HOST:PORT"),
        ] {
            let error = Prometheus::from_url(bad).err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(percent_encoded("a{b=\"ä\"}"), "a%7Bb%3D%22%C3%A4%22%7D");
    }
}
