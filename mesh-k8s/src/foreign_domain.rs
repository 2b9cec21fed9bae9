//! The ConfigMap that makes the trust domain of another cluster trusted: where the bundle of the
//! domain is, how its server authenticates itself, and the first bundle (docs/adr/0228).
//!
//! It is in the namespace of the control plane, where only those may write who may change the
//! anchors of the mesh. The identity service follows it.

pub mod recorded;

use std::collections::BTreeMap;
use std::fmt;

use http::Uri;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use mesh_core::annotation::TRUST_BUNDLE_OF;
use mesh_core::identity::{Identity, is_dns_label};
use mesh_core::trust_domain::{self, DomainRefusal, MAX_FOREIGN_DOMAINS};

use crate::invalid::{Invalid, MAX_PROBLEMS, shown};

/// A trust domain of another cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignDomain {
    /// The name of the cluster.
    pub cluster: String,
    /// The end of the names that the roots of the domain verify.
    pub trust_domain: String,
    /// Where its bundle is.
    pub endpoint: BundleEndpoint,
    /// The first bundle, a document of SPIFFE; always there if the endpoint is authenticated by it.
    pub bundle: Option<String>,
    /// The Link whose removal ends the trust; without one the removal of the ConfigMap does.
    pub link: Option<LinkName>,
}

/// The server of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleEndpoint {
    /// A DNS name or an address.
    pub host: String,
    /// The port, 443 if the URL has none.
    pub port: u16,
    /// The path with the query.
    pub path: String,
    /// How the server authenticates itself.
    pub profile: EndpointProfile,
}

/// How a server of a bundle authenticates itself (SPIFFE Federation, section 5.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointProfile {
    /// By an identity of the trust domain, which the last bundle verifies: `https_spiffe`.
    Spiffe(Identity),
    /// By a certificate of its DNS name: `https_web`. The authorities are in PEM; without them they
    /// are the system's.
    Web(Option<String>),
}

/// The name of a Link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A ConfigMap that is not in effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ConfigMap {name}: {problem}")]
pub struct Refused {
    /// The name of the ConfigMap.
    pub name: String,
    /// Why it is refused.
    pub problem: Refusal,
}

/// Why a ConfigMap is not in effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Fields are invalid.
    #[error("{}", crate::invalid::summary(.0))]
    Invalid(Vec<Invalid>),
    /// The trust domain cannot be trusted beside the others.
    #[error(transparent)]
    Domain(#[from] DomainRefusal),
    /// An older ConfigMap has the same trust domain.
    #[error("ConfigMap {0} is older and has the same trust domain, whose bundle is used")]
    Second(String),
    /// There are too many.
    #[error("there are {MAX_FOREIGN_DOMAINS} other trust domains, the most that proxies take")]
    Many,
}

/// The largest first bundle, and the largest one that a server may respond with.
pub const MAX_DOCUMENT: usize = 64 * 1024;

/// A metric of the identity service, with the label [`DOMAIN_LABEL`]: 1 while the bundle of a
/// domain cannot be fetched or is refused, else 0.
pub const FAILING_METRIC: &str = "mesh_foreign_bundle_failing";

/// A metric of the identity service, with the label [`DOMAIN_LABEL`]: the Unix time of the last
/// bundle that a replica fetched, 0 before the first.
pub const FETCHED_METRIC: &str = "mesh_foreign_bundle_fetched_timestamp_seconds";

/// The label of these metrics with the trust domain.
pub const DOMAIN_LABEL: &str = "trust_domain";

/// The most bytes of the authorities of an endpoint.
const MAX_AUTHORITIES: usize = 64 * 1024;

const TRUST_DOMAIN: &str = "trust-domain";
const URL: &str = "endpoint-url";
const PROFILE: &str = "endpoint-profile";
const SPIFFE_ID: &str = "endpoint-spiffe-id";
const AUTHORITIES: &str = "endpoint-ca.crt";
const BUNDLE: &str = "bundle.json";
const LINK: &str = "link";

const SPIFFE_PROFILE: &str = "https_spiffe";
const WEB_PROFILE: &str = "https_web";

/// Returns the name of the ConfigMap for a cluster.
pub fn config_map_name(cluster: &str) -> String {
    format!("linkerd-trust-bundle-{cluster}")
}

/// Returns the trust domains that are trusted beside `own`, and the ConfigMaps that are not in
/// effect. Of two that contradict each other the older one is.
pub fn select(own: &str, mut objects: Vec<ConfigMap>) -> (Vec<ForeignDomain>, Vec<Refused>) {
    objects.sort_by_cached_key(|object| {
        let created = object.metadata.creation_timestamp.as_ref();
        (created.map(|time| time.0), object.name_any())
    });
    let mut selected: Vec<(String, ForeignDomain)> = Vec::new();
    let mut refused = Vec::new();
    for object in objects {
        let name = object.name_any();
        let read = ForeignDomain::read(&object).map_err(Refusal::Invalid);
        match read.and_then(|domain| admit(own, &selected, domain)) {
            Ok(domain) => selected.push((name, domain)),
            Err(problem) => refused.push(Refused { name, problem }),
        }
    }
    let selected = selected.into_iter().map(|(_name, domain)| domain);
    (selected.collect(), refused)
}

fn admit(
    own: &str,
    before: &[(String, ForeignDomain)],
    domain: ForeignDomain,
) -> Result<ForeignDomain, Refusal> {
    let foreign = &domain.trust_domain;
    trust_domain::check_foreign(foreign, own)?;
    for (name, other) in before {
        if other.trust_domain == *foreign {
            return Err(Refusal::Second(name.clone()));
        }
        trust_domain::check_apart(foreign, &other.trust_domain)?;
    }
    if before.len() == MAX_FOREIGN_DOMAINS {
        return Err(Refusal::Many);
    }
    Ok(domain)
}

impl ForeignDomain {
    /// Reads a ConfigMap.
    ///
    /// # Errors
    ///
    /// All problems of its fields. Keys that are unknown are among them.
    pub fn read(object: &ConfigMap) -> Result<Self, Vec<Invalid>> {
        let mut fields = Fields {
            data: object.data.clone().unwrap_or_default(),
            problems: Vec::new(),
        };
        let cluster = object.labels().get(TRUST_BUNDLE_OF).cloned();
        let cluster = cluster.unwrap_or_default();
        if !is_dns_label(&cluster) {
            let field = format!("metadata.labels[{TRUST_BUNDLE_OF}]");
            fields.fail_at(&field, "expected the name of the cluster");
        }
        let trust_domain = fields.required(TRUST_DOMAIN);
        let bundle = fields.bounded(BUNDLE, MAX_DOCUMENT);
        let domain = Self {
            endpoint: fields.endpoint(&trust_domain),
            link: fields.link(),
            cluster,
            trust_domain,
            bundle,
        };
        if domain.bundle.is_none() && matches!(domain.endpoint.profile, EndpointProfile::Spiffe(_))
        {
            let problem = format!("is missing: {SPIFFE_PROFILE} needs the first bundle");
            fields.fail(BUNDLE, &problem);
        }
        if object.binary_data.as_ref().is_some_and(|it| !it.is_empty()) {
            fields.fail_at("binaryData", "has no meaning");
        }
        let unknown: Vec<String> = fields.data.keys().cloned().collect();
        for key in unknown {
            fields.fail(&key, "is not known");
        }
        if fields.problems.is_empty() {
            return Ok(domain);
        }
        fields.problems.truncate(MAX_PROBLEMS);
        Err(fields.problems)
    }

    /// Returns the ConfigMap, in the namespace of the control plane.
    pub fn config_map(&self, namespace: &str) -> ConfigMap {
        let mut data = BTreeMap::from([
            (TRUST_DOMAIN, self.trust_domain.clone()),
            (URL, self.endpoint.url()),
        ]);
        match &self.endpoint.profile {
            EndpointProfile::Spiffe(id) => {
                data.insert(PROFILE, SPIFFE_PROFILE.to_owned());
                data.insert(SPIFFE_ID, id.to_string());
            }
            EndpointProfile::Web(authorities) => {
                data.insert(PROFILE, WEB_PROFILE.to_owned());
                data.extend(authorities.clone().map(|pem| (AUTHORITIES, pem)));
            }
        }
        data.extend(self.bundle.clone().map(|bundle| (BUNDLE, bundle)));
        data.extend(self.link.as_ref().map(|link| (LINK, link.to_string())));
        let mut object = ConfigMap::default();
        object.metadata.name = Some(config_map_name(&self.cluster));
        object.metadata.namespace = Some(namespace.to_owned());
        object.metadata.labels = Some([(TRUST_BUNDLE_OF.to_owned(), self.cluster.clone())].into());
        let data = data.into_iter().map(|(key, value)| (key.to_owned(), value));
        object.data = Some(data.collect());
        object
    }
}

impl BundleEndpoint {
    /// Reads a URL such as `https://bundle.example.com:8443/`.
    ///
    /// # Errors
    ///
    /// The text is not a URL with the scheme https, or has a user or a fragment.
    pub fn from_url(text: &str, profile: EndpointProfile) -> Result<Self, String> {
        let problem = || {
            format!(
                "{} is not a URL such as https://192.0.2.1:8443/",
                shown(text)
            )
        };
        let uri: Uri = text.parse().map_err(|_invalid| problem())?;
        let authority = uri.authority().ok_or_else(problem)?;
        let is_https = uri.scheme_str() == Some("https");
        // `Uri` leaves out a fragment.
        let has_more = authority.as_str().contains('@') || text.contains('#');
        if !is_https || authority.host().is_empty() || has_more {
            return Err(problem());
        }
        // `Uri` returns no port for one beyond 65535.
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => Some(443),
            rest => rest.and_then(|rest| rest.strip_prefix(':')?.parse().ok()),
        };
        Ok(Self {
            host: authority.host().to_owned(),
            port: port.filter(|port| *port != 0).ok_or_else(problem)?,
            path: uri
                .path_and_query()
                .map_or("/", |it| it.as_str())
                .to_owned(),
            profile,
        })
    }

    /// Returns the URL.
    pub fn url(&self) -> String {
        let Self {
            host, port, path, ..
        } = self;
        format!("https://{host}:{port}{path}")
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The fields of a ConfigMap that have not been read, and the problems of the others.
struct Fields {
    data: BTreeMap<String, String>,
    problems: Vec<Invalid>,
}

impl Fields {
    fn endpoint(&mut self, trust_domain: &str) -> BundleEndpoint {
        let url = self.required(URL);
        let profile = self.profile(trust_domain);
        BundleEndpoint::from_url(&url, profile.clone()).unwrap_or_else(|problem| {
            if !url.is_empty() {
                self.fail(URL, &problem);
            }
            BundleEndpoint {
                host: String::new(),
                port: 0,
                path: String::new(),
                profile,
            }
        })
    }

    fn profile(&mut self, trust_domain: &str) -> EndpointProfile {
        let profile = self.required(PROFILE);
        match profile.as_str() {
            SPIFFE_PROFILE => {
                let text = self.required(SPIFFE_ID);
                let id = Identity::parse(&text).ok();
                let own = |id: &Identity| {
                    matches!(id, Identity::Uri(_)) && trust_domain::is_member(id, trust_domain)
                };
                let id = id.filter(own).unwrap_or_else(|| {
                    if !text.is_empty() && !trust_domain.is_empty() {
                        let problem = format!(
                            "{} is not an identity of the trust domain, as spiffe://{trust_domain}/path",
                            shown(&text)
                        );
                        self.fail(SPIFFE_ID, &problem);
                    }
                    Identity::Uri(text.into())
                });
                EndpointProfile::Spiffe(id)
            }
            WEB_PROFILE => EndpointProfile::Web(self.bounded(AUTHORITIES, MAX_AUTHORITIES)),
            other => {
                if !other.is_empty() {
                    let problem = format!(
                        "{} is neither {SPIFFE_PROFILE} nor {WEB_PROFILE}",
                        shown(other)
                    );
                    self.fail(PROFILE, &problem);
                }
                // What belongs to a profile is not reported besides.
                self.data.remove(SPIFFE_ID);
                self.data.remove(AUTHORITIES);
                EndpointProfile::Web(None)
            }
        }
    }

    fn link(&mut self) -> Option<LinkName> {
        let text = self.data.remove(LINK)?;
        let Some((namespace, name)) = text.split_once('/') else {
            let problem = format!("{} is not NAMESPACE/NAME of a Link", shown(&text));
            self.fail(LINK, &problem);
            return None;
        };
        // The names become a path of the API server.
        let is_name = |name: &str| name.len() <= 253 && name.split('.').all(is_dns_label);
        if !is_dns_label(namespace) || !is_name(name) {
            let problem = format!("{} is not NAMESPACE/NAME of a Link", shown(&text));
            self.fail(LINK, &problem);
        }
        Some(LinkName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    fn required(&mut self, key: &str) -> String {
        let value = self.data.remove(key).unwrap_or_default();
        if value.is_empty() {
            self.fail(key, "is missing");
        }
        value
    }

    fn bounded(&mut self, key: &str, most: usize) -> Option<String> {
        let value = self.data.remove(key)?;
        if value.len() > most {
            let problem = format!("has {} bytes, at most {most} are read", value.len());
            self.fail(key, &problem);
        }
        Some(value)
    }

    fn fail(&mut self, key: &str, problem: &str) {
        self.fail_at(&format!("data[{key}]"), problem);
    }

    fn fail_at(&mut self, field: &str, problem: &str) {
        self.problems.push(Invalid::new(field, problem));
    }
}

#[cfg(test)]
mod tests;
