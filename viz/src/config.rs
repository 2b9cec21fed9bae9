//! The command line of `mesh-viz`. The flags are Linkerd's, as far as its extension has them.

use clap::{Parser, Subcommand};
use mesh_cluster::flags::Log;
use mesh_cluster::namespace_metadata::NamespaceMetadata;

mod metrics_api;
mod prometheus_flags;
mod tap;
mod tap_injector;
mod web;

pub use self::{
    metrics_api::MetricsApi, prometheus_flags::Prometheus, tap::Tap, tap_injector::TapInjector,
    web::Web,
};

/// The viz extension of the mesh.
#[derive(Debug, Parser)]
#[command(name = "mesh-viz", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serves the metrics of workloads to `linkerd viz` and the dashboard
    MetricsApi(MetricsApi),
    /// Serves the requests of workloads as they pass, as an extension API server
    Tap(Tap),
    /// Lets the tap controller observe the proxies of new pods, as an admission webhook
    TapInjector(TapInjector),
    /// Serves the dashboard and its JSON API
    Web(Web),
    /// Labels the namespace of an extension, and exits
    NamespaceMetadata(NamespaceMetadata),
}

impl Command {
    pub fn log(&self) -> &Log {
        match self {
            Self::MetricsApi(metrics_api) => &metrics_api.log,
            Self::Tap(tap) => &tap.log,
            Self::TapInjector(tap_injector) => &tap_injector.log,
            Self::Web(web) => &web.log,
            Self::NamespaceMetadata(metadata) => &metadata.log,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn credentials_for_prometheus_are_two_files() {
        let parse = |args: &[&str]| {
            let all = ["mesh-viz", "metrics-api", "--source-dir=/a"];
            Cli::try_parse_from(all.iter().chain(args))
        };
        let Command::MetricsApi(config) = parse(&[
            "--prometheus-user-file=/u",
            "--prometheus-password-file=/p",
            "--ignore-namespaces=kube-system,other",
        ])
        .unwrap()
        .command
        else {
            panic!();
        };
        assert_eq!(config.ignore_namespaces.len(), 2);
        assert_eq!(config.addr.port(), 8085);
        assert!(parse(&["--prometheus-user-file=/u"]).is_err());
        assert!(parse(&["--scrape-proxies"]).is_ok());
        assert!(parse(&["--scrape-proxies", "--prometheus-url=http://p:9090"]).is_err());
    }
}
