//! The tap API of the viz extension: an extension API server that lets users watch the requests of
//! workloads.
//!
//! The API server forwards a request with the user's name ([`front_proxy`]). The tap API asks it
//! whether the user may tap the target, subscribes to the proxies of the target's pods
//! ([`observe`]), and streams their events in the form of Linkerd's clients ([`event`]).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use mesh_cluster::api_server::explain;
use mesh_cluster::webhook::{self, Acceptor, HeldBody, ServingCertificate};
use mesh_core::rights::{self, Right};
use mesh_runtime::admin::Condition;
use mesh_runtime::drain;
use mesh_runtime::log::chain;
use mesh_runtime::open_connections::Activity;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use self::api::{AccessReviewer, ReviewFuture};
use self::front_proxy::FrontProxy;

mod api;
mod front_proxy;
mod ignored;
mod observe;
mod pods;
mod request;
mod tls;

pub(crate) use self::api::{MAX_TAPS, TapApi};
pub(crate) use self::ignored::IgnoredHeaders;
pub(crate) use self::request::Target;

/// The configuration of the API server's front proxy, once it is known.
pub(crate) type FrontProxyRx = watch::Receiver<Option<Arc<FrontProxy>>>;

/// Each API server opens a few connections.
const MAX_CONNECTIONS: usize = 256;

/// The time for the header section of a request.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of this controller in events.
pub(crate) const CONTROLLER: &str = "linkerd-tap";

/// The name in logs.
const SERVER: &str = "tap API";

/// Where API servers publish the configuration, and how often it is compared. A front proxy's
/// authority is replaced once in years.
const AUTHENTICATION: (&str, &str) = ("kube-system", "extension-apiserver-authentication");
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Asks the API server.
pub(crate) struct ApiServerReviewer(pub(crate) Client);

impl AccessReviewer for ApiServerReviewer {
    fn review(&self, review: SubjectAccessReview) -> ReviewFuture<'_> {
        Box::pin(async move {
            let reviews: Api<SubjectAccessReview> = Api::all(self.0.clone());
            let created = reviews.create(&PostParams::default(), &review).await;
            created.map_err(|error| explain(&error))
        })
    }
}

/// Keeps the configuration of the front proxy up to date, for the life of the process.
pub(crate) async fn watch_front_proxy(
    client: Client,
    publish: watch::Sender<Option<Arc<FrontProxy>>>,
    ready: Condition,
) {
    let (namespace, name) = AUTHENTICATION;
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    loop {
        let read = match maps.get(name).await {
            Ok(map) => FrontProxy::read(&map).map_err(|error| error.to_string()),
            Err(error) => Err(explain(&error)),
        };
        match read {
            Ok(front_proxy) => {
                publish.send_if_modified(|current| {
                    let is_new = current.as_deref() != Some(&front_proxy);
                    if is_new {
                        tracing::info!("Read how the API server authenticates itself");
                        *current = Some(Arc::new(front_proxy));
                    }
                    is_new
                });
                ready.set(true);
                sleep(RELOAD_INTERVAL).await;
            }
            Err(error) => {
                tracing::warn!(
                    namespace,
                    name,
                    error,
                    "Cannot read how the API server authenticates itself; keeping what is known"
                );
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

/// Returns the rights to authenticate callers and to authorize taps.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    let (_, name) = AUTHENTICATION;
    rights::all("authorization.k8s.io", "subjectaccessreviews", &["create"]).chain(rights::named(
        "",
        "configmaps",
        &["get"],
        name,
    ))
}

/// Serves until shutdown starts. Taps end then: their clients connect again, to another replica.
pub(crate) async fn serve(
    listener: TcpListener,
    serving: Arc<ServingCertificate>,
    mut front_proxy: FrontProxyRx,
    api: Arc<TapApi>,
    drain: drain::Watch,
) {
    let accept = async {
        // Clients could not be verified before.
        if front_proxy.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let mut current: Option<(Arc<FrontProxy>, Acceptor)> = None;
        let serve = |stream, peer, activity| {
            let acceptor = acceptor(&mut current, &serving, &front_proxy)?;
            Some(serve_connection(
                stream,
                peer,
                activity,
                acceptor,
                api.clone(),
            ))
        };
        webhook::accept(listener, MAX_CONNECTIONS, SERVER, serve).await;
    };
    tokio::select! {
        () = accept => {}
        () = drain.draining() => {}
    }
}

/// Returns the acceptor for the current configuration of the front proxy.
fn acceptor(
    current: &mut Option<(Arc<FrontProxy>, Acceptor)>,
    serving: &Arc<ServingCertificate>,
    front_proxy: &FrontProxyRx,
) -> Option<Acceptor> {
    let wanted = front_proxy.borrow().clone()?;
    if let Some((known, acceptor)) = current
        && Arc::ptr_eq(known, &wanted)
    {
        return Some(acceptor.clone());
    }
    match tls::client_verifier(&wanted) {
        Ok(clients) => {
            let acceptor = Acceptor::verifying(serving.clone(), clients);
            *current = Some((wanted, acceptor.clone()));
            Some(acceptor)
        }
        Err(error) => {
            tracing::error!(
                error = chain(&error),
                "Cannot verify the API server: connection closed"
            );
            None
        }
    }
}

async fn serve_connection(
    tcp: TcpStream,
    peer: SocketAddr,
    activity: Activity,
    acceptor: Acceptor,
    api: Arc<TapApi>,
) {
    let Some(stream) = webhook::handshake(&acceptor, tcp, peer, SERVER).await else {
        return;
    };
    let leaf = stream.client_certificate().map(Arc::new);
    let service = service_fn(move |request: Request<Incoming>| {
        let (api, leaf) = (api.clone(), leaf.clone());
        let active = activity.request();
        async move {
            let response = api.respond(request, leaf.as_deref()).await;
            Ok::<_, Infallible>(response.map(|body| HeldBody::new(body, active)))
        }
    });
    let is_http2 = stream.is_http2();
    let io = TokioIo::new(stream);
    let ended = if is_http2 {
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(webhook::MAX_STREAMS)
            .max_header_list_size(webhook::MAX_HEADERS as u32)
            .serve_connection(io, service)
            .await
    } else {
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_TIMEOUT)
            .max_buf_size(webhook::MAX_HEADERS)
            .serve_connection(io, service)
            .await
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "Connection of the tap API failed");
    }
}
