//! The command line, with Linkerd's flags where Linkerd has them.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use mesh_cluster::flags::{Log, Source, listen_addr};
use mesh_cluster::namespace_metadata::NamespaceMetadata;
use mesh_core::annotation::DEFAULT_OPAQUE_PORTS;
use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::ports::PortSet;
use mesh_objects::policy::settings::NodeProbeSource;

use self::values::{flag, write_timeout};

mod bootstrap;
mod heartbeat;
mod http2;
mod identity;
mod injector;
mod service_mirror;
mod validator;
mod values;

pub use self::{
    bootstrap::Bootstrap, heartbeat::Heartbeat, http2::Http2Flag, identity::Identity,
    injector::ProxyInjector, service_mirror::ServiceMirror, validator::PolicyValidator,
    validator::SpValidator,
};

/// The controllers of the mesh.
#[derive(Debug, Parser)]
#[command(name = "mesh-controller", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Issues certificates to workloads
    Identity(Identity),
    /// Serves endpoints and profiles of destinations to proxies
    Destination(Destination),
    /// Serves inbound and outbound policies to proxies, and validates policies
    Policy(Policy),
    /// Adds the proxy to pods, as an admission webhook
    ProxyInjector(ProxyInjector),
    /// Validates ServiceProfiles, as an admission webhook
    SpValidator(SpValidator),
    /// Creates the trust anchor and the issuer if they do not exist, and exits
    Bootstrap(Bootstrap),
    /// Sends a report of the installation to a URL, and exits
    Heartbeat(Heartbeat),
    /// Mirrors Services of another cluster
    ServiceMirror(ServiceMirror),
    /// Labels the namespace of an extension, and exits
    NamespaceMetadata(NamespaceMetadata),
    /// Does nothing until a signal arrives: the container of a pod whose proxy is a gateway
    Pause(Pause),
}

#[derive(Debug, Args)]
pub struct Destination {
    /// Address of the gRPC server
    #[arg(long, default_value = ":8086", value_parser = listen_addr)]
    pub addr: SocketAddr,
    /// Address of the admin server: /live, /ready and /metrics
    #[arg(long, default_value = ":9996", value_parser = listen_addr)]
    pub metrics_addr: SocketAddr,
    /// Namespace of the control plane, which is a part of every identity
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// Trust domain, the suffix of every identity; empty for --cluster-domain
    #[arg(long, default_value = "")]
    pub identity_trust_domain: String,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Ports that are opaque without an annotation
    #[arg(long, default_value = DEFAULT_OPAQUE_PORTS)]
    pub default_opaque_ports: PortSet,
    /// How proxies connect to each other: transport-header on the inbound port of the proxy,
    /// transparent on the target port, except for opaque traffic
    #[arg(long, value_enum, default_value_t = TransportMode::TransportHeader)]
    pub outbound_transport_mode: TransportMode,
    /// Carry HTTP/1 between proxies as HTTP/2
    #[arg(long, default_value = "true", value_parser = flag, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub enable_h2_upgrade: bool,
    /// Also send IPv6 addresses of endpoints, which are preferred over the IPv4 address of the same
    /// pod
    #[arg(long, default_value = "false", value_parser = flag, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub enable_ipv6: bool,
    /// HTTP/2 client settings of proxies for connections to meshed endpoints, as JSON
    #[arg(
        long,
        value_name = "JSON",
        default_value = r#"{"keep_alive":{"interval":"10s","timeout":"3s","while_idle":true}}"#
    )]
    pub meshed_http2_client_params: Http2Flag,
    /// Send the endpoints of clusters that Secrets link, which needs the right to list the Secrets
    /// of the namespace of the control plane
    #[arg(long, default_value = "true", value_parser = flag, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub linked_clusters: bool,
    #[command(flatten)]
    pub replica: Replica,
    /// Maximum number of open streams, which client identities and their pods share equally; by
    /// default one for each 16 KiB of the memory limit, 1,000 to 100,000
    #[arg(long)]
    pub max_streams: Option<usize>,
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub log: Log,
}

/// How proxies connect to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportMode {
    TransportHeader,
    Transparent,
}

#[derive(Debug, Args)]
pub struct Policy {
    /// Address of the gRPC server
    #[arg(long, default_value = "0.0.0.0:8090", value_parser = listen_addr)]
    pub grpc_addr: SocketAddr,
    /// Address of the admin server: /live, /ready and /metrics
    #[arg(long, default_value = "0.0.0.0:9990", value_parser = listen_addr)]
    pub admin_addr: SocketAddr,
    /// CIDR blocks of the addresses in the cluster
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8"
    )]
    pub cluster_networks: Vec<IpNet>,
    /// Namespace whose EgressNetworks apply to clients of every namespace without one
    #[arg(long, default_value = "linkerd-egress")]
    pub global_egress_network_namespace: String,
    /// Trust domain, the suffix of every identity; empty for --cluster-domain
    #[arg(long, default_value = "")]
    pub identity_domain: String,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Policy of ports that no Server selects: all-unauthenticated, all-authenticated,
    /// cluster-unauthenticated, cluster-authenticated, deny or audit
    #[arg(long, default_value = "all-unauthenticated")]
    pub default_policy: DefaultPolicy,
    /// Namespace of the control plane, which is a part of every identity
    #[arg(long, default_value = "linkerd")]
    pub control_plane_namespace: String,
    /// CIDR blocks of the addresses from which kubelets send probes
    #[arg(long, value_delimiter = ',', default_value = "0.0.0.0/0,::/0")]
    pub probe_networks: Vec<IpNet>,
    /// Addresses of a pod's node that may connect to a port whose probes show no path (HTTPS,
    /// opaque ports) or may be redirected: hostIPs, those in the pod's status; podCIDRs, the first
    /// address of each podCIDR of the Node. Every pod in the host network of the node has them, too
    #[arg(long, value_delimiter = ',')]
    pub node_probe_sources: Vec<NodeProbeSource>,
    /// Ports that are opaque without an annotation
    #[arg(long, default_value = DEFAULT_OPAQUE_PORTS)]
    pub default_opaque_ports: PortSet,
    /// Let applications set retries and timeouts with l5d-* request headers
    #[arg(long, default_value = "false", value_parser = flag, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub allow_l5d_request_headers: bool,
    #[command(flatten)]
    pub validator: PolicyValidator,
    /// Deployment of this controller, which owns the Lease of the replica that writes the status of
    /// routes and policies
    #[arg(long, default_value = "linkerd-destination")]
    pub policy_deployment_name: String,
    /// Maximum number of milliseconds to write one status, at most 6000
    #[arg(long, value_name = "MS", default_value = "5000", value_parser = write_timeout)]
    pub patch_timeout_ms: Duration,
    #[command(flatten)]
    pub replica: Replica,
    /// Maximum number of open streams, which client identities and their pods share equally; by
    /// default one for each 16 KiB of the memory limit, 1,000 to 100,000
    #[arg(long)]
    pub max_streams: Option<usize>,
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub log: Log,
}

#[derive(Debug, Args)]
pub struct Pause {
    #[command(flatten)]
    pub log: Log,
}

/// A replica of a controller that writes objects while it holds a Lease.
#[derive(Debug, Args)]
pub struct Replica {
    /// Name of this replica in the Lease, which no other replica may have; a random one by default.
    /// Kubernetes sets the variable to the name of the pod
    #[arg(long, value_name = "NAME", env = "HOSTNAME", hide_env_values = true)]
    replica_name: Option<String>,
}

impl Replica {
    /// Returns the name of this replica in the Lease.
    pub(crate) fn claimant(&self) -> String {
        let name = self.replica_name.as_deref().filter(|name| !name.is_empty());
        match name {
            Some(name) => name.to_owned(),
            None => format!("mesh-controller-{:016x}", rand::random::<u64>()),
        }
    }
}

impl Command {
    pub fn log(&self) -> &Log {
        match self {
            Self::Identity(identity) => &identity.log,
            Self::Destination(destination) => &destination.log,
            Self::Policy(policy) => &policy.log,
            Self::ProxyInjector(injector) => &injector.log,
            Self::SpValidator(validator) => &validator.log,
            Self::Bootstrap(bootstrap) => &bootstrap.log,
            Self::Heartbeat(heartbeat) => &heartbeat.log,
            Self::ServiceMirror(mirror) => &mirror.log,
            Self::NamespaceMetadata(metadata) => &metadata.log,
            Self::Pause(pause) => &pause.log,
        }
    }
}

/// Returns the arguments with two dashes before long names: Linkerd's manifests may have one, as
/// programs in Go accept both.
pub fn arguments(given: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut ended = false;
    given.into_iter().map(move |argument| {
        let Some(text) = argument.to_str() else {
            return argument;
        };
        ended |= text == "--";
        let name = text.strip_prefix('-').unwrap_or_default();
        // A single letter is a short name, such as -h.
        let is_long = name.len() > 1 && name.starts_with(|it: char| it.is_ascii_lowercase());
        if is_long && !ended {
            format!("-{text}").into()
        } else {
            argument
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_of_linkerd_are_parsed() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).unwrap().command;
        let Command::Destination(destination) = parse(&[
            "mesh-controller",
            "destination",
            "--addr=:9000",
            "--enable-h2-upgrade=false",
            "--enable-ipv6",
            "--outbound-transport-mode=transparent",
            "--default-opaque-ports=25,3306-3310",
            "--source-dir=/a",
            "--source-dir=/b",
        ]) else {
            panic!();
        };
        assert_eq!(destination.addr, "0.0.0.0:9000".parse().unwrap());
        assert!(!destination.enable_h2_upgrade && destination.enable_ipv6);
        assert_eq!(
            destination.outbound_transport_mode,
            TransportMode::Transparent
        );
        assert_eq!(destination.source.dirs.len(), 2);
        let keep_alive = destination.meshed_http2_client_params.0.keep_alive.unwrap();
        assert_eq!(keep_alive.interval, Duration::from_secs(10));

        let Command::Policy(policy) = parse(&[
            "mesh-controller",
            "policy",
            "--cluster-networks=10.0.0.0/8,fd00::/8",
            "--default-policy=deny",
            "--server-addr=[::]:9000",
            "--server-tls-key=/k",
            "--server-tls-certs=/c",
            "--admission-controller-disabled",
            "--patch-timeout-ms=2500",
            "--node-probe-sources=hostIPs,podCIDRs",
            "--source-dir=/a",
        ]) else {
            panic!();
        };
        assert!(policy.validator.admission_controller_disabled);
        assert_eq!(policy.validator.server_addr.port(), 9000);
        assert_eq!(policy.patch_timeout_ms, Duration::from_millis(2500));
        assert_eq!(policy.cluster_networks.len(), 2);
        let sources = [NodeProbeSource::HostIps, NodeProbeSource::PodCidrs];
        assert_eq!(policy.node_probe_sources, sources);
        assert_eq!(policy.default_policy, DefaultPolicy::Deny);

        let Command::Identity(identity) = parse(&[
            "mesh-controller",
            "identity",
            "--identity-issuance-lifetime=1h30m",
            "--token-verify-key=/k",
        ]) else {
            panic!();
        };
        assert_eq!(
            identity.identity_issuance_lifetime,
            Duration::from_secs(5400)
        );
    }

    /// Linkerd's charts have these arguments.
    #[test]
    fn service_mirror_takes_the_arguments_of_linkerd() {
        let parse = |args: &str| {
            let args = format!("mesh-controller service-mirror {args}");
            let args = args.split_whitespace().map(OsString::from);
            match Cli::try_parse_from(arguments(args)).map(|cli| cli.command) {
                Ok(Command::ServiceMirror(mirror)) => Ok(mirror),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error.to_string()),
            }
        };
        let common = "-log-level=info -log-format=plain -event-requeue-limit=3 -namespace=linkerd-multicluster -enable-pprof=false";
        let of_link = parse(&format!("{common} -probe-service=probe-target target")).unwrap();
        assert_eq!(of_link.link.as_deref(), Some("target"));
        assert_eq!(of_link.probe_service, "probe-target");
        assert_eq!(of_link.endpoint_refresh_period, Duration::from_secs(60));
        assert_eq!(of_link.log.log_level, "info");
        let unused = |mirror: &ServiceMirror| mirror.unused().map(|it| it.flag).collect::<Vec<_>>();
        assert_eq!(unused(&of_link), ["--event-requeue-limit"]);
        let local = parse(&format!("{common} -enable-namespace-creation -local-mirror -federated-service-selector=mirror.linkerd.io/federated=member -excluded-labels= -excluded-annotations=a/*,b")).unwrap();
        assert!(local.local_mirror && local.link.is_none());
        assert_eq!(local.excluded_annotations, "a/*,b");
        assert_eq!(
            unused(&local),
            ["--event-requeue-limit", "--enable-namespace-creation"]
        );
        let link = parse("east --excluded-labels=a --enable-headless-services").unwrap();
        assert!(link.enable_headless_services);
        assert_eq!(unused(&link), ["--excluded-labels"]);
        for (args, part) in [
            ("", "<LINK>"),
            ("-local-mirror east", "--local-mirror"),
            ("-enable-pprof east", "--enable-pprof"),
            ("-endpoint-refresh-period=0s east", "1s to 24h"),
            ("-federated-service-selector=( east", "label selector"),
            ("-unknown east", "--unknown"),
        ] {
            let error = parse(args).unwrap_err();
            assert!(error.contains(part), "{args}: {error}");
        }
    }

    #[test]
    fn only_long_names_get_a_second_dash() {
        let given = ["a", "-addr=:1", "--addr", "-h", "-1", "-", "--", "-x-y"];
        let all: Vec<_> = arguments(given.map(OsString::from)).collect();
        let expected = ["a", "--addr=:1", "--addr", "-h", "-1", "-", "--", "-x-y"];
        assert_eq!(all, expected);
    }

    #[test]
    fn errors_name_flag_of_invalid_value() {
        let error = |flag: &str| {
            let args = ["mesh-controller", "policy", "--source-dir=/a", flag];
            Cli::try_parse_from(args).unwrap_err().to_string()
        };
        assert!(error("--default-policy=open").contains("--default-policy"));
        assert!(error("--cluster-networks=10.0.0.0/99").contains("--cluster-networks"));
        assert!(error("--grpc-addr=nowhere").contains("--grpc-addr"));
        for timeout in ["0", "6001", "5s", "-1"] {
            let error = error(&format!("--patch-timeout-ms={timeout}"));
            assert!(error.contains("1 to 6000"), "{error}");
        }
    }

    #[test]
    fn reports_are_only_sent_to_a_given_url() {
        let error = |args: &[&str]| {
            let all = ["mesh-controller", "heartbeat"].iter().chain(args);
            Cli::try_parse_from(all).unwrap_err().to_string()
        };
        assert!(error(&[]).contains("--url"));
        let invalid = error(&["--url=ftp://a"]);
        assert!(
            invalid.contains("--url") && invalid.contains("must be http or https"),
            "{invalid}"
        );
    }
}
