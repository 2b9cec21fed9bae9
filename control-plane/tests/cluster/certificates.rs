//! Certificates from an empty namespace: bootstrap, token reviews by the API server, events, trust
//! roots.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use mesh_api::identity::certify_request;
use mesh_api::mesh::identity::trust_anchors_client::TrustAnchorsClient;
use mesh_api::mesh::identity::{TrustBundle, WatchRequest};
use mesh_api::proto::identity::CertifyResponse;
use mesh_api::proto::identity::identity_client::IdentityClient;
use mesh_test_support::certificates::TestCa;
use mesh_test_support::controller::Controller;
use mesh_test_support::eventually::eventually_async as eventually;
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::messages::csr;
use crate::{Cluster, cluster};

const ISSUER: &str = "linkerd-identity-issuer";
const ROOTS: &str = "linkerd-identity-trust-roots";
const BUNDLE: &str = "ca-bundle.crt";

fn bootstrap(cluster: &Cluster) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-controller"));
    command
        .arg("bootstrap")
        .arg(format!("--controller-namespace={}", cluster.namespace))
        .args(cluster.flags());
    command
}

/// Returns the entries of the Secrets and the ConfigMap by name and key.
async fn generated(cluster: &Cluster) -> BTreeMap<String, String> {
    let mut generated = BTreeMap::new();
    let secrets: Api<Secret> = cluster.namespaced();
    for name in ["linkerd-trust-anchor", ISSUER] {
        let secret = secrets.get(name).await.unwrap();
        for (key, value) in secret.data.unwrap() {
            generated.insert(format!("{name}/{key}"), String::from_utf8(value.0).unwrap());
        }
    }
    let maps: Api<ConfigMap> = cluster.namespaced();
    let roots = maps.get(ROOTS).await.unwrap().data.unwrap();
    generated.insert(ROOTS.to_owned(), roots[BUNDLE].clone());
    generated
}

/// Writes the files that the kubelet would mount.
fn mount(generated: &BTreeMap<String, String>, dir: &Path) -> Vec<String> {
    for file in ["crt.pem", "key.pem"] {
        fs::write(dir.join(file), &generated[&format!("{ISSUER}/{file}")]).unwrap();
    }
    fs::write(dir.join(BUNDLE), &generated[ROOTS]).unwrap();
    vec![
        format!("--issuer-dir={}", dir.display()),
        format!("--trust-anchors={}", dir.join(BUNDLE).display()),
    ]
}

async fn token(cluster: &Cluster, account: &str, audience: &str) -> Vec<u8> {
    let accounts: Api<ServiceAccount> = cluster.namespaced();
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: vec![audience.to_owned()],
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let generated = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .unwrap();
    generated.status.unwrap().token.into_bytes()
}

struct Client<'a> {
    cluster: &'a Cluster,
    client: IdentityClient<Channel>,
}

impl Client<'_> {
    async fn certify(&mut self, account: &str, token: Vec<u8>) -> Result<CertifyResponse, Status> {
        let namespace = &self.cluster.namespace;
        let identity =
            format!("{account}.{namespace}.serviceaccount.identity.{namespace}.cluster.local");
        let request = certify_request(&identity, token, csr(&identity));
        Ok(self.client.certify(request).await?.into_inner())
    }
}

#[tokio::test]
async fn bootstrap_in_empty_namespace_leads_to_certificate() {
    let Some(cluster) = cluster("identity").await else {
        return;
    };
    // Three concurrent Jobs and a later one result in the same certificates.
    let jobs: Vec<_> = (0..3)
        .map(|_| bootstrap(&cluster).spawn().unwrap())
        .collect();
    for mut job in jobs {
        assert!(job.wait().unwrap().success());
    }
    let first = generated(&cluster).await;
    assert!(bootstrap(&cluster).status().unwrap().success());
    assert!(generated(&cluster).await == first);

    let dir = tempfile::tempdir().unwrap();
    let mut args = mount(&first, dir.path());
    args.push(format!("--controller-namespace={}", cluster.namespace));
    args.extend(cluster.flags());
    let controller = Controller::start("identity", "--addr", "--admin-addr", &args)
        .ready()
        .await;
    let mut client = Client {
        cluster: &cluster,
        client: IdentityClient::new(controller.channel().await),
    };
    cluster.service_account("web").await;
    cluster.service_account("other").await;
    let good = token(&cluster, "web", "identity.l5d.io").await;
    client.certify("web", good.clone()).await.unwrap();

    // Another audience, another account, a forged token, and a deleted account.
    let audience = token(&cluster, "web", "https://kubernetes.default.svc").await;
    let refused = client.certify("web", audience).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("audience"), "{refused}");
    let refused = client.certify("other", good.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let mut forged = good;
    let at = forged.iter().rposition(|byte| *byte == b'.').unwrap() + 9;
    forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
    let refused = client.certify("web", forged).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let gone = token(&cluster, "other", "identity.l5d.io").await;
    cluster.delete("v1", "ServiceAccount", "other").await;
    // The API server caches accounts, and accepted tokens for 10 s. Attempts in that time reach the
    // account's rate limit.
    let refused = eventually("the refusal of a deleted account", async || {
        let refused = client.certify("other", gone.clone()).await.err()?;
        (refused.code() != Code::ResourceExhausted).then_some(refused)
    })
    .await;
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");

    let accounts: Api<ServiceAccount> = cluster.namespaced();
    let uid = accounts.get("web").await.unwrap().metadata.uid;
    let events: Api<Event> = cluster.namespaced();
    let event = eventually("the event of the certificate", async || {
        let events = events.list(&ListParams::default()).await.unwrap();
        // The deleted account may have one too, from the time when its token was accepted.
        let issued = |event: &Event| {
            let about = event.regarding.as_ref();
            event.reason.as_deref() == Some("IssuedLeafCertificate")
                && about.is_some_and(|about| about.name.as_deref() == Some("web"))
        };
        events.items.into_iter().find(issued)
    })
    .await;
    assert_eq!(event.regarding.unwrap().uid, uid);
}

/// Returns the next bundle of a stream, with the number of certificates.
async fn next_bundle(stream: &mut Streaming<TrustBundle>) -> (u64, usize) {
    let message = stream.message().await.unwrap().unwrap();
    let anchors = message.anchors.matches("BEGIN CERTIFICATE").count();
    (message.number, anchors)
}

#[tokio::test]
async fn trust_anchors_are_numbered_across_replicas() {
    let Some(cluster) = cluster("roots").await else {
        return;
    };
    assert!(bootstrap(&cluster).status().unwrap().success());
    let generated = generated(&cluster).await;
    let maps: Api<ConfigMap> = cluster.namespaced();
    let params = PatchParams::apply("mesh-it").force();
    let record = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "linkerd-identity-trust-bundle" },
    });
    let name = "linkerd-identity-trust-bundle";
    maps.patch(name, &params, &Patch::Apply(&record))
        .await
        .unwrap();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut replicas = Vec::new();
    let mut streams = Vec::new();
    for dir in &dirs {
        let mut args = mount(&generated, dir.path());
        args.push(format!("--controller-namespace={}", cluster.namespace));
        args.push("--publish-trust-roots".to_owned());
        args.extend(cluster.flags());
        let replica = Controller::start("identity", "--addr", "--admin-addr", &args)
            .ready()
            .await;
        let mut client = TrustAnchorsClient::new(replica.channel().await);
        streams.push(client.watch(WatchRequest {}).await.unwrap().into_inner());
        replicas.push(replica);
    }
    let first = next_bundle(&mut streams[0]).await;
    assert_eq!(next_bundle(&mut streams[1]).await, first);
    assert_eq!(first.1, 1);

    // A second anchor: the source, then the volume of one replica. The other one, whose volume is
    // late, sends what the first has numbered.
    let both = format!("{}{}", generated[ROOTS], TestCa::new().anchor_pem());
    let source = json!({ "data": { BUNDLE: both } });
    let merge = PatchParams::default();
    maps.patch(ROOTS, &merge, &Patch::Merge(&source))
        .await
        .unwrap();
    fs::write(dirs[0].path().join(BUNDLE), &both).unwrap();
    let second = next_bundle(&mut streams[0]).await;
    assert!(second.0 > first.0 && second.1 == 2, "{second:?}");
    assert_eq!(next_bundle(&mut streams[1]).await, second);
}
