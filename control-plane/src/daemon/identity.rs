//! The identity controller.

use std::{sync::Arc, time::SystemTime};

use mesh_api::proto::identity::identity_server::IdentityServer;
use mesh_runtime::metrics::{Labels, Registry};
use tonic::transport::Server;

use super::{Daemon, DaemonError, listen};
use crate::{
    config::Identity,
    identity::{Authority, Files, Names, Tokens, Validity, is_dns_label},
    serve::IdentityService,
};

/// Larger requests are refused unread: a CSR of 16 KiB, a token and a name fit well.
const MAX_REQUEST: usize = 64 * 1024;

/// The scheme under which Linkerd's own chart stores the issuer.
const LINKERD_SCHEME: &str = "linkerd.io/tls";

pub(super) async fn run(config: Identity) -> Result<(), DaemonError> {
    let daemon = Daemon::new()?;
    let names = names(&config)?;
    let files = files(&config);
    let loaded = files.load().map_err(DaemonError::Identity)?;
    let authority = Arc::new(Authority::new(names, Tokens::signed_by(loaded.token_key)));
    authority.set_issuer(loaded.issuer);
    export_ttl(&daemon.registry, &authority);

    let listener = listen(config.addr).await?;
    daemon.serve_admin(config.admin_addr).await?;
    let registry = daemon.registry.clone();
    daemon.supervisor.spawn(
        "issuer files",
        files.follow(loaded.contents, authority.clone(), registry),
    );
    let service = IdentityServer::new(IdentityService::new(authority, &daemon.calls))
        .max_decoding_message_size(MAX_REQUEST);
    daemon.serve_grpc(listener, Server::builder().add_service(service));
    tracing::info!(addr = %config.addr, trust_domain = config.identity_trust_domain, "Serving identities");
    daemon.finish().await
}

fn names(config: &Identity) -> Result<Names, DaemonError> {
    let namespace = &config.controller_namespace;
    if !is_dns_label(namespace) {
        return Err(DaemonError::Name(namespace.clone(), "namespace"));
    }
    let domain = &config.identity_trust_domain;
    if !domain.split('.').all(is_dns_label) {
        return Err(DaemonError::Name(domain.clone(), "trust domain"));
    }
    Ok(Names {
        control_namespace: namespace.clone(),
        trust_domain: domain.clone(),
    })
}

fn files(config: &Identity) -> Files {
    let (certificate, key) = if config.identity_scheme == LINKERD_SCHEME {
        ("crt.pem", "key.pem")
    } else {
        ("tls.crt", "tls.key")
    };
    Files {
        issuer_certificate: config.issuer_dir.join(certificate),
        issuer_key: config.issuer_dir.join(key),
        trust_anchors: config.trust_anchors.clone(),
        token_key: config.token_verify_key.clone(),
        validity: Validity {
            lifetime: config.identity_issuance_lifetime,
            clock_skew: config.identity_clock_skew_allowance,
        },
    }
}

/// Linkerd's gauge; alerts on it exist.
fn export_ttl(registry: &Registry, authority: &Arc<Authority>) {
    let authority = authority.clone();
    registry.on_scrape(move |scrape| {
        let left = authority.issuer().map_or(0.0, |issuer| {
            let left = issuer.not_after().duration_since(SystemTime::now());
            left.map_or(0.0, |left| left.as_secs_f64())
        });
        let help = "Seconds until the first certificate of the issuer's chain expires";
        scrape.gauge("issuer_cert_ttl_seconds", help, &Labels::new(), left);
    });
}
