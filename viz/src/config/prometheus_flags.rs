//! The flags of the connection to Prometheus.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub struct Prometheus {
    /// URL of Prometheus, such as http://prometheus.linkerd-viz.svc.cluster.local:9090. Without it,
    /// nothing is shown that is queried from Prometheus
    #[arg(long = "prometheus-url", value_name = "URL", default_value = "")]
    pub url: String,
    /// File of the user name for Prometheus (basic authentication)
    #[arg(
        long = "prometheus-user-file",
        value_name = "FILE",
        requires = "password_file"
    )]
    pub user_file: Option<PathBuf>,
    /// File of the password for Prometheus (basic authentication)
    #[arg(
        long = "prometheus-password-file",
        value_name = "FILE",
        requires = "user_file"
    )]
    pub password_file: Option<PathBuf>,
}
