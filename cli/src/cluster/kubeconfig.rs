//! Reads the kubeconfig: for a client, and for kubeconfigs that are made of it.

use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Config;
use kube::config::{self, KubeConfigOptions, Kubeconfig};
use serde_json::{Map, Value, json};

use super::{in_cluster, kubeconfig_in_environment};
use crate::exit::Failure;
use crate::global::Global;

/// How clients reach the API server of a context.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiServerEntry {
    /// The name of the context.
    pub(crate) context: String,
    /// The name of the cluster in the kubeconfig.
    pub(crate) cluster: String,
    /// The URL; `None` in a pod, whose URL has a meaning only in its cluster.
    pub(crate) server: Option<String>,
    /// The other fields of the cluster in a kubeconfig. They refer to no files.
    pub(crate) fields: Map<String, Value>,
}

/// The name of the context in a pod, which has no kubeconfig.
const POD_CONTEXT: &str = "of this pod";

/// The certificate authorities of the API server in a pod.
const POD_AUTHORITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Returns the name and the client configuration of the context.
pub(super) async fn config(global: &Global) -> anyhow::Result<(String, Config)> {
    let Some(kubeconfig) = read(global)? else {
        let config = Config::incluster()
            .map_err(|error| Failure::Input(format!("the service account of this pod: {error}")))?;
        return Ok((POD_CONTEXT.to_owned(), config));
    };
    let context = context(&kubeconfig, global);
    let names = context_names(&kubeconfig);
    let options = KubeConfigOptions {
        context: global.context.clone(),
        ..Default::default()
    };
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let config = config.map_err(|error| {
        Failure::Input(format!(
            "cannot use context {context:?} of the kubeconfig: {error}; available contexts: {names}"
        ))
    })?;
    Ok((context, config))
}

/// Returns how clients reach the API server of the context.
pub(crate) fn api_server(global: &Global) -> Result<ApiServerEntry, Failure> {
    let Some(kubeconfig) = read(global)? else {
        let authority = read_authority(Path::new(POD_AUTHORITY))?;
        let fields = Map::from_iter([("certificate-authority-data".to_owned(), authority)]);
        return Ok(ApiServerEntry {
            context: "default".to_owned(),
            cluster: "default".to_owned(),
            server: None,
            fields,
        });
    };
    entry(&kubeconfig, context(&kubeconfig, global))
}

/// Returns the kubeconfig; `None` in a pod without one.
fn read(global: &Global) -> Result<Option<Kubeconfig>, Failure> {
    let kubeconfig = match &global.kubeconfig {
        Some(path) => Kubeconfig::read_from(path)
            .with_context(|| format!("read the kubeconfig {}", path.display())),
        None => match Kubeconfig::read() {
            Err(_) if !kubeconfig_in_environment() && in_cluster() => return Ok(None),
            other => other.context("read the kubeconfig"),
        },
    };
    let kubeconfig = kubeconfig.map_err(|error| Failure::Input(format!("{error:#}")))?;
    Ok(Some(kubeconfig))
}

/// Returns the name of the context that the flags select.
fn context(kubeconfig: &Kubeconfig, global: &Global) -> String {
    let context = global.context.as_ref();
    let context = context.or(kubeconfig.current_context.as_ref());
    context.cloned().unwrap_or_default()
}

fn context_names(kubeconfig: &Kubeconfig) -> String {
    let names = kubeconfig.contexts.iter().map(|it| it.name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

fn entry(kubeconfig: &Kubeconfig, context: String) -> Result<ApiServerEntry, Failure> {
    let named = kubeconfig.contexts.iter().find(|it| it.name == context);
    let named = named.and_then(|it| it.context.as_ref()).ok_or_else(|| {
        let names = context_names(kubeconfig);
        Failure::Input(format!(
            "the kubeconfig has no context {context:?}; available contexts: {names}"
        ))
    })?;
    let name = &named.cluster;
    let cluster = kubeconfig.clusters.iter().find(|it| it.name == *name);
    let cluster = cluster.and_then(|it| it.cluster.as_ref()).ok_or_else(|| {
        Failure::Input(format!(
            "the kubeconfig has no cluster {name:?}, which its context {context:?} names"
        ))
    })?;
    let server = cluster.server.clone().ok_or_else(|| {
        Failure::Input(format!("cluster {name:?} of the kubeconfig has no server"))
    })?;
    Ok(ApiServerEntry {
        context,
        cluster: name.clone(),
        server: Some(server),
        fields: fields(cluster)?,
    })
}

/// Returns the fields of a cluster without `server` and without extensions, which other programs
/// add for themselves.
fn fields(cluster: &config::Cluster) -> Result<Map<String, Value>, Failure> {
    let file = cluster.certificate_authority.as_ref();
    let authority = match (&cluster.certificate_authority_data, file) {
        (Some(data), _) => Some(json!(data)),
        (None, Some(path)) => Some(read_authority(Path::new(path))?),
        (None, None) => None,
    };
    let fields = [
        ("certificate-authority-data", authority),
        (
            "insecure-skip-tls-verify",
            cluster.insecure_skip_tls_verify.map(Value::from),
        ),
        (
            "tls-server-name",
            cluster.tls_server_name.clone().map(Value::from),
        ),
        ("proxy-url", cluster.proxy_url.clone().map(Value::from)),
        (
            "disable-compression",
            cluster.disable_compression.map(Value::from),
        ),
    ];
    let present = fields.into_iter();
    let present = present.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Ok(present.collect())
}

/// Returns the contents of a file of certificate authorities, for a kubeconfig.
fn read_authority(path: &Path) -> Result<Value, Failure> {
    let pem = std::fs::read(path).map_err(|error| {
        Failure::Input(format!(
            "read the certificate authority {}: {error}",
            path.display()
        ))
    })?;
    Ok(json!(STANDARD.encode(pem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(cluster: &Value) -> Kubeconfig {
        let context = json!({ "cluster": "prod", "user": "me", "namespace": "shop" });
        serde_json::from_value(json!({
            "clusters": [{ "name": "prod", "cluster": cluster }],
            "contexts": [{ "name": "east", "context": context }],
            "users": [{ "name": "me", "user": { "token": "secret" } }],
            "current-context": "east",
        }))
        .unwrap()
    }

    #[test]
    fn authority_is_embedded_and_extensions_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.pem");
        std::fs::write(&file, "PEM").unwrap();
        let found = kubeconfig(&json!({
            "server": "https://192.0.2.1:6443", "certificate-authority": file,
            "tls-server-name": "api.example", "insecure-skip-tls-verify": false,
            "extensions": [{ "name": "minikube", "extension": {} }],
        }));
        let entry = entry(&found, "east".to_owned()).unwrap();
        assert_eq!(entry.cluster, "prod");
        assert_eq!(entry.server.as_deref(), Some("https://192.0.2.1:6443"));
        let expect = json!({
            "certificate-authority-data": "UEVN", "tls-server-name": "api.example",
            "insecure-skip-tls-verify": false,
        });
        assert_eq!(Value::Object(entry.fields), expect);
    }

    #[test]
    fn error_names_what_the_kubeconfig_lacks() {
        let error = |cluster: Value, context: &str| {
            let error = entry(&kubeconfig(&cluster), context.to_owned()).unwrap_err();
            error.to_string()
        };
        let unknown = error(json!({ "server": "https://a" }), "west");
        assert!(
            unknown.contains("\"west\"; available contexts: east"),
            "{unknown}"
        );
        assert!(error(json!({}), "east").contains("\"prod\" of the kubeconfig has no server"));
        let missing = json!({ "server": "https://a", "certificate-authority": "/none/ca.pem" });
        let missing = error(missing, "east");
        assert!(missing.contains("authority /none/ca.pem: "), "{missing}");
        let mut found = kubeconfig(&json!({}));
        found.clusters.clear();
        let error = entry(&found, "east".to_owned()).unwrap_err().to_string();
        assert!(error.contains("no cluster \"prod\""), "{error}");
    }
}
