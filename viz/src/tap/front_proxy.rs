//! The user of a request, as the API server names it.
//!
//! The API server forwards requests with a certificate of its own (the front proxy's) and the user
//! in header fields. The ConfigMap `extension-apiserver-authentication` in kube-system says which
//! authority issues the certificate, which names it may have, and how the fields are called. The
//! fields of any other client are not believed.

use std::collections::BTreeMap;

use http::HeaderMap;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ConfigMap;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::request::{Target, resource};

/// How the API server authenticates itself and names users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrontProxy {
    /// The authorities of its certificate.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    /// Its certificate must have one of these names; if there are none, it may have any.
    allowed_names: Vec<String>,
    username_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

/// The authenticated user of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// Why a configuration or a client is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrontProxyError {
    #[error("{0} is missing; the API server was started without --requestheader-client-ca-file")]
    Missing(&'static str),
    #[error("{0} is not a list of texts in JSON")]
    List(&'static str),
    #[error("requestheader-client-ca-file has no certificate in PEM")]
    Authorities,
    #[error("the client has no certificate of the API server's front proxy")]
    NoCertificate,
    #[error("the certificate's names {found:?} are none of the allowed names {allowed:?}")]
    Name {
        found: Vec<String>,
        allowed: Vec<String>,
    },
    #[error("the request has no user in any of the header fields {0:?}")]
    NoUser(Vec<String>),
}

const AUTHORITIES: &str = "requestheader-client-ca-file";
const ALLOWED_NAMES: &str = "requestheader-allowed-names";
const USERNAME_HEADERS: &str = "requestheader-username-headers";
const GROUP_HEADERS: &str = "requestheader-group-headers";
const EXTRA_PREFIXES: &str = "requestheader-extra-headers-prefix";

impl FrontProxy {
    /// Reads the ConfigMap.
    pub(crate) fn read(map: &ConfigMap) -> Result<Self, FrontProxyError> {
        let data = map.data.as_ref();
        let text = |key| data.and_then(|data| data.get(key)).map(String::as_str);
        let list = |key: &'static str| -> Result<Vec<String>, FrontProxyError> {
            let Some(text) = text(key) else {
                return Ok(Vec::new());
            };
            serde_json::from_str(text).map_err(|_error| FrontProxyError::List(key))
        };
        let authorities = text(AUTHORITIES).ok_or(FrontProxyError::Missing(AUTHORITIES))?;
        let authorities: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(authorities.as_bytes()).collect();
        let authorities = authorities.map_err(|_error| FrontProxyError::Authorities)?;
        if authorities.is_empty() {
            return Err(FrontProxyError::Authorities);
        }
        let username_headers = list(USERNAME_HEADERS)?;
        if username_headers.is_empty() {
            return Err(FrontProxyError::Missing(USERNAME_HEADERS));
        }
        Ok(Self {
            authorities,
            allowed_names: list(ALLOWED_NAMES)?,
            username_headers,
            group_headers: list(GROUP_HEADERS)?,
            extra_prefixes: list(EXTRA_PREFIXES)?,
        })
    }

    /// Checks the name of a client whose certificate was issued by one of the authorities.
    pub(crate) fn check_name(
        &self,
        leaf: Option<&CertificateDer<'_>>,
    ) -> Result<(), FrontProxyError> {
        let leaf = leaf.ok_or(FrontProxyError::NoCertificate)?;
        let found = names(leaf);
        if self.allowed_names.is_empty()
            || found.iter().any(|name| self.allowed_names.contains(name))
        {
            return Ok(());
        }
        Err(FrontProxyError::Name {
            found,
            allowed: self.allowed_names.clone(),
        })
    }

    /// Returns the user whom the header fields of a checked client name.
    pub(crate) fn user(&self, headers: &HeaderMap) -> Result<User, FrontProxyError> {
        let name = self.username_headers.iter().find_map(|header| {
            let value = headers.get(header)?.to_str().ok()?;
            (!value.is_empty()).then(|| value.to_owned())
        });
        let name = name.ok_or_else(|| FrontProxyError::NoUser(self.username_headers.clone()))?;
        Ok(User {
            name,
            groups: self
                .group_headers
                .iter()
                .flat_map(|header| texts(headers, header))
                .collect(),
            extra: self.extra(headers),
        })
    }

    /// The rest of a field's name after the prefix is the key, in percent encoding.
    fn extra(&self, headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
        let mut extra = BTreeMap::new();
        for name in headers.keys() {
            let key = self.extra_prefixes.iter().find_map(|prefix| {
                name.as_str()
                    .strip_prefix(prefix.to_ascii_lowercase().as_str())
            });
            if let Some(key) = key.filter(|key| !key.is_empty()) {
                let values = texts(headers, name.as_str()).collect();
                extra.insert(percent_decoded(key), values);
            }
        }
        extra
    }
}

impl User {
    /// Returns the question whether the user may tap the target.
    pub(crate) fn review(&self, target: &Target) -> SubjectAccessReview {
        let (name, namespace) = match target.name.as_str() {
            // A namespace is an object without a namespace, but is asked for within itself.
            "" => (target.namespace.clone(), target.namespace.clone()),
            name => (name.to_owned(), target.namespace.clone()),
        };
        let attributes = ResourceAttributes {
            group: Some("tap.linkerd.io".to_owned()),
            version: Some("v1alpha1".to_owned()),
            verb: Some("watch".to_owned()),
            resource: Some(resource(target.kind)),
            subresource: Some("tap".to_owned()),
            name: Some(name),
            namespace: Some(namespace),
            ..ResourceAttributes::default()
        };
        SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(self.name.clone()),
                groups: Some(self.groups.clone()),
                extra: Some(self.extra.clone()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        }
    }
}

/// Returns the common names and DNS names of a certificate; none if it cannot be read.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let common = certificate.subject().iter_common_name();
    let common = common.filter_map(|name| name.as_str().ok());
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        });
    common.chain(alternative).map(str::to_owned).collect()
}

fn texts(headers: &HeaderMap, name: &str) -> impl Iterator<Item = String> {
    let values = headers.get_all(name).iter();
    values.filter_map(|value| Some(value.to_str().ok()?.to_owned()))
}

/// Decodes percent encoding. Malformed escapes stay as they are, and so does the whole text if the
/// result is not UTF-8.
fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = match after {
            [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                decoded.push(high << 4 | low);
                rest = &after[2..];
            }
            None => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_error| text.to_owned())
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use http::{HeaderName, HeaderValue};
    use mesh_objects::model::ListedKind;
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    pub(in crate::tap) fn certificate(
        common: &str,
        dns: &str,
    ) -> (String, CertificateDer<'static>) {
        let mut params = CertificateParams::new(vec![dns.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, common);
        let signed = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        (signed.pem(), signed.der().clone())
    }

    fn config_map(changes: &[(&str, Option<&str>)]) -> ConfigMap {
        let (pem, _) = certificate("ca", "ca");
        let mut data = BTreeMap::from([
            (AUTHORITIES.to_owned(), pem),
            (
                ALLOWED_NAMES.to_owned(),
                r#"["front-proxy-client"]"#.to_owned(),
            ),
            (
                USERNAME_HEADERS.to_owned(),
                r#"["X-Remote-User"]"#.to_owned(),
            ),
            (GROUP_HEADERS.to_owned(), r#"["X-Remote-Group"]"#.to_owned()),
            (
                EXTRA_PREFIXES.to_owned(),
                r#"["X-Remote-Extra-"]"#.to_owned(),
            ),
        ]);
        for (key, value) in changes {
            match value {
                Some(value) => data.insert((*key).to_owned(), (*value).to_owned()),
                None => data.remove(*key),
            };
        }
        ConfigMap {
            data: Some(data),
            ..ConfigMap::default()
        }
    }

    /// Returns a configuration with the names of kubeadm.
    pub(in crate::tap) fn front_proxy(changes: &[(&str, Option<&str>)]) -> FrontProxy {
        FrontProxy::read(&config_map(changes)).unwrap()
    }

    #[test]
    fn only_certificates_with_an_allowed_name_pass() {
        let (_, common) = certificate("front-proxy-client", "a");
        let (_, alternative) = certificate("a", "front-proxy-client");
        let (_, other) = certificate("a", "b");
        let some = front_proxy(&[]);
        assert_eq!(some.check_name(Some(&common)), Ok(()));
        assert_eq!(some.check_name(Some(&alternative)), Ok(()));
        let refused = some.check_name(Some(&other)).unwrap_err();
        assert!(refused.to_string().contains(r#"["a", "b"]"#), "{refused}");
        // Any name, but not no certificate.
        let any = front_proxy(&[(ALLOWED_NAMES, Some("[]"))]);
        assert_eq!(any.check_name(Some(&other)), Ok(()));
        assert_eq!(any.check_name(None), Err(FrontProxyError::NoCertificate));
    }

    #[test]
    fn user_is_read_from_the_configured_fields() {
        let mut headers = HeaderMap::new();
        let fields = [
            ("x-remote-user", "jane"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "ops"),
            ("x-remote-extra-scopes%2fa", "read"),
            ("x-remote-uid", "7"),
        ];
        for (name, value) in fields {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        let user = front_proxy(&[]).user(&headers).unwrap();
        assert_eq!((user.name.as_str(), user.groups.len()), ("jane", 2));
        assert_eq!(user.extra["scopes/a"], ["read"]);
        headers.remove("x-remote-user");
        assert!(front_proxy(&[]).user(&headers).is_err());
    }

    #[test]
    fn incomplete_configuration_is_named() {
        let table = [
            ((AUTHORITIES, None), FrontProxyError::Missing(AUTHORITIES)),
            ((AUTHORITIES, Some("text")), FrontProxyError::Authorities),
            (
                (USERNAME_HEADERS, None),
                FrontProxyError::Missing(USERNAME_HEADERS),
            ),
            (
                (USERNAME_HEADERS, Some("[]")),
                FrontProxyError::Missing(USERNAME_HEADERS),
            ),
            (
                (GROUP_HEADERS, Some("x")),
                FrontProxyError::List(GROUP_HEADERS),
            ),
        ];
        for (change, expected) in table {
            assert_eq!(FrontProxy::read(&config_map(&[change])), Err(expected));
        }
        assert!(FrontProxy::read(&ConfigMap::default()).is_err());
    }

    #[test]
    fn access_to_exactly_the_target_is_reviewed() {
        let user = User {
            name: "jane".to_owned(),
            groups: vec!["dev".to_owned()],
            extra: BTreeMap::new(),
        };
        let target = Target {
            kind: ListedKind::Deployment,
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let spec = user.review(&target).spec;
        let attributes = spec.resource_attributes.unwrap();
        let found = [
            attributes.verb,
            attributes.group,
            attributes.resource,
            attributes.subresource,
            attributes.namespace,
            attributes.name,
        ];
        let expected = [
            "watch",
            "tap.linkerd.io",
            "deployments",
            "tap",
            "shop",
            "web",
        ];
        assert_eq!(found.map(Option::unwrap_or_default), expected);
        assert_eq!(spec.user.as_deref(), Some("jane"));
    }

    #[test]
    fn percent_encoding_of_other_texts_is_kept() {
        let table = [
            ("a%2Fb", "a/b"),
            ("100%", "100%"),
            ("%zz", "%zz"),
            ("%ff", "%ff"),
        ];
        for (text, expected) in table {
            assert_eq!(percent_decoded(text), expected);
        }
    }
}
