//! Certificates from an empty namespace: bootstrap, token reviews by the API server, events, trust
//! roots.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use mesh_api::identity::certify_request;
use mesh_api::proto::identity::CertifyResponse;
use mesh_api::proto::identity::identity_client::IdentityClient;
use mesh_test_support::certificates::TestCa;
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{Cluster, cluster};
use crate::controller::{Controller, eventually};
use crate::identity::csr;

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
        // The deleted account may have one too, from the time in which its token was accepted.
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

/// Returns a namespace that enables injection and is not of these tests.
async fn in_use(cluster: &Cluster) -> Option<String> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let all = namespaces.list(&ListParams::default()).await.unwrap();
    all.items
        .into_iter()
        .filter(|namespace| namespace.annotations().contains_key("linkerd.io/inject"))
        .map(|namespace| namespace.name_any())
        .find(|name| !name.starts_with("mesh-it-"))
}

#[tokio::test]
async fn trust_anchors_are_copied_to_meshed_namespaces() {
    let Some(cluster) = cluster("roots").await else {
        return;
    };
    if let Some(namespace) = in_use(&cluster).await {
        println!(
            "skipped: namespace {namespace} uses the mesh, and its proxies must not get the anchors of a test"
        );
        return;
    }
    let Some(control) = super::cluster("control").await else {
        return;
    };
    assert!(bootstrap(&control).status().unwrap().success());
    let generated = generated(&control).await;
    let dir = tempfile::tempdir().unwrap();
    let mut args = mount(&generated, dir.path());
    args.push(format!("--controller-namespace={}", control.namespace));
    args.push("--publish-trust-roots".to_owned());
    args.extend(control.flags());
    let _controller = Controller::start("identity", "--addr", "--admin-addr", &args)
        .ready()
        .await;

    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let request = json!({ "metadata": { "annotations": { "linkerd.io/inject": "enabled" } } });
    let params = PatchParams::default();
    namespaces
        .patch(&cluster.namespace, &params, &Patch::Merge(&request))
        .await
        .unwrap();
    let contains = |bundle: &str| {
        let bundle = bundle.to_owned();
        move |map: ConfigMap| (map.data?.get(BUNDLE)? == &bundle).then_some(())
    };
    cluster.wait_for(ROOTS, contains(&generated[ROOTS])).await;

    // Another client changes it.
    let maps: Api<ConfigMap> = cluster.namespaced();
    let evil = json!({ "data": { BUNDLE: "evil" } });
    maps.patch(ROOTS, &params, &Patch::Merge(&evil))
        .await
        .unwrap();
    cluster.wait_for(ROOTS, contains(&generated[ROOTS])).await;

    // A second anchor is added to the copy.
    let both = format!("{}{}", generated[ROOTS], TestCa::new().anchor_pem());
    fs::write(dir.path().join(BUNDLE), &both).unwrap();
    cluster.wait_for(ROOTS, contains(&both)).await;
}
