//! The client of another cluster, by a kubeconfig that an object of this one contains.

use std::fmt;
use std::sync::Arc;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use mesh_core::rights::Right;
use mesh_k8s::crd::link::CREDENTIALS_KEY;
use mesh_k8s::kinds::Secret;

use super::{configured, guard};

/// A kubeconfig with its credentials in itself. One that names files or programs is refused: a user
/// who may write it could read the files of this process and run programs in it.
#[derive(Clone, PartialEq, Eq)]
pub struct LinkedKubeconfig(Arc<str>);

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LinkedKubeconfigError {
    #[error("has no key {CREDENTIALS_KEY}")]
    Key,
    #[error("{CREDENTIALS_KEY}: is not UTF-8")]
    Text,
    #[error("cannot be read")]
    Read(#[source] kube::config::KubeconfigError),
    #[error("{field} of {of} is not supported in a link; use {instead}")]
    Field {
        of: String,
        field: &'static str,
        instead: &'static str,
    },
    #[error("has no client")]
    Client(#[source] kube::Error),
}

impl LinkedKubeconfig {
    /// Returns the kubeconfig of a link's Secret.
    pub fn of_secret(secret: &Secret) -> Result<Self, LinkedKubeconfigError> {
        let data = secret.data.as_ref();
        let data = data.and_then(|data| data.get(CREDENTIALS_KEY));
        let data = &data.ok_or(LinkedKubeconfigError::Key)?.0;
        let text = str::from_utf8(data).map_err(|_invalid| LinkedKubeconfigError::Text)?;
        Self::read(text)
    }

    pub fn read(text: &str) -> Result<Self, LinkedKubeconfigError> {
        let kubeconfig = Kubeconfig::from_yaml(text).map_err(LinkedKubeconfigError::Read)?;
        refuse_references(&kubeconfig)?;
        Ok(Self(text.into()))
    }

    /// Returns the URL of the API server, without the credentials that it may have.
    pub fn server(&self) -> String {
        let kubeconfig = Kubeconfig::from_yaml(&self.0).ok();
        let of_context = kubeconfig.and_then(|kubeconfig| {
            let context = kubeconfig.current_context.as_ref()?;
            let mut contexts = kubeconfig.contexts.iter();
            let context = contexts.find(|it| it.name == *context)?.context.as_ref()?;
            let mut clusters = kubeconfig.clusters.iter();
            let cluster = clusters.find(|it| it.name == context.cluster)?;
            let url: http::Uri = cluster.cluster.as_ref()?.server.as_ref()?.parse().ok()?;
            Some(format!(
                "{}://{}",
                url.scheme_str()?,
                url.authority()?.as_str().rsplit('@').next()?
            ))
        });
        of_context.unwrap_or_default()
    }

    /// Returns a client of the cluster. `program` and `rights` are as for [`super::connect`].
    pub async fn connect(
        &self,
        program: &str,
        rights: Vec<Right>,
    ) -> Result<Client, LinkedKubeconfigError> {
        let read = LinkedKubeconfigError::Read;
        let kubeconfig = Kubeconfig::from_yaml(&self.0).map_err(read)?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options);
        let config = configured(config.await.map_err(read)?, program);
        let client = Client::try_from(config).map_err(LinkedKubeconfigError::Client)?;
        Ok(guard::restrict(client, program, rights))
    }
}

fn refuse_references(kubeconfig: &Kubeconfig) -> Result<(), LinkedKubeconfigError> {
    let refused = |of: String, field, instead| LinkedKubeconfigError::Field { of, field, instead };
    for user in &kubeconfig.auth_infos {
        let Some(info) = &user.auth_info else {
            continue;
        };
        let given = [
            (info.exec.is_some(), "exec", "token"),
            (info.auth_provider.is_some(), "auth-provider", "token"),
            (info.token_file.is_some(), "tokenFile", "token"),
            (
                info.client_certificate.is_some(),
                "client-certificate",
                "client-certificate-data",
            ),
            (info.client_key.is_some(), "client-key", "client-key-data"),
        ];
        if let Some((_, field, instead)) = given.into_iter().find(|(given, ..)| *given) {
            return Err(refused(format!("user {:?}", user.name), field, instead));
        }
    }
    for named in &kubeconfig.clusters {
        let cluster = named.cluster.as_ref();
        if cluster.is_some_and(|cluster| cluster.certificate_authority.is_some()) {
            let of = format!("cluster {:?}", named.name);
            let (field, instead) = ("certificate-authority", "certificate-authority-data");
            return Err(refused(of, field, instead));
        }
    }
    Ok(())
}

/// Without the credentials.
impl fmt::Debug for LinkedKubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkedKubeconfig({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(user: &str, cluster: &str) -> Result<LinkedKubeconfig, String> {
        let text = format!(
            "apiVersion: v1
kind: Config
clusters: [{{name: east, cluster: {{server: 'https://192.0.2.1:6443', {cluster}}}}}]
users: [{{name: mirror, user: {{{user}}}}}]
contexts: [{{name: east, context: {{cluster: east, user: mirror}}}}]
current-context: east
"
        );
        LinkedKubeconfig::read(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn credentials_are_a_part_of_the_kubeconfig() {
        let data = "certificate-authority-data: QQ==";
        assert!(read("token: secret", data).is_ok());
        assert!(read("client-certificate-data: QQ==, client-key-data: QQ==", data).is_ok());
        for (user, cluster, expected) in [
            (
                "exec: {apiVersion: v1, command: /bin/sh}",
                "",
                "exec of user \"mirror\"",
            ),
            (
                "auth-provider: {name: oidc, config: {}}",
                "",
                "auth-provider of user \"mirror\"",
            ),
            ("tokenFile: /etc/passwd", "", "tokenFile of user \"mirror\""),
            (
                "client-certificate: /a, client-key: /b",
                "",
                "client-certificate of user \"mirror\"",
            ),
            ("client-key: /b", "", "client-key of user \"mirror\""),
            (
                "token: secret",
                "certificate-authority: /ca.pem",
                "certificate-authority of cluster \"east\"",
            ),
        ] {
            let error = read(user, cluster).unwrap_err();
            assert!(error.starts_with(expected), "{user} {cluster}: {error}");
        }
        assert!(LinkedKubeconfig::read("clusters: 1").is_err());
    }

    #[test]
    fn server_is_the_one_of_the_context() {
        let kubeconfig = read("token: secret", "").unwrap();
        assert_eq!(kubeconfig.server(), "https://192.0.2.1:6443");
        let text = kubeconfig.0.replace("//192", "//me:secret@192");
        let kubeconfig = LinkedKubeconfig::read(&text).unwrap();
        assert_eq!(kubeconfig.server(), "https://192.0.2.1:6443");
    }

    #[test]
    fn credentials_are_not_printed() {
        let kubeconfig = read("token: secret", "").unwrap();
        assert!(!format!("{kubeconfig:?}").contains("secret"));
    }
}
