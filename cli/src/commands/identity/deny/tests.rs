//! Changes of the list against an API server in memory.

use mesh_test_support::kube_api::ScriptedApi;
use serde_json::json;

use super::*;

const OBJECT: &str = "/api/v1/namespaces/linkerd/configmaps/linkerd-denied-identities";
const CONFIG: &str = "/api/v1/namespaces/linkerd/configmaps/linkerd-config";
const WEB: &str = "web.shop.serviceaccount.identity.linkerd.example.org";
const SHOP: &str = "*.shop.serviceaccount.identity.linkerd.example.org";

fn api() -> (ScriptedApi, Cluster) {
    let api = ScriptedApi::default();
    let values = "identityTrustDomain: example.org\nclusterDomain: cluster.local\n";
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "linkerd-config", "namespace": "linkerd" },
        "data": { "values": values },
    });
    api.put(CONFIG, map);
    let cluster = Cluster::played(kube::Client::new(api.service("meshctl"), "default"));
    (api, cluster)
}

async fn run(cluster: &Cluster, verb: Verb, entries: &[&str]) -> anyhow::Result<Changed> {
    let entries: Vec<_> = entries.iter().map(|entry| parse(entry).unwrap()).collect();
    change_in(cluster, &entries, verb).await
}

fn stored(api: &ScriptedApi) -> String {
    let object = api.get(OBJECT).unwrap();
    object["data"]["identities"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn entries_are_added_and_removed_once_and_the_object_keeps_its_labels() {
    let (api, cluster) = api();
    let first = run(&cluster, Verb::Deny, &[WEB]).await.unwrap();
    assert!(first.notes.is_empty());
    assert_eq!(stored(&api), format!("{WEB}\n"));
    let mut object = api.get(OBJECT).unwrap();
    object["metadata"]["labels"] = json!({ "app": "a" });
    api.put(OBJECT, object);
    let again = run(&cluster, Verb::Deny, &[WEB, SHOP]).await.unwrap();
    assert_eq!(again.notes, [format!("{WEB} is in the list already")]);
    assert_eq!(stored(&api), format!("{WEB}\n{SHOP}\n"));
    assert_eq!(api.get(OBJECT).unwrap()["metadata"]["labels"]["app"], "a");

    let allowed = run(&cluster, Verb::Allow, &[WEB]).await.unwrap();
    assert_eq!(allowed.notes, [format!("{WEB} is still denied by {SHOP}")]);
    let twice = run(&cluster, Verb::Allow, &[WEB, SHOP]).await.unwrap();
    assert_eq!(twice.notes, [format!("{WEB} is not in the list")]);
    assert_eq!(stored(&api), "");
}

#[tokio::test]
async fn control_plane_and_invalid_lists_are_refused_and_nothing_is_written() {
    let (api, cluster) = api();
    for (entry, problem) in [
        (
            "*.example.org",
            "*.example.org denies ServiceAccounts of the control plane",
        ),
        (
            "a.linkerd.serviceaccount.identity.linkerd.example.org",
            "a.linkerd.serviceaccount.identity.linkerd.example.org denies ServiceAccounts",
        ),
    ] {
        let refused = run(&cluster, Verb::Deny, &[WEB, entry]).await.unwrap_err();
        assert!(refused.to_string().starts_with(problem), "{refused}");
    }
    assert!(api.get(OBJECT).is_none());
    for text in ["*", "a b", "http://a/b"] {
        parse(text).unwrap_err();
    }
    let invalid = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": CONFIG_MAP, "namespace": "linkerd" },
        "data": { "identities": "a b" },
    });
    api.put(OBJECT, invalid);
    for verb in [Verb::Deny, Verb::Allow] {
        let refused = run(&cluster, verb, &[WEB]).await.unwrap_err().to_string();
        let problem = "ConfigMap linkerd-denied-identities is invalid, and the list before it";
        assert!(refused.starts_with(problem), "{refused}");
    }
    assert_eq!(stored(&api), "a b");
}

#[test]
fn list_does_not_grow_beyond_its_limit() {
    let most: Vec<String> = (0..mesh_core::deny_list::MAX_DENIED)
        .map(|at| format!("a{at}.test"))
        .collect();
    let list = DenyList::parse(most.iter().map(String::as_str)).unwrap();
    let refused = apply(list, &[parse(WEB).unwrap()], Verb::Deny).unwrap_err();
    assert_eq!(refused.to_string(), "the list has more than 1000 entries");
}
