//! The dashboard: a page, and the JSON API that it shows.
//!
//! ```text
//!   page ── GET /api/stream ─▶ Updates ◀─ Feeds ── gRPC ─▶ metrics API, policy controller
//!                                               ── HTTP ─▶ API server, Prometheus
//!        ── WebSocket /api/tap ─▶ TapSession ── POST ─▶ API server ─▶ tap API
//! ```
//!
//! Every response passes the checks of [`security`]. The page is built from `viz/web`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mesh_core::rights::{self, Right};
use mesh_runtime::drain;
use mesh_runtime::open_connections::Activity;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

use mesh_cluster::webhook::{self, HeldBody};

mod api;
mod ask;
mod assets;
mod check;
mod client;
mod endpoints;
mod feed;
mod json;
mod limits;
mod objects;
mod pods;
mod policies;
mod policy_client;
mod profile;
mod proxies;
mod query;
mod security;
mod settings;
mod sources;
mod stream;
mod tap;
mod topology;
mod upgrade;

pub(crate) use self::api::Dashboard;
pub(crate) use self::assets::Assets;
pub(crate) use self::check::Checker;
pub(crate) use self::client::MetricsClient;
pub(crate) use self::feed::Feeds;
pub(crate) use self::limits::Limits;
pub(crate) use self::policy_client::PolicyClient;
pub(crate) use self::settings::PageSettings;
pub(crate) use self::sources::{Place, Sources};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A browser opens up to six connections, and one for each tap.
const MAX_CONNECTIONS: usize = 1_024;

/// The time for the header section of a request, also of the next one on a connection.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a peer may not acknowledge data: a browser that has gone without closing its
/// connections, or does not read.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// The name in logs.
const SERVER: &str = "dashboard";

/// Returns the rights of the pages. Definitions and taps are behind `dashboard.restrictPrivileges`.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    let admission = "admissionregistration.k8s.io";
    let hooks = [
        "linkerd-proxy-injector-webhook-config",
        "linkerd-tap-injector-webhook-config",
    ];
    let hooks = hooks.into_iter().flat_map(move |name| {
        rights::named(admission, "mutatingwebhookconfigurations", &["get"], name)
    });
    let tap_api = "v1alpha1.tap.linkerd.io";
    objects::rights()
        .chain(rights::all("", "namespaces", &["list"]))
        .chain(rights::all("", "pods", &["get", "list"]))
        .chain(rights::all("discovery.k8s.io", "endpointslices", &["list"]))
        .chain(hooks)
        .chain(rights::named(
            "apiregistration.k8s.io",
            "apiservices",
            &["get"],
            tap_api,
        ))
        .chain(rights::all("tap.linkerd.io", "*", &["watch"]))
}

/// Serves until shutdown starts; open requests are completed and streams end.
pub(crate) async fn serve(listener: TcpListener, dashboard: Arc<Dashboard>, drain: drain::Watch) {
    let accept = webhook::accept(
        listener,
        MAX_CONNECTIONS,
        SERVER,
        |stream, peer, activity| {
            Some(serve_connection(
                stream,
                peer,
                activity,
                dashboard.clone(),
                drain.clone(),
            ))
        },
    );
    tokio::select! {
        () = accept => {}
        () = drain.draining() => {}
    }
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    activity: Activity,
    dashboard: Arc<Dashboard>,
    drain: drain::Watch,
) {
    if let Err(error) = set_options(&stream) {
        tracing::debug!(%peer, %error, "Cannot set options of a connection");
    }
    let service = service_fn(move |request: Request<Incoming>| {
        let dashboard = dashboard.clone();
        let active = activity.request();
        async move {
            let response = dashboard.respond(request).await;
            Ok::<_, Infallible>(response.map(|body| HeldBody::new(body, active)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIMEOUT)
        .max_buf_size(webhook::MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = drain.draining() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "Connection of the dashboard failed");
    }
}

fn set_options(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

fn empty() -> Body {
    Empty::new().boxed_unsync()
}
