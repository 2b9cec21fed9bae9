//! Client of the identity service: a certificate for a new key, which does not leave the process.

use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use mesh_api::grpc::Channel;
use mesh_api::proto::identity::identity_client::IdentityClient;
use tokio::time::timeout;

use super::tls::{CertificateRequest, TlsClient};
use crate::exit::Failure;

/// A client of proxies with a certificate.
pub(crate) struct Certified {
    pub(crate) client: TlsClient,
    pub(crate) valid_until: SystemTime,
}

/// The service verifies the token with a key that it has.
const CERTIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests a certificate of `identity`. `server` is the name of the service for error messages.
pub(crate) async fn certify(
    channel: Channel,
    server: &str,
    identity: &str,
    token: String,
    anchors: &str,
) -> anyhow::Result<Certified> {
    let request = CertificateRequest::new(identity)?;
    let message =
        mesh_api::identity::certify_request(identity, token.into_bytes(), request.der().to_vec());
    let mut service = IdentityClient::new(channel);
    let response = timeout(CERTIFY_TIMEOUT, service.certify(message)).await;
    let response = response.map_err(|_elapsed| {
        Failure::TimedOut(format!(
            "no response from {server} within {} s",
            CERTIFY_TIMEOUT.as_secs()
        ))
    })?;
    let response = response.with_context(|| format!("{server} issued no certificate"))?;
    let issued = mesh_api::identity::issued(response.into_inner())?;
    let valid_until = issued.valid_until;
    let chain = [vec![issued.leaf], issued.intermediates].concat();
    Ok(Certified {
        client: TlsClient::certified(request, chain, anchors)?,
        valid_until,
    })
}
