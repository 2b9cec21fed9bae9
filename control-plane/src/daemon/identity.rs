//! The identity controller.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kube::Client;
use mesh_api::mesh::identity::trust_anchors_server::TrustAnchorsServer;
use mesh_api::proto::identity::identity_server::IdentityServer;
use mesh_cluster::api_server::{Rate, RateLimiter};
use mesh_cluster::daemon::{Daemon, connect, listen};
use mesh_core::identity::{is_dns_label, trust_domain};
use mesh_core::trust_bundle::TrustBundle;
use mesh_k8s::trust::{self, IssuerNames};
use mesh_runtime::metrics::{Labels, Registry};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::Routes;

use super::{ControllerError, rights};
use crate::config::Identity;
use crate::identity::{
    CertificateAuthority, EventRecorder, Files, IdentitySuffix, LoadError, LoadedIssuer,
    TokenReviewer, TokenVerifier, Validity,
};
use crate::machines;
use crate::serve::{IdentityService, TrustAnchorsService};
use crate::trust_bundle::denied::DeniedIdentities;
use crate::trust_bundle::endpoint::BundleEndpoint;
use crate::trust_bundle::foreign::ForeignDomains;
use crate::trust_bundle::{Cluster, Publisher, Record};

/// Larger requests are rejected without being read: a CSR of 16 KiB, a token and a name fit.
const MAX_REQUEST: usize = 64 * 1024;

/// Each account is limited to half of the rate of requests to the API server, so that a single one
/// cannot block all others. A Deployment of a thousand pods that start together still gets its
/// certificates within half a minute; rejected proxies retry.
const CALLER_SHARE: u32 = 2;

/// How long the start waits for the list of denied identities, which normally takes milliseconds.
/// Running proxies need trust anchors also while it cannot be read.
const FIRST_LIST: Duration = Duration::from_secs(5);

pub(super) async fn run(config: Identity) -> Result<(), ControllerError> {
    let mut daemon = Daemon::new()?;
    let identity_suffix = identity_suffix(&config)?;
    let bundle_listener = bundle_listener(&config).await?;
    let IdentitySuffix {
        control_namespace,
        trust_domain: own_domain,
    } = identity_suffix.clone();
    let files = files(&config);
    let LoadedIssuer {
        issuer,
        token_key,
        contents,
    } = files.load().map_err(ControllerError::Identity)?;
    let listener = listen(config.addr, "gRPC").await?;
    daemon.serve_admin(config.admin_addr).await?;
    let ready = daemon.readiness.condition("access to the API server");

    let rate = Rate {
        per_second: config.kube_apiclient_qps,
        burst: config.kube_apiclient_burst,
    };
    let (anchors, verified) = watch::channel(Arc::from(contents.anchors()));
    let mut cluster = None;
    let (admit, machines) = watch::channel(Arc::default());
    let (deny, denied) = watch::channel(None);
    let mut first_list = denied.clone();
    let (tokens, event_recorder) = match token_key {
        Some(key) => {
            // Without an API server there is no list.
            deny.send_replace(Some(Arc::default()));
            (TokenVerifier::signed_by(key), EventRecorder::default())
        }
        None => {
            let client = connect(
                &config.cluster,
                "mesh-controller identity",
                rights::identity(),
            )
            .await?;
            let reviews = TokenReviewer::new(&client, RateLimiter::new(rate));
            let Some(access) = daemon.wait_or_stop(reviews.check_access()).await? else {
                return Ok(());
            };
            access.map_err(ControllerError::Access)?;
            let (namespace, registry) = (&control_namespace, &daemon.registry);
            let denied = DeniedIdentities::new(&client, &identity_suffix, deny, registry);
            let (denied_changed, watching) = denied.watch();
            daemon.supervisor.spawn("denied identities", watching);
            if config.publish_trust_roots {
                let record = Record::new(client.clone(), namespace);
                let domains = ForeignDomains::new(client.clone(), namespace, &own_domain, registry);
                cluster = Some(Cluster::new(record, domains, denied, denied_changed));
            } else {
                daemon
                    .supervisor
                    .spawn("list of denied identities", denied.run());
            }
            let following = machines::follow(client.clone(), namespace.clone(), admit);
            daemon.supervisor.spawn("machines", following);
            let event_recorder = event_recorder(&daemon, &config, client).await;
            (TokenVerifier::Reviewed(Box::new(reviews)), event_recorder)
        }
    };
    let authority = Arc::new(CertificateAuthority::new(
        identity_suffix,
        tokens,
        machines,
        denied,
        rate.divided_by(CALLER_SHARE),
    ));
    authority.set_issuer(issuer);
    export_issuer(&daemon.registry, &authority);
    let reload = reload(
        &daemon.registry,
        authority.clone(),
        event_recorder.clone(),
        anchors,
    );
    daemon
        .supervisor
        .spawn("issuer files", files.watch(contents, reload));

    let service = IdentityServer::new(IdentityService::new(
        authority.clone(),
        event_recorder,
        &daemon.calls,
    ))
    .max_decoding_message_size(MAX_REQUEST);
    let mut services = Routes::new(service);
    if config.publish_trust_roots {
        let bundles = spawn_publisher(&daemon, cluster, verified);
        if let Some(listener) = bundle_listener {
            let id = trust::bundle_server_id(&own_domain, &control_namespace);
            let endpoint = BundleEndpoint::new(authority, id, bundles.clone());
            let serving = endpoint.run(listener);
            daemon.supervisor.spawn("trust bundle server", serving);
        }
        let service = TrustAnchorsService::new(bundles, daemon.watch.clone(), &daemon.calls);
        services = services
            .add_service(TrustAnchorsServer::new(service).max_decoding_message_size(MAX_REQUEST));
    }
    // Without the list every certificate would be refused.
    let list = tokio::time::timeout(FIRST_LIST, first_list.wait_for(Option::is_some));
    if daemon.wait_or_stop(list).await?.is_none() {
        return Ok(());
    }
    daemon.serve_grpc(listener, services);
    ready.set(true);
    tracing::info!(addr = %config.addr, trust_domain = trust_domain(&config.identity_trust_domain, &config.cluster_domain), "Serving identities");
    Ok(daemon.run_until_stopped().await?)
}

/// Returns the listener of the server of the trust bundle, if there is one.
async fn bundle_listener(config: &Identity) -> Result<Option<TcpListener>, ControllerError> {
    match config.trust_bundle_addr {
        Some(_) if !config.publish_trust_roots => Err(ControllerError::NoTrustBundle),
        Some(addr) => Ok(Some(listen(addr, "the trust bundle").await?)),
        None => Ok(None),
    }
}

/// Returns the recorder of events and spawns their writer.
async fn event_recorder(daemon: &Daemon, config: &Identity, client: Client) -> EventRecorder {
    let events = daemon.write_events(&client, "linkerd-identity");
    EventRecorder::new(&client, events, &config.controller_namespace).await
}

/// Returns the numbered anchors.
fn spawn_publisher(
    daemon: &Daemon,
    cluster: Option<Cluster>,
    verified: watch::Receiver<Arc<[u8]>>,
) -> watch::Receiver<Option<Arc<TrustBundle>>> {
    let (publish, bundles) = watch::channel(None);
    let publisher = Publisher::new(cluster, verified, publish, &daemon.registry);
    daemon.supervisor.spawn("trust anchors", publisher.run());
    bundles
}

/// Returns the callback for changed files.
fn reload(
    registry: &Registry,
    authority: Arc<CertificateAuthority>,
    event_recorder: EventRecorder,
    anchors: watch::Sender<Arc<[u8]>>,
) -> impl FnMut(Result<LoadedIssuer, LoadError>) + Send + 'static {
    let results = registry.counter_family(
        "identity_issuer_reloads_total",
        "Changes of issuer and token key files, by whether they were loaded",
    );
    let result = |result: &'static str| results.with(&Labels::new().with("result", result));
    let (loaded, refused) = (result("loaded"), result("refused"));
    move |changed| match changed {
        Ok(new) => {
            let until = new.issuer.not_after();
            authority.set_issuer(new.issuer);
            if let Some(key) = new.token_key {
                authority.set_token_key(key);
            }
            anchors.send_replace(Arc::from(new.contents.anchors()));
            loaded.inc();
            event_recorder.issuer_updated(until);
            tracing::info!("Reloaded issuer credentials");
        }
        Err(error) => {
            refused.inc();
            let reason = error.source().map(ToString::to_string).unwrap_or_default();
            event_recorder.issuer_update_skipped(&format!("{error}: {reason}"));
            tracing::error!(%error, reason, "Cannot reload issuer credentials; keeping the previous ones");
        }
    }
}

fn identity_suffix(config: &Identity) -> Result<IdentitySuffix, ControllerError> {
    let namespace = &config.controller_namespace;
    if !is_dns_label(namespace) {
        return Err(ControllerError::Name(namespace.clone(), "namespace"));
    }
    let domain = trust_domain(&config.identity_trust_domain, &config.cluster_domain);
    if !domain.split('.').all(is_dns_label) {
        return Err(ControllerError::Name(domain.to_owned(), "trust domain"));
    }
    Ok(IdentitySuffix {
        control_namespace: namespace.clone(),
        trust_domain: domain.to_owned(),
    })
}

fn files(config: &Identity) -> Files {
    let names = IssuerNames::for_scheme(&config.identity_scheme);
    Files {
        issuer_certificate: config.issuer_dir.join(names.certificate),
        issuer_key: config.issuer_dir.join(names.key),
        trust_anchors: config.trust_anchors.clone(),
        token_key: config.token_verify_key.clone(),
        validity: Validity {
            lifetime: config.identity_issuance_lifetime,
            clock_skew: config.identity_clock_skew_allowance,
        },
    }
}

/// Exports the gauges of the issuer that alerts and a rotation use. The one of its end is
/// Linkerd's.
fn export_issuer(registry: &Registry, authority: &Arc<CertificateAuthority>) {
    let authority = authority.clone();
    registry.on_scrape(move |scrape| {
        let issuer = authority.issuer();
        if let Some(issuer) = &issuer {
            let labels = Labels::new().with(trust::ISSUER_LABEL, issuer.fingerprint());
            let since = issuer.loaded().duration_since(SystemTime::UNIX_EPOCH);
            let since = since.unwrap_or_default().as_secs_f64().floor();
            let help =
                "Unix time since when the issuer whose certificate has this SHA-256 is in use";
            scrape.gauge(trust::ISSUER_METRIC, help, &labels, since);
        }
        let left = issuer
            .as_ref()
            .map_or(0.0, |issuer| seconds_until(issuer.not_after()));
        let help = "Seconds until the first certificate of the issuer's chain expires";
        scrape.gauge("issuer_cert_ttl_seconds", help, &Labels::new(), left);
        if let Some(end) = issuer.and_then(|issuer| issuer.anchors_not_after()) {
            let help = "Seconds until the first trust anchor expires";
            let name = "mesh_trust_anchors_ttl_seconds";
            scrape.gauge(name, help, &Labels::new(), seconds_until(end));
        }
    });
}

/// Returns 0 for a time in the past.
fn seconds_until(time: SystemTime) -> f64 {
    let left = time.duration_since(SystemTime::now());
    left.unwrap_or_default().as_secs_f64()
}
