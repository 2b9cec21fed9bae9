//! The credentials of the other cluster: a kubeconfig with the token of a ServiceAccount.

use std::net::IpAddr;

use anyhow::bail;
use kube::Api;
use kube::api::ListParams;
use mesh_cluster::api_server::LinkedKubeconfig;
use mesh_k8s::kinds::{ResourceExt, Secret, ServiceAccount};
use serde_json::json;

use crate::cluster::kubeconfig::ApiServerEntry;
use crate::cluster::{Cluster, error};
use crate::exit::Failure;
use crate::resource::Scope;

const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";

/// Returns the token of a ServiceAccount from the Secret that Kubernetes stores it in.
pub(super) async fn token(
    cluster: &Cluster,
    namespace: &str,
    account: &str,
) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), namespace);
    let what = format!("read ServiceAccount {namespace}/{account}");
    let found = accounts.get_metadata_opt(account).await;
    if found
        .map_err(|error| error::failed(&what, error))?
        .is_none()
    {
        bail!(Failure::Input(format!(
            "namespace {namespace} has no ServiceAccount {account}: install the multicluster extension there, or create the account with `meshctl multicluster allow --service-account-name {account}`"
        )));
    }
    let scope = Scope::Namespace(namespace.to_owned());
    let tokens = ListParams::default().fields(&format!("type={TOKEN_TYPE}"));
    let secrets = cluster.list::<Secret>(&scope, tokens).await;
    let what = format!("list the tokens of namespace {namespace}");
    let secrets = secrets.map_err(|error| error::failed(&what, error))?;
    Ok(token_of(&secrets, namespace, account).map_err(Failure::Input)?)
}

fn token_of(secrets: &[Secret], namespace: &str, account: &str) -> Result<String, String> {
    let of_account = |secret: &&Secret| {
        secret.type_.as_deref() == Some(TOKEN_TYPE)
            && secret.annotations().get(ACCOUNT).map(String::as_str) == Some(account)
    };
    let mut without = None;
    for secret in secrets.iter().filter(of_account) {
        let name = secret.name_any();
        let token = secret.data.as_ref().and_then(|data| data.get("token"));
        match token.filter(|token| !token.0.is_empty()) {
            Some(token) => {
                return String::from_utf8(token.0.clone())
                    .map_err(|_invalid| format!("Secret {namespace}/{name}: token is not UTF-8"));
            }
            None => without = Some(name),
        }
    }
    Err(match without {
        Some(name) => format!(
            "Secret {namespace}/{name} has no token yet: Kubernetes adds it within seconds, then try again"
        ),
        None => format!(
            "ServiceAccount {namespace}/{account} has no token: create a Secret of type {TOKEN_TYPE} with the annotation {ACCOUNT}: {account}, as `meshctl multicluster allow` prints it"
        ),
    })
}

/// Returns the URL of the API server for the other cluster. Without a scheme it is https, as in
/// Kubernetes.
pub(super) fn server(entry: &ApiServerEntry, address: Option<&str>) -> Result<String, Failure> {
    let Some(address) = address else {
        return entry.server.clone().ok_or_else(|| {
            let text = "the address of the API server in this pod has a meaning only in its cluster: name one for the other cluster with --api-server-address";
            Failure::Input(text.to_owned())
        });
    };
    let url = if address.contains("://") {
        address.to_owned()
    } else {
        format!("https://{address}")
    };
    let parsed = url.parse::<http::Uri>().ok();
    let is_usable = parsed.is_some_and(|url| {
        matches!(url.scheme_str(), Some("https" | "http"))
            && url.host().is_some_and(|host| !host.is_empty())
    });
    if is_usable {
        Ok(url)
    } else {
        Err(Failure::Input(format!(
            "--api-server-address: {address:?} is not a URL such as https://api.example.com:6443"
        )))
    }
}

/// Returns whether the URL leads to the machine of its client.
pub(super) fn is_local(server: &str) -> bool {
    let Ok(url) = server.parse::<http::Uri>() else {
        return false;
    };
    let host = url.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<IpAddr>();
    host == "localhost"
        || address.is_ok_and(|address| address.is_loopback() || address.is_unspecified())
}

/// Returns the kubeconfig, which the controllers of the other cluster accept.
pub(super) fn kubeconfig(
    entry: &ApiServerEntry,
    server: &str,
    account: &str,
    token: &str,
) -> anyhow::Result<String> {
    let ApiServerEntry {
        context,
        cluster,
        fields,
        ..
    } = entry;
    let mut fields = fields.clone();
    fields.insert("server".to_owned(), json!(server));
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": cluster, "cluster": fields }],
        "contexts": [{ "name": context, "context": { "cluster": cluster, "user": account } }],
        "current-context": context,
        "users": [{ "name": account, "user": { "token": token } }],
    });
    let text = serde_norway::to_string(&kubeconfig)?;
    LinkedKubeconfig::read(&text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mesh_k8s::kinds::ByteString;
    use serde_json::Map;

    use super::*;

    fn secret(name: &str, account: &str, token: Option<&[u8]>) -> Secret {
        let mut secret = Secret {
            type_: Some(TOKEN_TYPE.to_owned()),
            ..Secret::default()
        };
        secret.metadata.name = Some(name.to_owned());
        secret.metadata.annotations = Some([(ACCOUNT.to_owned(), account.to_owned())].into());
        secret.data = token.map(|token| {
            let token = ByteString(token.to_vec());
            BTreeMap::from([("token".to_owned(), token)])
        });
        secret
    }

    #[test]
    fn token_is_the_accounts_own() {
        let secrets = [
            secret("other", "default", Some(b"o")),
            secret("new", "mirror", None),
            secret("old", "mirror", Some(b"t")),
        ];
        assert_eq!(token_of(&secrets, "mc", "mirror"), Ok("t".to_owned()));
        let error = token_of(&secrets[..2], "mc", "mirror").unwrap_err();
        assert!(
            error.starts_with("Secret mc/new has no token yet"),
            "{error}"
        );
        let error = token_of(&secrets[..1], "mc", "mirror").unwrap_err();
        assert!(error.contains("annotation kubernetes.io/service-account.name: mirror"));
        let binary = [secret("bad", "mirror", Some(b"\xff"))];
        let error = token_of(&binary, "mc", "mirror").unwrap_err();
        assert!(error.contains("mc/bad: token is not UTF-8"), "{error}");
    }

    fn entry(server: Option<&str>) -> ApiServerEntry {
        ApiServerEntry {
            context: "east".to_owned(),
            cluster: "prod".to_owned(),
            server: server.map(str::to_owned),
            fields: Map::from_iter([("certificate-authority-data".to_owned(), json!("UEVN"))]),
        }
    }

    #[test]
    fn address_is_a_url_of_an_api_server() {
        let from_kubeconfig = entry(Some("https://192.0.2.1:6443"));
        let found = |address| server(&from_kubeconfig, address).map_err(|it| it.to_string());
        assert_eq!(found(None).unwrap(), "https://192.0.2.1:6443");
        assert_eq!(
            found(Some("192.0.2.2:6443")).unwrap(),
            "https://192.0.2.2:6443"
        );
        let given = "https://[2001:db8::1]:6443/k8s/clusters/c";
        assert_eq!(found(Some(given)).unwrap(), given);
        for bad in ["", "https://", "tcp://192.0.2.1", "a b", "/path"] {
            let error = found(Some(bad)).unwrap_err();
            assert!(error.starts_with("--api-server-address: "), "{error}");
        }
        let in_a_pod = server(&entry(None), None).unwrap_err().to_string();
        assert!(
            in_a_pod.ends_with("with --api-server-address"),
            "{in_a_pod}"
        );
    }

    #[test]
    fn addresses_of_this_machine_are_local() {
        for local in [
            "https://127.0.0.1:6443",
            "https://localhost",
            "https://[::1]:1",
            "http://0.0.0.0",
        ] {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "https://192.0.2.1",
            "https://localhost.example.com",
            "https://[2001:db8::1]",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }

    #[test]
    fn kubeconfig_has_only_the_token_of_the_account() {
        let text = kubeconfig(&entry(None), "https://a:6443", "mirror", "secret").unwrap();
        let read: serde_json::Value = serde_norway::from_str(&text).unwrap();
        let cluster = json!({
            "certificate-authority-data": "UEVN", "server": "https://a:6443",
        });
        assert_eq!(
            read["clusters"],
            json!([{ "name": "prod", "cluster": cluster }])
        );
        let user = json!({ "name": "mirror", "user": { "token": "secret" } });
        assert_eq!(read["users"], json!([user]));
        assert_eq!(read["current-context"], "east");
        let context = json!({ "cluster": "prod", "user": "mirror" });
        assert_eq!(
            read["contexts"],
            json!([{ "name": "east", "context": context }])
        );
    }
}
