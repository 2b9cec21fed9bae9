//! The flags of `mesh-viz web`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use http::uri::Authority;
use mesh_cluster::flags::{Cluster, Log, listen_addr};
use regex::Regex;

use super::Prometheus;

#[derive(Debug, Args)]
pub struct Web {
    /// Address of the dashboard and its JSON API
    #[arg(long, default_value = ":8084", value_parser = listen_addr)]
    pub addr: SocketAddr,
    /// Address of the admin server: /live, /ready and /metrics
    #[arg(long, default_value = ":9994", value_parser = listen_addr)]
    pub metrics_addr: SocketAddr,
    /// Host and port of the metrics API; empty for the Service metrics-api in the namespace of the
    /// viz extension
    #[arg(long, value_name = "HOST:PORT", value_parser = metrics_api_addr, default_value = "")]
    pub linkerd_metrics_api_addr: ServiceAddr,
    /// Host and port of the policy controller; empty for the Service linkerd-policy in the
    /// namespace of the control plane
    #[arg(long, value_name = "HOST:PORT", value_parser = policy_addr, default_value = "")]
    pub policy_addr: ServiceAddr,
    #[command(flatten)]
    pub prometheus: Prometheus,
    /// Scrape the proxies instead of querying a Prometheus, as the metrics API does: at most 256,
    /// each 5 s, with the samples of the last 5 min
    #[arg(long, conflicts_with = "url", requires = "pod_dirs")]
    pub scrape_proxies: bool,
    /// Directory of Kubernetes manifests whose pods are scraped. Can be repeated; an object in
    /// several directories is read from the last one
    #[arg(
        long = "source-dir",
        id = "pod_dirs",
        value_name = "DIR",
        requires = "scrape_proxies"
    )]
    pub source_dirs: Vec<PathBuf>,
    /// Namespace of the control plane
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// Namespace of the viz extension
    #[arg(long, default_value = "linkerd-viz")]
    pub viz_namespace: String,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Regular expression for the Host header of requests, which prevents DNS rebinding; empty for
    /// localhost and the names of the Service web in the namespace of the viz extension
    #[arg(long, value_name = "REGEX", value_parser = host_pattern, default_value = "")]
    pub enforced_host: HostPattern,
    /// URL of a Grafana that the browsers of users reach; the pages link to it
    #[arg(long, value_name = "URL", value_parser = external_url)]
    pub grafana_external_addr: Option<String>,
    /// Prefix of the uid of Grafana's dashboards in the links
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        requires = "grafana_external_addr"
    )]
    pub grafana_prefix: String,
    /// Do not show definitions of workloads; showing them needs the right to get their kinds
    #[arg(long)]
    pub hide_definitions: bool,
    /// The API server belongs to `meshctl local dashboard`: a local node has no webhooks and no
    /// APIService to check
    #[arg(long)]
    pub local_node: bool,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}

/// `None` for the default.
#[derive(Clone, Debug)]
pub struct ServiceAddr(pub Option<Authority>);

/// `None` for the default.
#[derive(Clone, Debug)]
pub struct HostPattern(pub Option<Regex>);

fn metrics_api_addr(text: &str) -> Result<ServiceAddr, String> {
    service_addr(text, "metrics-api.linkerd-viz.svc.cluster.local:8085")
}

fn policy_addr(text: &str) -> Result<ServiceAddr, String> {
    service_addr(text, "linkerd-policy.linkerd.svc.cluster.local:8090")
}

fn service_addr(text: &str, example: &str) -> Result<ServiceAddr, String> {
    if text.is_empty() {
        return Ok(ServiceAddr(None));
    }
    let parsed = text.parse::<Authority>().ok();
    let valid = parsed.filter(|addr| addr.port().is_some() && !text.contains('@'));
    let addr = valid.ok_or_else(|| format!("expected a host and port such as {example}"))?;
    Ok(ServiceAddr(Some(addr)))
}

fn host_pattern(text: &str) -> Result<HostPattern, String> {
    if text.is_empty() {
        return Ok(HostPattern(None));
    }
    let pattern = Regex::new(text).map_err(|error| error.to_string())?;
    Ok(HostPattern(Some(pattern)))
}

/// Pages link to it, so that another scheme such as `javascript` is refused.
fn external_url(text: &str) -> Result<String, String> {
    let is_url = text.parse::<http::Uri>().is_ok_and(|url| {
        matches!(url.scheme_str(), Some("http" | "https")) && url.authority().is_some()
    });
    if is_url {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err("expected a URL such as https://grafana.example.com".to_owned())
    }
}

impl Web {
    /// Returns the address of the metrics API.
    pub fn metrics_api(&self) -> String {
        let addr = &self.linkerd_metrics_api_addr;
        self.service(addr, "metrics-api", &self.viz_namespace, 8085)
    }

    /// Returns the address of the policy controller.
    pub fn policy(&self) -> String {
        let namespace = &self.controller_namespace;
        self.service(&self.policy_addr, "linkerd-policy", namespace, 8090)
    }

    /// Returns the pattern for the Host header.
    pub fn host_pattern(&self) -> Result<Regex, regex::Error> {
        if let Some(pattern) = &self.enforced_host.0 {
            return Ok(pattern.clone());
        }
        let namespace = regex::escape(&self.viz_namespace);
        let domain = regex::escape(&self.cluster_domain);
        Regex::new(&format!(
            r"^(localhost|127\.0\.0\.1|web\.{namespace}\.svc\.{domain}|web\.{namespace}\.svc|\[::1\])(:\d+)?$"
        ))
    }

    /// Returns the address of a flag, or by default the address of the Service.
    fn service(&self, addr: &ServiceAddr, name: &str, namespace: &str, port: u16) -> String {
        match &addr.0 {
            Some(addr) => addr.to_string(),
            None => format!("{name}.{namespace}.svc.{}:{port}", self.cluster_domain),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};
    use super::*;

    fn parse(args: &[&str]) -> Result<Web, String> {
        let all = ["mesh-viz", "web"].iter().chain(args);
        match Cli::try_parse_from(all) {
            Ok(Cli {
                command: Command::Web(config),
            }) => Ok(config),
            Ok(_) => panic!(),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn defaults_follow_the_namespace_and_the_domain() {
        let config = parse(&["--viz-namespace=viz", "--cluster-domain=k8s.test"]).unwrap();
        assert_eq!(config.metrics_api(), "metrics-api.viz.svc.k8s.test:8085");
        assert_eq!(config.policy(), "linkerd-policy.linkerd.svc.k8s.test:8090");
        let pattern = config.host_pattern().unwrap();
        let table = [
            ("localhost:50750", true),
            ("127.0.0.1", true),
            ("[::1]:8084", true),
            ("web.viz.svc.k8s.test:8084", true),
            ("web.viz.svc", true),
            ("webxviz.svc", false),
            ("localhost.example.com", false),
            ("example.com", false),
            ("", false),
        ];
        for (host, allowed) in table {
            assert_eq!(pattern.is_match(host), allowed, "{host}");
        }
    }

    #[test]
    fn invalid_addresses_and_patterns_are_refused() {
        for (flag, bad) in [
            ("--linkerd-metrics-api-addr", "metrics-api"),
            ("--linkerd-metrics-api-addr", "http://metrics-api:8085"),
            ("--policy-addr", "linkerd-policy"),
            ("--enforced-host", "("),
            ("--grafana-external-addr", "javascript:alert(1)"),
            ("--grafana-external-addr", "grafana:3000"),
        ] {
            let error = parse(&[&format!("{flag}={bad}")]).unwrap_err();
            assert!(error.contains(flag), "{error}");
        }
        let error = parse(&["--policy-addr=linkerd-policy"]).unwrap_err();
        assert!(error.contains("such as linkerd-policy."), "{error}");
        assert!(parse(&["--grafana-prefix=l5d"]).is_err());
        assert!(parse(&["--scrape-proxies"]).is_err());
        assert!(parse(&["--source-dir=/objects"]).is_err());
        let dirs = "--source-dir=/objects";
        assert!(parse(&["--scrape-proxies", dirs, "--prometheus-url=http://p:9090"]).is_err());
        assert!(parse(&["--scrape-proxies", dirs]).is_ok());
        let config = parse(&["--grafana-external-addr=https://g.example.com/"]).unwrap();
        assert_eq!(
            config.grafana_external_addr.as_deref(),
            Some("https://g.example.com")
        );
    }
}
