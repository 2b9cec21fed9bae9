//! The validating webhooks: the policy validator, which the process of the policy controller
//! serves, and the ServiceProfile validator.

use std::sync::Arc;

use mesh_cluster::daemon::{CertificateSource, Daemon, DaemonError, MountedFiles, connect, listen};
use mesh_cluster::webhook::managed::{Registration, RegistrationKind};
use mesh_core::annotation::CONTROL_PLANE_NS;
use tokio::net::TcpListener;

use super::rights;
use crate::config::{Policy, SpValidator};
use crate::validator::{FailurePolicy, Rules, Validator};

/// A webhook and its objects, whose names are Linkerd's.
struct Webhook {
    /// The name of Service and Secret without prefix and suffix, and of the controller in events.
    name: &'static str,
    rules: Rules,
    failure_policy: FailurePolicy,
    listener: TcpListener,
    certificate: Option<MountedFiles>,
    namespace: String,
    cluster_domain: String,
}

/// Serves the webhook of the policy controller, unless it is disabled or objects are read from
/// directories, which no API server stores.
pub(super) async fn serve_policies(daemon: &Daemon, config: &Policy) -> Result<(), DaemonError> {
    let flags = &config.validator;
    if flags.admission_controller_disabled || !config.source.dirs.is_empty() {
        return Ok(());
    }
    let client = connect(
        &config.source.cluster,
        "mesh-controller policy",
        rights::policy(),
    )
    .await?;
    let files = flags
        .server_tls_certs
        .clone()
        .zip(flags.server_tls_key.clone());
    let webhook = Webhook {
        name: "linkerd-policy-validator",
        rules: mesh_k8s::validate::policy,
        failure_policy: flags.webhook_failure_policy,
        listener: listen(flags.server_addr, "the webhook").await?,
        certificate: files.map(|(certificate, key)| MountedFiles { certificate, key }),
        namespace: config.control_plane_namespace.clone(),
        cluster_domain: config.cluster_domain.clone(),
    };
    webhook.serve(daemon, client);
    tracing::info!(addr = %flags.server_addr, "Serving the webhook of policies");
    Ok(())
}

/// Runs the ServiceProfile validator.
pub(super) async fn run(config: SpValidator) -> Result<(), DaemonError> {
    let daemon = Daemon::new()?;
    let client = connect(
        &config.cluster,
        "mesh-controller sp-validator",
        rights::sp_validator(),
    )
    .await?;
    let webhook = Webhook {
        name: "linkerd-sp-validator",
        rules: mesh_k8s::validate::profile,
        failure_policy: config.webhook_failure_policy,
        listener: listen(config.addr, "the webhook").await?,
        certificate: config.tls_dir.map(MountedFiles::in_directory),
        namespace: config.controller_namespace,
        cluster_domain: config.cluster_domain,
    };
    daemon.serve_admin(config.metrics_addr).await?;
    webhook.serve(&daemon, client);
    tracing::info!(addr = %config.addr, "Serving the webhook of ServiceProfiles");
    daemon.run_until_stopped().await
}

impl Webhook {
    fn serve(self, daemon: &Daemon, client: kube::Client) {
        let events = daemon.write_events(&client, self.name);
        let certificate = CertificateSource {
            mounted: self.certificate,
            namespace: self.namespace.clone(),
            cluster_domain: self.cluster_domain,
            service: self.name.to_owned(),
            secret: format!("{}-k8s-tls", self.name),
            label: (CONTROL_PLANE_NS, self.namespace),
            registration: Registration {
                kind: RegistrationKind::ValidatingWebhook,
                name: format!("{}-webhook-config", self.name),
            },
        };
        let serving = certificate.spawn(daemon, client, &events);
        let validator = Validator::new(self.rules, self.failure_policy, &daemon.registry);
        daemon.serve_webhook(self.listener, serving, Arc::new(validator));
    }
}
