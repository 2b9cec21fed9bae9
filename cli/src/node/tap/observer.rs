//! The certificate of a local node's observer, from the node's identity controller.

use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use mesh_core::identity::service_account;
use mesh_k8s::values::Values;
use mesh_local::client;
use tokio::sync::Mutex;

use super::super::{Node, failed};
use crate::clients::grpc;
use crate::clients::identity::{self, Certified};
use crate::clients::tls::TlsClient;
use crate::exit::Failure;
use crate::global::CONTROL_NAMESPACE;
use crate::resource::MeshPod;

/// Connects as the observer of a node.
pub(crate) struct Observer {
    pub(super) node: Node,
    /// Locked while a certificate is requested, so that all pods use the same one.
    certified: Mutex<Option<Certified>>,
}

/// The port of the identity controller.
const IDENTITY_PORT: u16 = 8080;

/// A certificate that expires sooner is not used for another connection.
const MIN_VALIDITY: Duration = Duration::from_secs(60);

impl Observer {
    pub(crate) fn new(node: Node) -> Self {
        Self {
            node,
            certified: Mutex::new(None),
        }
    }

    /// Returns a client with a valid certificate.
    pub(super) async fn client(&self) -> anyhow::Result<TlsClient> {
        let mut certified = self.certified.lock().await;
        let until = SystemTime::now() + MIN_VALIDITY;
        if let Some(current) = &*certified
            && current.valid_until > until
        {
            return Ok(current.client.clone());
        }
        let new = certify(&self.node)
            .await
            .context("get a certificate to tap with")?;
        Ok(certified.insert(new).client.clone())
    }
}

async fn certify(node: &Node) -> anyhow::Result<Certified> {
    let observer = client::observer(&node.paths).map_err(failed)?;
    let anchors = &observer.trust_anchors;
    let controller = controller(node)?;
    let connection = node.connect(&controller, IDENTITY_PORT).await?;
    let connection = TlsClient::anonymous(anchors)?
        .connect(connection, &identity_of(&controller))
        .await?;
    let server = format!("the identity controller in pod {controller}");
    let channel = grpc::channel(connection, &server).await?;
    identity::certify(
        channel,
        &server,
        &observer.identity,
        observer.token,
        anchors,
    )
    .await
}

/// Returns a pod of the identity controller.
fn controller(node: &Node) -> anyhow::Result<MeshPod> {
    let mut pods = node.pods()?.into_iter();
    let found = pods.find(|pod| pod.component.as_deref() == Some("identity") && pod.ready);
    let missing = || {
        Failure::Unreachable(format!(
            "the identity controller of local node {} is not ready; `meshctl local status` shows the reason",
            node.paths.name()
        ))
    };
    Ok(found.ok_or_else(missing)?)
}

fn identity_of(pod: &MeshPod) -> String {
    service_account(
        &pod.service_account,
        &pod.namespace,
        CONTROL_NAMESPACE,
        Values::default().trust_domain(),
    )
}
