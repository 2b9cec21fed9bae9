//! Requests for certificates in a closed loop, each client on a connection of its own: at a server
//! of Linkerd's identity API, or of Istio's.
//!
//! Every request is for the next of many ServiceAccounts, with a token without a valid signature:
//! the server must have it reviewed by `mesh-bench kube-api`.

use std::net::SocketAddr;

use anyhow::bail;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use clap::Args;
use h2::client::SendRequest;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;

use super::closed_loops;
use super::grpc::{self, framed, put};
use crate::kube_api::{service_name, service_namespace};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address of the server, without TLS
    #[arg(long)]
    address: SocketAddr,
    /// Request certificates of Istio's certificate service instead of Linkerd's identity service
    #[arg(long)]
    istio: bool,
    /// Number of clients
    #[arg(long)]
    clients: usize,
    /// Number of ServiceAccounts
    #[arg(long, default_value_t = 200)]
    accounts: u32,
    #[arg(long)]
    seconds: f64,
}

/// A request, without the headers of every request.
struct Request {
    method: &'static str,
    /// The header `authorization`, if the token is not in the message.
    authorization: Option<String>,
    message: Bytes,
}

/// The audiences of Linkerd's and Istio's tokens.
const AUDIENCES: [&str; 2] = ["identity.l5d.io", "istio-ca"];
/// A time in the year 2100.
const EXPIRY: u64 = 4_102_444_800;

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let accounts = 0..options.accounts;
    let requests: Vec<Request> = accounts
        .map(|account| Request::new(account, options.istio))
        .collect::<Result<_, _>>()?;
    let requests: &'static [Request] = requests.leak();
    let mut connections = Vec::new();
    for _ in 0..options.clients {
        connections.push(grpc::connect(options.address).await?.0);
    }
    let address = options.address;
    let send = move |connection, request: &'static Request| request.send(connection, address);
    closed_loops(connections, requests, options.seconds, send).await
}

impl Request {
    fn new(account: u32, istio: bool) -> anyhow::Result<Self> {
        let (name, namespace) = (service_name(account), service_namespace(account));
        let token = token(&name, &namespace);
        let identity = format!("{name}.{namespace}.serviceaccount.identity.linkerd.cluster.local");
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(vec![identity.clone()])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        let csr = params.serialize_request(&key)?;
        let mut message = Vec::new();
        if istio {
            put(&mut message, 1, csr.pem()?.as_bytes());
            return Ok(Self {
                method: "istio.v1.auth.IstioCertificateService/CreateCertificate",
                authorization: Some(format!("Bearer {token}")),
                message: framed(&message).into(),
            });
        }
        put(&mut message, 1, identity.as_bytes());
        put(&mut message, 2, token.as_bytes());
        put(&mut message, 3, csr.der());
        Ok(Self {
            method: "io.linkerd.proxy.identity.Identity/Certify",
            authorization: None,
            message: framed(&message).into(),
        })
    }

    /// Sends it, and fails unless the response has a certificate.
    async fn send(&self, connection: SendRequest<Bytes>, to: SocketAddr) -> anyhow::Result<()> {
        let mut head = grpc::request(to, self.method);
        if let Some(authorization) = &self.authorization {
            head = head.header("authorization", authorization);
        }
        let mut connection = connection.ready().await?;
        let (response, mut body) = connection.send_request(head.body(())?, false)?;
        body.send_data(self.message.clone(), true)?;
        let (head, mut body) = response.await?.into_parts();
        let mut length = 0;
        while let Some(data) = body.data().await {
            let data = data?;
            length += data.len();
            body.flow_control().release_capacity(data.len())?;
        }
        let trailers = body.trailers().await?.unwrap_or(head.headers);
        match trailers.get("grpc-status") {
            Some(status) if status == "0" && length > 0 => Ok(()),
            status => bail!("{status:?}: {:?}", trailers.get("grpc-message")),
        }
    }
}

/// Returns a JSON Web Token of a ServiceAccount, with an invalid signature.
fn token(name: &str, namespace: &str) -> String {
    let part = |part: serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let claims = json!({
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
        "aud": AUDIENCES,
        "exp": EXPIRY,
    });
    let header = json!({"alg": "RS256", "typ": "JWT"});
    format!("{}.{}.{}", part(header), part(claims), part(json!("none")))
}
