//! Connections from this machine to the services of the control plane, as its agent and the proxies
//! of its units make them: to an address, by TLS, with the service's identity.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use mesh_api::grpc::Channel;
use mesh_api::mesh::identity::WatchRequest;
use mesh_api::mesh::identity::trust_anchors_client::TrustAnchorsClient;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::clients::connection::Connection;
use crate::clients::tls::{self, TlsClient};
use crate::clients::{grpc, identity};
use crate::cluster::clock;
use crate::exit::Failure;

/// A service of the control plane as a proxy or the agent reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// `identity`, `destination` or `policy`.
    pub(crate) service: String,
    /// HOST:PORT.
    pub(crate) address: String,
    /// Its identity; empty if none is verified.
    pub(crate) name: String,
    /// The trust anchors that verify it, in PEM.
    pub(crate) anchors: String,
}

/// The clock of a service beside this machine's at the same moment, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clocks {
    pub(crate) service: u64,
    pub(crate) own: u64,
}

/// The destination and policy controllers, as the proxy of a unit reaches them.
pub(crate) struct Controllers {
    destination: Service,
    policy: Service,
    client: TlsClient,
}

/// DNS and a round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The service has what it sends.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

impl Service {
    /// Connects without TLS.
    pub(crate) async fn dial(&self) -> anyhow::Result<Connection> {
        let connecting = TcpStream::connect(&self.address);
        let stream = timeout(CONNECT_TIMEOUT, connecting).await;
        let stream = stream.map_err(|_elapsed| {
            Failure::TimedOut(format!(
                "cannot connect to {self} within {} s",
                CONNECT_TIMEOUT.as_secs()
            ))
        })?;
        let stream = stream.with_context(|| format!("cannot connect to {self}"))?;
        Ok(Connection::new(stream))
    }

    /// Returns the certificates that the service presents, leaf first and in DER.
    pub(crate) async fn chain(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        let chain = tls::fetch_chain(self.dial().await?, &self.name).await;
        chain.with_context(|| format!("no TLS connection with {self}"))
    }

    /// Connects by TLS, which verifies the service.
    pub(crate) async fn channel(&self, client: &TlsClient) -> anyhow::Result<Channel> {
        let connection = self.dial().await?;
        let connection = client.connect(connection, &self.name).await?;
        grpc::channel(connection, &self.to_string()).await
    }

    /// Returns the clock of the service; `None` if its responses do not tell.
    pub(crate) async fn clocks(&self) -> anyhow::Result<Option<Clocks>> {
        let channel = self.channel(&TlsClient::anonymous(&self.anchors)?).await?;
        let mut client = TrustAnchorsClient::new(channel);
        let response = timeout(CALL_TIMEOUT, client.watch(WatchRequest {})).await;
        let response = response.map_err(|_elapsed| {
            Failure::TimedOut(format!(
                "no response from {self} within {} s",
                CALL_TIMEOUT.as_secs()
            ))
        })?;
        let own = SystemTime::now().duration_since(UNIX_EPOCH);
        // The service of another project does not know the call, and responds all the same.
        let metadata = match response {
            Ok(response) => response.metadata().clone(),
            Err(status) => status.metadata().clone(),
        };
        let service = clock::of(&metadata.into_headers());
        Ok(service.map(|service| Clocks {
            service,
            own: own.unwrap_or_default().as_secs(),
        }))
    }

    /// Requests a certificate of the identity for a key that ends with the client.
    pub(crate) async fn certify(
        &self,
        identity: &str,
        token: String,
    ) -> anyhow::Result<identity::Certified> {
        let channel = self.channel(&TlsClient::anonymous(&self.anchors)?).await?;
        identity::certify(channel, &self.to_string(), identity, token, &self.anchors).await
    }
}

impl Controllers {
    /// Connects with a certificate for the proxy's identity, which the identity service issues for
    /// the token in a file. `account` has both.
    pub(crate) async fn of_proxy(
        services: Vec<Service>,
        account: impl FnOnce() -> Option<(String, PathBuf)>,
    ) -> anyhow::Result<Self> {
        let find = |wanted: &str| {
            let mut services = services.iter();
            let found = services.find(|it| it.service == wanted).cloned();
            found.with_context(|| format!("the proxy has no address of the {wanted} service"))
        };
        let (identity, token) = account().context("the agent gives the proxy no token")?;
        let token = std::fs::read_to_string(&token)
            .with_context(|| format!("cannot read {}", token.display()))?;
        let certifying = find("identity")?;
        let certified = certifying.certify(&identity, token.trim().to_owned());
        Ok(Self {
            destination: find("destination")?,
            policy: find("policy")?,
            client: Box::pin(certified).await?.client,
        })
    }

    /// Connects to the destination controller, or to the policy controller.
    pub(crate) async fn channel(&self, is_destination: bool) -> anyhow::Result<Channel> {
        let service = if is_destination {
            &self.destination
        } else {
            &self.policy
        };
        service.channel(&self.client).await
    }
}

impl std::fmt::Display for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the {} service at {}", self.service, self.address)
    }
}
