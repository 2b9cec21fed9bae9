//! The Prometheus that a command queries, in a pod or at a URL.

use std::time::Duration;

use http::Uri;
use tokio::net::TcpStream;

use crate::clients::connection::Connection;
use crate::clients::prometheus_api::{self, Sample, Server};
use crate::cluster::Cluster;
use crate::cluster::service::PodPort;
use crate::exit::Failure;

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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
        let server = Server {
            name: &server,
            host,
            prefix,
        };
        prometheus_api::query(connection, &server, query).await
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
