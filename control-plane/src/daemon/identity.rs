//! The identity controller.

use std::{error::Error as _, sync::Arc, time::SystemTime};

use kube::Client;
use mesh_api::proto::identity::identity_server::IdentityServer;
use mesh_core::identity::trust_domain;
use mesh_runtime::metrics::{Labels, Registry};
use tokio::sync::watch;
use tonic::transport::Server;

use super::{Daemon, DaemonError, listen};
use crate::{
    cluster::{self, Events, Pace, Rate},
    config::Identity,
    identity::{
        Authority, Files, IssuerNames, LoadError, Loaded, Names, Record, Reviews, Tokens, Validity,
        is_dns_label,
    },
    serve::IdentityService,
    trust_roots::{self, Publisher},
};

/// Larger requests are refused unread: a CSR of 16 KiB, a token and a name fit well.
const MAX_REQUEST: usize = 64 * 1024;

/// No account gets more than half of what the API server may be asked, so that two are needed to
/// keep all others waiting. A Deployment of a thousand pods that starts at once still has its
/// certificates within half a minute; proxies that are sent away come back by themselves.
const CALLER_SHARE: u32 = 2;

pub(super) async fn run(config: Identity) -> Result<(), DaemonError> {
    let mut daemon = Daemon::new()?;
    let names = names(&config)?;
    let files = files(&config);
    let Loaded {
        issuer,
        token_key,
        contents,
    } = files.load().map_err(DaemonError::Identity)?;
    let listener = listen(config.addr).await?;
    daemon.serve_admin(config.admin_addr).await?;
    let ready = daemon.readiness.condition("the API server to be asked");

    let rate = Rate {
        per_second: config.kube_apiclient_qps,
        burst: config.kube_apiclient_burst,
    };
    let (anchors, published) = watch::channel(Arc::from(contents.anchors()));
    let (tokens, record) = match token_key {
        Some(key) => (Tokens::signed_by(key), Record::default()),
        None => {
            let client = cluster::connect(&config.cluster, "identity")
                .await
                .map_err(DaemonError::Connect)?;
            let reviews = Reviews::new(&client, Pace::new(rate));
            let Some(access) = daemon.unless_ended(reviews.prove_access()).await? else {
                return Ok(());
            };
            access.map_err(DaemonError::Access)?;
            if config.publish_trust_roots {
                publish(&daemon, &config, client.clone(), published);
            }
            let record = record(&daemon, &config, client).await;
            (Tokens::Reviewed(Box::new(reviews)), record)
        }
    };
    let authority = Arc::new(Authority::new(names, tokens, rate.share(CALLER_SHARE)));
    authority.set_issuer(issuer);
    export_ttl(&daemon.registry, &authority);
    let reload = reload(&daemon.registry, authority.clone(), record.clone(), anchors);
    daemon
        .supervisor
        .spawn("issuer files", files.follow(contents, reload));

    let service = IdentityServer::new(IdentityService::new(authority, record, &daemon.calls))
        .max_decoding_message_size(MAX_REQUEST);
    daemon.serve_grpc(listener, Server::builder().add_service(service));
    ready.set(true);
    tracing::info!(addr = %config.addr, trust_domain = trust_domain(&config.identity_trust_domain, &config.cluster_domain), "Serving identities");
    daemon.finish().await
}

/// Where events go.
async fn record(daemon: &Daemon, config: &Identity, client: Client) -> Record {
    let (events, writer) = Events::of(client.clone(), "linkerd-identity", &daemon.registry);
    daemon.supervisor.spawn("events", writer);
    Record::on(&client, events, &config.controller_namespace).await
}

fn publish(
    daemon: &Daemon,
    config: &Identity,
    client: Client,
    anchors: watch::Receiver<Arc<[u8]>>,
) {
    let publisher = Publisher::new(
        client,
        trust_roots::Settings {
            control_namespace: config.controller_namespace.clone(),
            owner: config.trust_roots_owner.clone(),
        },
        anchors,
        &daemon.registry,
    );
    daemon.supervisor.spawn("trust roots", publisher.run());
}

/// What to do when the files changed.
fn reload(
    registry: &Registry,
    authority: Arc<Authority>,
    record: Record,
    anchors: watch::Sender<Arc<[u8]>>,
) -> impl FnMut(Result<Loaded, LoadError>) + Send + 'static {
    let results = registry.counter_family(
        "identity_issuer_reloads_total",
        "Issuer and token key files that changed, by whether the new ones could be used",
    );
    let result = |result: &'static str| results.with(&Labels::new().with("result", result));
    let (taken, refused) = (result("loaded"), result("refused"));
    move |changed| match changed {
        Ok(new) => {
            let until = new.issuer.not_after();
            authority.set_issuer(new.issuer);
            if let Some(key) = new.token_key {
                authority.set_token_key(key);
            }
            anchors.send_replace(Arc::from(new.contents.anchors()));
            taken.inc();
            record.issuer_updated(until);
            tracing::info!("Took over a changed issuer");
        }
        Err(error) => {
            refused.inc();
            let reason = error.source().map(ToString::to_string).unwrap_or_default();
            record.issuer_update_skipped(&format!("{error}: {reason}"));
            tracing::error!(%error, reason, "The issuer's files changed and cannot be used; the old issuer stays in force");
        }
    }
}

fn names(config: &Identity) -> Result<Names, DaemonError> {
    let namespace = &config.controller_namespace;
    if !is_dns_label(namespace) {
        return Err(DaemonError::Name(namespace.clone(), "namespace"));
    }
    let domain = trust_domain(&config.identity_trust_domain, &config.cluster_domain);
    if !domain.split('.').all(is_dns_label) {
        return Err(DaemonError::Name(domain.to_owned(), "trust domain"));
    }
    Ok(Names {
        control_namespace: namespace.clone(),
        trust_domain: domain.to_owned(),
    })
}

fn files(config: &Identity) -> Files {
    let names = IssuerNames::of_scheme(&config.identity_scheme);
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
