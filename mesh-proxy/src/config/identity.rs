//! Settings of identity: names, trust anchors, certificates.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::identity::Identity;
use mesh_core::resilience::Backoff;
use mesh_core::trust_domain;

use super::env::Env;
use super::server::connect_backoff;
use super::{ControlAddr, parse};
use crate::tls::TrustAnchors;

/// The identity of this proxy and how it obtains certificates.
#[derive(Clone, Debug)]
pub(crate) struct IdentityConfig {
    pub(crate) id: Identity,
    /// The TLS server name (SNI) that peers send.
    pub(crate) server_name: Arc<str>,
    pub(crate) trust_anchors: TrustAnchors,
    /// Reloaded while the proxy runs; its content then replaces `trust_anchors`. Without it the
    /// anchors that the identity service sends do.
    pub(crate) trust_anchors_file: Option<PathBuf>,
    pub(crate) min_refresh: Duration,
    pub(crate) max_refresh: Duration,
    pub(crate) source: IdentitySource,
}

/// Where certificates come from.
#[derive(Clone, Debug)]
pub(crate) enum IdentitySource {
    Service(IdentityService),
    WorkloadApi(WorkloadApiConfig),
}

/// The identity service, which issues certificates for tokens.
#[derive(Clone, Debug)]
pub(crate) struct IdentityService {
    pub(crate) addr: ControlAddr,
    /// Read for every certificate request, because the kubelet rotates it.
    pub(crate) token_file: PathBuf,
}

/// The SPIFFE Workload API, which sends certificates with their keys.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadApiConfig {
    pub(crate) socket: PathBuf,
    pub(crate) backoff: Backoff,
    /// The identity service, if it sends the anchors of the mesh.
    pub(crate) anchors: Option<ControlAddr>,
}

/// The variables of the socket. The first takes precedence, as in Linkerd; the second is its
/// earlier name.
const SOCKETS: [&str; 2] = [
    "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS",
    "IDENTITY_SPIRE_SOCKET",
];

// Defaults as in Linkerd.
const DEFAULT_MIN_REFRESH: Duration = Duration::from_secs(10);
const DEFAULT_MAX_REFRESH: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_WORKLOAD_API_BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(1),
    jitter: 0.1,
};

impl IdentityConfig {
    pub(super) fn read(env: &Env<'_>) -> Option<Self> {
        if env
            .text("IDENTITY_DISABLED")
            .is_some_and(|value| !value.is_empty())
        {
            env.fail(
                "IDENTITY_DISABLED",
                "is no longer supported: a proxy always has an identity",
            );
        }
        let trust_anchors = env.required("IDENTITY_TRUST_ANCHORS", TrustAnchors::from_pem);
        let (min_refresh, max_refresh) = refresh_bounds(env);
        // All that are set are read, so that all errors are found.
        let socket = SOCKETS.into_iter().find(|name| env.is_set(name));
        let (source, names) = match socket {
            Some(socket) => {
                let api = WorkloadApiConfig::read(env, socket);
                (
                    api.map(IdentitySource::WorkloadApi),
                    spiffe_names(env, socket),
                )
            }
            None => {
                let service = IdentityService::read(env);
                (service.map(IdentitySource::Service), local_names(env))
            }
        };
        let (id, server_name) = names?;
        Some(Self {
            id,
            server_name,
            trust_anchors: trust_anchors?,
            trust_anchors_file: env.get("MESH_PROXY_TRUST_ANCHORS_FILE").map(PathBuf::from),
            min_refresh,
            max_refresh,
            source: source?,
        })
    }

    /// Returns the trust domain of the mesh. A machine's identity may be of another one; the
    /// identity service is of the mesh.
    pub(crate) fn mesh_trust_domain(&self) -> Option<&str> {
        let service = || self.source.service()?.identity.as_ref();
        let own = Some(&self.id).filter(|id| matches!(id, Identity::Dns(_)));
        let id = own.or_else(service)?;
        trust_domain::of_service_account(id.as_str())
    }
}

impl IdentitySource {
    /// Returns the identity service, if the proxy calls it.
    pub(crate) fn service(&self) -> Option<&ControlAddr> {
        match self {
            Self::Service(service) => Some(&service.addr),
            Self::WorkloadApi(api) => api.anchors.as_ref(),
        }
    }
}

impl IdentityService {
    fn read(env: &Env<'_>) -> Option<Self> {
        let addr = read_service(env);
        let token_file = env.required("IDENTITY_TOKEN_FILE", parse::path);
        Some(Self {
            addr: addr?,
            token_file: token_file?,
        })
    }
}

impl WorkloadApiConfig {
    fn read(env: &Env<'_>, socket: &str) -> Option<Self> {
        if env.is_set("IDENTITY_TOKEN_FILE") {
            tracing::warn!(
                "LINKERD2_PROXY_IDENTITY_TOKEN_FILE is not used, because LINKERD2_PROXY_{socket} is set: certificates come from the Workload API"
            );
        }
        let backoff = connect_backoff(
            env,
            // Linkerd's proxy reads them with this prefix twice.
            [
                "LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MIN",
                "LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_MAX",
                "LINKERD2_PROXY_IDENTITY_SPIRE_EXP_BACKOFF_JITTER",
            ],
            DEFAULT_WORKLOAD_API_BACKOFF,
        );
        let anchors = env.is_set(SERVICE_ADDR).then(|| read_service(env));
        Some(Self {
            socket: env.required(socket, parse::unix_socket)?,
            backoff,
            anchors: match anchors {
                Some(addr) => Some(addr?),
                None => None,
            },
        })
    }
}

const SERVICE_ADDR: &str = "IDENTITY_SVC_ADDR";

fn read_service(env: &Env<'_>) -> Option<ControlAddr> {
    ControlAddr::read(env, SERVICE_ADDR, "IDENTITY_SVC_NAME")
}

/// Reads the identity and the server name, from one variable for both or one for each.
fn local_names(env: &Env<'_>) -> Option<(Identity, Arc<str>)> {
    let id_name = if env.is_set("IDENTITY_SERVER_ID") {
        "IDENTITY_SERVER_ID"
    } else {
        "IDENTITY_LOCAL_NAME"
    };
    let id = env.required(id_name, parse::identity);
    let server_name = env.optional("IDENTITY_SERVER_NAME", parse::identity);
    let id = id?;
    if let Identity::Uri(_) = &id {
        env.fail(
            id_name,
            format!(
                "must be a DNS name: certificates for SPIFFE identities come from the Workload API, whose socket is in {}",
                SOCKETS[0]
            ),
        );
        return None;
    }
    if server_name.is_some_and(|name| name != id) {
        env.fail(
            "IDENTITY_SERVER_NAME",
            format!("must be the same name as {id_name}"),
        );
        return None;
    }
    let server_name = id.as_str().into();
    Some((id, server_name))
}

/// Reads the identity and the server name of a proxy with the Workload API.
fn spiffe_names(env: &Env<'_>, socket: &str) -> Option<(Identity, Arc<str>)> {
    if env.is_set("IDENTITY_LOCAL_NAME") {
        env.fail(
            "IDENTITY_LOCAL_NAME",
            format!(
                "must not be set with {socket}: set IDENTITY_SERVER_ID to a SPIFFE identity and IDENTITY_SERVER_NAME to a DNS name"
            ),
        );
    }
    let id = env.required("IDENTITY_SERVER_ID", parse::spiffe_id);
    let server_name = env.required("IDENTITY_SERVER_NAME", parse::dns_name);
    Some((id?, server_name?.to_shared()))
}

fn refresh_bounds(env: &Env<'_>) -> (Duration, Duration) {
    let min = env.or("IDENTITY_MIN_REFRESH", parse::duration, DEFAULT_MIN_REFRESH);
    let max = env.or("IDENTITY_MAX_REFRESH", parse::duration, DEFAULT_MAX_REFRESH);
    if min > max {
        env.fail(
            "IDENTITY_MIN_REFRESH",
            "must not be longer than IDENTITY_MAX_REFRESH",
        );
    }
    (min, max)
}
