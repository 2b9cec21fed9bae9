//! Settings of identity: names, trust anchors, certificates.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::identity::Identity;

use super::env::Env;
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
    pub(crate) service: ControlAddr,
    /// Read for every certificate request, because the kubelet rotates it.
    pub(crate) token_file: PathBuf,
    pub(crate) min_refresh: Duration,
    pub(crate) max_refresh: Duration,
}

// Defaults as in Linkerd.
const DEFAULT_MIN_REFRESH: Duration = Duration::from_secs(10);
const DEFAULT_MAX_REFRESH: Duration = Duration::from_secs(24 * 3600);

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
        for spire in [
            "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS",
            "IDENTITY_SPIRE_SOCKET",
        ] {
            if env.is_set(spire) {
                env.fail(spire, "is set, but identities from SPIRE are not supported");
            }
        }
        let trust_anchors = env.required("IDENTITY_TRUST_ANCHORS", TrustAnchors::from_pem);
        let service = ControlAddr::read(env, "IDENTITY_SVC_ADDR", "IDENTITY_SVC_NAME");
        let token_file = env.required("IDENTITY_TOKEN_FILE", parse::path);
        let (id, server_name) = local_names(env)?;
        let (min_refresh, max_refresh) = refresh_bounds(env);
        Some(Self {
            id,
            server_name,
            trust_anchors: trust_anchors?,
            trust_anchors_file: env.get("MESH_PROXY_TRUST_ANCHORS_FILE").map(PathBuf::from),
            service: service?,
            token_file: token_file?,
            min_refresh,
            max_refresh,
        })
    }
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
            "must be a DNS name: certificates for SPIFFE identities come from SPIRE only",
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
