//! Admissions against an API server in memory.

use mesh_test_support::certificates::TestCa;
use mesh_test_support::kube_api::{Fault, ScriptedApi};
use serde_json::{Value, json};

use super::*;

const KEY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const OTHER_KEY: &str = "13b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const CORE: &str = "/api/v1/namespaces/linkerd/configmaps";
const DB: &str = "/api/v1/namespaces/linkerd/configmaps/linkerd-machine-db-1";

fn api() -> (ScriptedApi, String) {
    let api = ScriptedApi::default();
    let anchors = TestCa::new().anchor_pem().to_owned();
    let values = "identityTrustDomain: example.org\nclusterDomain: cluster.local\n";
    for (name, key, text) in [
        ("linkerd-config", "values", values),
        ("linkerd-identity-trust-roots", "ca-bundle.crt", &anchors),
    ] {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": "linkerd" }, "data": { key: text },
        });
        api.put(&format!("{CORE}/{name}"), map);
    }
    (api, anchors)
}

fn cluster(api: &ScriptedApi) -> Cluster {
    Cluster::played(kube::Client::new(api.service("meshctl"), "default"))
}

fn args(key: &str) -> Admit {
    Admit {
        name: "db-1".to_owned(),
        key_sha256: key.to_owned(),
        service_accounts: vec![AccountName::parse("shop/db").unwrap()],
        token_ttl: Duration::from_secs(900),
        addresses: Addresses {
            identity_addr: Some("192.0.2.7:8080".to_owned()),
            ..Addresses::default()
        },
    }
}

async fn admit(api: &ScriptedApi, key: &str, secret: &str) -> anyhow::Result<JoinFile> {
    let now = "2026-01-02T03:04:05.9Z".parse().unwrap();
    admit_in(&cluster(api), args(key), secret, now).await
}

#[tokio::test]
async fn admitted_machine_has_the_token_of_the_join_file_and_the_settings_of_the_mesh() {
    let (api, anchors) = api();
    let file = admit(&api, KEY, "5ec3e7").await.unwrap();
    assert_eq!(file.token, Secret("mesh-join.db-1.5ec3e7".to_owned()));
    assert_eq!(file.token_expires, "2026-01-02T03:19:06Z");
    assert_eq!((&*file.machine, &*file.key_sha256), ("db-1", KEY));
    let mesh = &file.mesh;
    assert_eq!(
        (&*mesh.trust_domain, &*mesh.trust_anchors),
        ("example.org", &*anchors)
    );
    assert_eq!(mesh.identity.address, "192.0.2.7:8080");
    let name = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.example.org";
    assert_eq!(mesh.identity.name, name);
    assert_eq!(
        mesh.policy.address,
        "linkerd-policy.linkerd.svc.cluster.local.:8090"
    );

    let object: ConfigMap = serde_json::from_value(api.get(DB).unwrap()).unwrap();
    let machine = Machine::read(&object).unwrap();
    let token = machine.token.unwrap();
    assert_eq!(token.sha256, fingerprint(b"mesh-join.db-1.5ec3e7"));
    assert_eq!(token.expires.to_string(), file.token_expires);
    let write = &api.writes("linkerd-machine")[0];
    assert!(
        write.query.contains("fieldManager=meshctl"),
        "{}",
        write.query
    );
    assert!(!write.query.contains("force=true"), "{}", write.query);
    assert!(!write.body.to_string().contains("5ec3e7"), "{}", write.body);
    // The machine reads what was printed.
    let printed = serde_norway::to_string(&file).unwrap();
    assert_eq!(serde_norway::from_str::<JoinFile>(&printed).unwrap(), file);
}

#[tokio::test]
async fn machine_is_admitted_again_with_its_key_only() {
    let (api, _) = api();
    admit(&api, KEY, "1").await.unwrap();
    admit(&api, KEY, "2").await.unwrap();
    let before = api.get(DB).unwrap();
    let error = admit(&api, OTHER_KEY, "3").await.unwrap_err();
    let expected = format!("machine db-1 is admitted with another key, {KEY}");
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_eq!(api.get(DB).unwrap(), before);
    dismiss_from(&cluster(&api), "db-1").await.unwrap();
    admit(&api, OTHER_KEY, "3").await.unwrap();
}

#[tokio::test]
async fn machine_is_listed_until_it_is_dismissed() {
    let (api, _) = api();
    let listed = async || {
        let maps = [DB, "/x"].into_iter().filter_map(|path| api.get(path));
        let items: Vec<Value> = maps.collect();
        let list = json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items });
        api.put(CORE, list);
        let found = list_rows(&api).await;
        api.delete(CORE);
        found
    };
    admit(&api, KEY, "1").await.unwrap();
    let invalid =
        json!({ "metadata": { "name": "linkerd-machine-x", "labels": { MACHINE: "x" } } });
    api.put("/x", invalid);
    let rows = listed().await;
    assert_eq!(rows.lines().count(), 3, "{rows}");
    let db = format!("db-1     {KEY}  shop/db           2026-01-02T03:19:06Z  -");
    assert!(rows.contains(&db), "{rows}");
    assert!(rows.contains("key-sha256: is missing"), "{rows}");

    dismiss_from(&cluster(&api), "db-1").await.unwrap();
    assert_eq!(listed().await.lines().count(), 2);
    let error = dismiss_from(&cluster(&api), "db-1").await.unwrap_err();
    assert!(
        error.to_string().contains("db-1 is not admitted"),
        "{error}"
    );
}

async fn list_rows(api: &ScriptedApi) -> String {
    table(&list(&cluster(api)).await.unwrap())
}

#[tokio::test]
async fn refused_write_admits_no_machine() {
    let (api, _) = api();
    api.refuse_writes_to("linkerd-machine", 409);
    let error = admit(&api, KEY, "1").await.unwrap_err().to_string();
    assert!(
        error.contains("write ConfigMap linkerd-machine-db-1"),
        "{error}"
    );
    api.set_fault("meshctl", Some(Fault::Status(403)));
    admit(&api, KEY, "1").await.unwrap_err();
    assert_eq!(api.get(DB), None);
}

#[test]
fn arguments_are_checked() {
    assert!(parse_ttl("59s").is_err() && parse_ttl("25h").is_err());
    assert_eq!(parse_ttl("15m"), Ok(Duration::from_secs(900)));
    assert!(parse_key("abc").is_err() && parse_key(&KEY.to_uppercase()).is_err());
    assert!(parse_account("shop").is_err() && parse_account("shop/a.b").is_err());
    assert!(parse_address("10.0.0.7").is_err() && parse_address("10.0.0.7:8080").is_ok());
    assert!(parse_name("db.1").is_err() && parse_name("db-1").is_ok());
}
