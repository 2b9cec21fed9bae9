//! The flags of `mesh-controller service-mirror`, all of Linkerd's.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use mesh_cluster::flags::{Cluster, Log, listen_addr};
use mesh_k8s::select;

use super::Replica;
use super::values::{flag, refresh_period};

#[derive(Debug, Args)]
pub struct ServiceMirror {
    /// Name of the Link whose target cluster's Services are mirrored
    #[arg(
        value_name = "LINK",
        value_parser = NonEmptyStringValueParser::new(),
        required_unless_present = "local_mirror",
        conflicts_with = "local_mirror"
    )]
    pub link: Option<String>,
    /// Add this cluster's members to federated Services, without a Link
    #[arg(long, default_value = "false", value_parser = flag, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub local_mirror: bool,
    /// Namespace of Link, credentials and Lease
    #[arg(long, default_value = "linkerd-multicluster")]
    pub namespace: String,
    /// Address of the admin server: /live, /ready and /metrics
    #[arg(long, default_value = ":9999", value_parser = listen_addr)]
    pub metrics_addr: SocketAddr,
    /// Service, in the same namespace, that the target cluster's gateway is probed by; without it
    /// the gateway counts as alive
    #[arg(long, value_name = "SERVICE", default_value = "")]
    pub probe_service: String,
    /// How often the names of the gateway are resolved, from 1s to 24h
    #[arg(long, value_name = "PERIOD", default_value = "1m", value_parser = refresh_period)]
    pub endpoint_refresh_period: Duration,
    /// Mirror headless Services as such, with a Service for each host
    #[arg(long, default_value = "false", value_parser = flag, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub enable_headless_services: bool,
    /// Create missing namespaces of mirrors
    #[arg(long, default_value = "false", value_parser = flag, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub enable_namespace_creation: bool,
    /// With --local-mirror: selector of the members of federated Services
    #[arg(
        long,
        value_name = "SELECTOR",
        default_value = "mirror.linkerd.io/federated=member",
        value_parser = select::parse
    )]
    pub federated_service_selector: LabelSelector,
    /// With --local-mirror: labels that federated Services do not get; an item may end with /*
    #[arg(long, value_name = "LABELS", default_value = "")]
    pub excluded_labels: String,
    /// With --local-mirror: annotations that federated Services do not get; an item may end with /*
    #[arg(long, value_name = "ANNOTATIONS", default_value = "")]
    pub excluded_annotations: String,
    /// Accepted for Linkerd's chart, without an effect: refused writes are tried again without
    /// a limit
    #[arg(long, value_name = "N")]
    pub event_requeue_limit: Option<u32>,
    /// Accepted for Linkerd's chart: false has no effect, and true is refused, because there are no
    /// Go profiles
    #[arg(long, default_value = "false", value_parser = no_profiles, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub enable_pprof: bool,
    #[command(flatten)]
    pub replica: Replica,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}

/// A flag that has no effect, and why.
pub(crate) struct Unused {
    pub(crate) flag: &'static str,
    pub(crate) reason: &'static str,
}

impl ServiceMirror {
    /// Returns the given flags that have no effect.
    pub(crate) fn unused(&self) -> impl Iterator<Item = Unused> + use<> {
        let of_link = "it is about mirrors of Links, which --local-mirror has none of";
        let of_members = "only --local-mirror uses it; a Link has a field for it";
        let (local, link) = (self.local_mirror, !self.local_mirror);
        let all = [
            (
                self.event_requeue_limit.is_some(),
                "--event-requeue-limit",
                "objects that cannot be written are tried again without a limit",
            ),
            (
                local && self.enable_headless_services,
                "--enable-headless-services",
                of_link,
            ),
            (
                local && self.enable_namespace_creation,
                "--enable-namespace-creation",
                of_link,
            ),
            (
                local && !self.probe_service.is_empty(),
                "--probe-service",
                of_link,
            ),
            (
                link && !self.excluded_labels.is_empty(),
                "--excluded-labels",
                of_members,
            ),
            (
                link && !self.excluded_annotations.is_empty(),
                "--excluded-annotations",
                of_members,
            ),
        ];
        let used = all.into_iter().filter(|(given, ..)| *given);
        used.map(|(_, flag, reason)| Unused { flag, reason })
    }
}

fn no_profiles(text: &str) -> Result<bool, String> {
    if flag(text)? {
        return Err("there are no Go profiles here; remove the flag".to_owned());
    }
    Ok(false)
}
