//! The list of denied identities: identity services with API servers in memory, whose proxies
//! receive each change, and which refuse certificates.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mesh_api::identity::{certify_request, trust_bundle};
use mesh_api::mesh::identity::trust_anchors_client::TrustAnchorsClient;
use mesh_api::mesh::identity::{TrustBundle, WatchRequest};
use mesh_api::proto::identity::identity_client::IdentityClient;
use mesh_test_support::certificates::TestCa;
use mesh_test_support::controller::{Controller, next_where};
use mesh_test_support::eventually::eventually_async as eventually;
use serde_json::json;
use tonic::{Code, Streaming};

use crate::messages::csr;
use crate::trust_bundles::{Cluster, EAST, RECORD};

const OBJECT: &str = "/api/v1/namespaces/linkerd/configmaps/linkerd-denied-identities";
const WEB: &str = "web.shop.serviceaccount.identity.linkerd.cluster.local";
const BANK: &str = "*.bank.serviceaccount.identity.linkerd.cluster.local";
const NO_ENTRY: &[&str] = &[];

async fn cluster() -> Cluster {
    let cluster = Cluster::new(EAST).await;
    let ca = TestCa::new();
    cluster.trust(ca.anchor_pem());
    cluster.issue(&ca);
    cluster
        .api
        .authenticate_as("system:serviceaccount:shop:web");
    cluster
}

fn deny(cluster: &Cluster, text: &str) {
    let object = json!({
        "metadata": { "name": "linkerd-denied-identities", "namespace": "linkerd" },
        "data": { "identities": text },
    });
    cluster.api.put(OBJECT, object);
}

async fn proxy(replica: &Controller) -> Streaming<TrustBundle> {
    let mut client = TrustAnchorsClient::new(replica.channel().await);
    client.watch(WatchRequest {}).await.unwrap().into_inner()
}

/// Waits for a bundle with these entries, and returns its number.
async fn until(proxy: &mut Streaming<TrustBundle>, entries: &[&str]) -> u64 {
    let message = next_where(proxy, |message: &TrustBundle| {
        let denied = message.denied.as_ref();
        denied.is_some_and(|list| list.entries == entries)
    });
    trust_bundle(message.await).unwrap().number
}

/// Requests a certificate of [`WEB`].
async fn certify(replica: &Controller) -> Result<(), (Code, String)> {
    let part = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let claims = json!({ "sub": "system:serviceaccount:shop:web", "aud": ["identity.l5d.io"] });
    let token = format!("{}.{}.c2ln", part(json!({ "alg": "RS256" })), part(claims));
    let mut client = IdentityClient::new(replica.channel().await);
    let request = certify_request(WEB, token.into_bytes(), csr(WEB));
    let response = client.certify(request).await;
    response
        .map(drop)
        .map_err(|status| (status.code(), status.message().to_owned()))
}

async fn is_refused(replica: &Controller) {
    let (code, message) = certify(replica).await.unwrap_err();
    assert_eq!(code, Code::PermissionDenied, "{message}");
    let expected = format!("{WEB} is denied (ConfigMap linkerd-denied-identities");
    assert!(message.starts_with(&expected), "{message}");
}

#[tokio::test]
async fn change_reaches_the_proxies_of_all_replicas_with_one_number_and_ends_certificates() {
    let cluster = cluster().await;
    let replicas = [cluster.replica(&[]).await, cluster.replica(&[]).await];
    let mut proxies = [proxy(&replicas[0]).await, proxy(&replicas[1]).await];
    let mut number = 0;
    let mut all_have = async |entries: &[&str]| {
        let (one, other) = (
            until(&mut proxies[0], entries).await,
            until(&mut proxies[1], entries).await,
        );
        assert_eq!(one, other, "replicas have one number for one list");
        assert!(one > number);
        number = one;
    };
    all_have(NO_ENTRY).await;
    certify(&replicas[0]).await.unwrap();

    deny(&cluster, &format!("{WEB}\n{BANK}\n"));
    all_have(&[WEB, BANK]).await;
    for replica in &replicas {
        is_refused(replica).await;
    }
    eventually("an event about the ServiceAccount", async || {
        let events = cluster.api.writes("/events");
        let denied = |event: &serde_json::Value| {
            event["reason"] == "IdentityDenied" && event["regarding"]["name"] == "web"
        };
        events.iter().any(|write| denied(&write.body)).then_some(())
    })
    .await;
    let late = cluster.replica(&[]).await;
    until(&mut proxy(&late).await, &[WEB, BANK]).await;
    is_refused(&late).await;

    deny(&cluster, BANK);
    all_have(&[BANK]).await;
    certify(&replicas[0]).await.unwrap();
    cluster.api.delete(OBJECT);
    all_have(NO_ENTRY).await;
    let record = cluster.api.get(RECORD).unwrap();
    assert_eq!(record["data"]["denied"], "");
}

#[tokio::test]
async fn invalid_object_keeps_the_last_valid_list_across_restarts() {
    let cluster = cluster().await;
    deny(&cluster, WEB);
    let replica = cluster.replica(&[]).await;
    let mut receiving = proxy(&replica).await;
    let number = until(&mut receiving, &[WEB]).await;
    for (text, problem) in [
        ("a b", "is refused: invalid DNS name"),
        (
            "*.cluster.local",
            "denies ServiceAccounts of the control plane",
        ),
    ] {
        deny(&cluster, text);
        replica.logged(problem).await;
    }
    let restarted = cluster.replica(&[]).await;
    assert_eq!(until(&mut proxy(&restarted).await, &[WEB]).await, number);
    for replica in [&replica, &restarted] {
        is_refused(replica).await;
        let (_, metrics) = replica.admin_get("/metrics").unwrap();
        assert!(metrics.contains("mesh_denied_identities 1\n"), "{metrics}");
        let failed = "mesh_denied_identities_failures_total 0\n";
        assert!(!metrics.contains(failed), "{metrics}");
    }
    deny(&cluster, BANK);
    until(&mut receiving, &[BANK]).await;
}

#[tokio::test]
async fn damaged_record_and_invalid_object_leave_the_valid_entries_denied() {
    let cluster = cluster().await;
    deny(&cluster, &format!("{WEB}\na b"));
    let replica = cluster.replica(&[]).await;
    until(&mut proxy(&replica).await, &[WEB]).await;
    is_refused(&replica).await;
}

#[tokio::test]
async fn identity_service_without_published_anchors_refuses_denied_identities() {
    let cluster = cluster().await;
    deny(&cluster, BANK);
    let replica = cluster.silent_replica().await;
    certify(&replica).await.unwrap();
    deny(&cluster, WEB);
    eventually("the list is read", async || {
        certify(&replica).await.is_err().then_some(())
    })
    .await;
    is_refused(&replica).await;
}
