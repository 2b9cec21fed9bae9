//! The certificate that a controller presents to the API server: read from a directory, or
//! generated and renewed by the controller.

use std::sync::Arc;

use super::Daemon;
use crate::api_server::Events;
use crate::webhook::ServingCertificate;
use crate::webhook::managed::{Expiry, ManagedCertificate, Registration, RepairReporter};
use crate::webhook::mounted::MountedCertificate;
pub use crate::webhook::mounted::MountedFiles;

/// Where the certificate comes from, and the objects that are about it.
pub struct CertificateSource {
    /// The files of an externally managed certificate.
    pub mounted: Option<MountedFiles>,
    /// The namespace of the Service and of the Secret.
    pub namespace: String,
    pub cluster_domain: String,
    /// The Service that the API server calls.
    pub service: String,
    /// The Secret of the certificate that the controller generates.
    pub secret: String,
    /// The label of the Secret.
    pub label: (&'static str, String),
    /// The object whose caBundle the controller then writes.
    pub registration: Registration,
}

impl CertificateSource {
    /// Spawns the task that keeps the returned certificate up to date.
    pub fn spawn(
        self,
        daemon: &Daemon,
        client: kube::Client,
        events: &Events,
    ) -> Arc<ServingCertificate> {
        let serving = Arc::new(ServingCertificate::default());
        let expiry = Expiry::export(&daemon.registry);
        let ready = daemon
            .readiness
            .condition("a certificate that the API server trusts");
        if let Some(files) = self.mounted {
            let mounted = MountedCertificate { files };
            daemon
                .supervisor
                .spawn("certificate", mounted.run(serving.clone(), expiry, ready));
            return serving;
        }
        let host = format!("{}.{}.svc", self.service, self.namespace);
        let managed = ManagedCertificate {
            client,
            namespace: self.namespace,
            secret: self.secret,
            registration: self.registration,
            label: self.label,
            names: vec![host.clone(), format!("{host}.{}", self.cluster_domain)],
            repairs: RepairReporter::new(events.clone(), &daemon.registry),
        };
        daemon
            .supervisor
            .spawn("certificate", managed.run(serving.clone(), expiry, ready));
        serving
    }
}
