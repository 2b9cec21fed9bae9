//! The report of `mesh-controller heartbeat`, which `meshctl diagnostics heartbeat` shows.
//!
//! Both read the cluster and Prometheus and build the report with these functions, so that the
//! command shows what the controller sends. Linkerd's heartbeat has the same names, values and
//! queries.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::{ListParams, ObjectList, PartialObjectMeta};
use mesh_core::annotation::EXTENSION;

use crate::crd::ServiceProfile;
use crate::values::{Values, non_empty};

mod figures;
mod receiver;

pub use self::figures::{Figure, figures};
pub use self::receiver::{Receiver, ReceiverError};

/// The name of the CronJob and of its ServiceAccount and roles.
pub const NAME: &str = "linkerd-heartbeat";

/// The name of the ConfigMap with the values of the chart, whose UID identifies the installation.
pub const CONFIG: &str = "linkerd-config";

/// The extensions of one report. Linkerd has three of its own.
pub const MAX_EXTENSIONS: u32 = 64;

/// The length of a value. The longest one that a cluster has is a version with build metadata.
pub const MAX_VALUE: usize = 128;

/// The observations of a cluster. An error is the reason why one could not be read.
#[derive(Clone, Debug)]
pub struct Observations {
    /// Architecture of the node that sends the report, in the notation of image platforms.
    pub architecture: Result<String, String>,
    /// The ConfigMap [`CONFIG`].
    pub config: Result<ConfigMap, String>,
    /// Version of the API server.
    pub kubernetes_version: Result<String, String>,
    /// Metadata of the namespaces that [`extension_namespaces`] selects.
    pub extensions: Result<Vec<ObjectMeta>, String>,
    /// Number of ServiceProfiles; `None` if the API server does not count them.
    pub service_profiles: Result<Option<u64>, String>,
}

/// The parameters of the report, sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report(Vec<Parameter>);

/// A parameter of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name in the query of the report.
    pub name: String,
    /// The value, or why the report lacks it.
    pub value: Result<String, Absence>,
    /// The meaning of the value, for users.
    pub meaning: &'static str,
}

/// Why a report lacks a parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absence {
    /// There is no such value, or it cannot be sent.
    #[error("{0}")]
    LeftOut(String),
    /// The value could not be read. Another process may have the permission or the network to read
    /// it.
    #[error("{0}")]
    Unread(String),
}

/// Selects the namespaces of extensions.
pub fn extension_namespaces() -> ListParams {
    ListParams::default()
        .labels(EXTENSION)
        .limit(MAX_EXTENSIONS)
}

/// Selects a single object of a kind, whose list has the number of the others.
pub fn one_object() -> ListParams {
    ListParams::default().limit(1)
}

/// Returns the number of all objects of a kind from the list of [`one_object`]; `None` if the API
/// server does not tell how many remain.
fn total(items: usize, list: &ListMeta) -> Option<u64> {
    let is_complete = list.continue_.as_deref().is_none_or(str::is_empty);
    let remaining = match list.remaining_item_count {
        Some(remaining) => u64::try_from(remaining).ok()?,
        None if is_complete => 0,
        None => return None,
    };
    Some(remaining.saturating_add(items as u64))
}

/// Returns the architecture of this program in the notation of image platforms (`amd64`).
pub fn own_architecture() -> String {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
    .to_owned()
}

impl Observations {
    /// Converts the responses of the API server. The request of `extensions` has the parameters of
    /// [`extension_namespaces`], and the request of `service_profiles` the parameters of
    /// [`one_object`].
    pub fn new(
        architecture: Result<String, String>,
        config: Result<ConfigMap, String>,
        version: Result<Info, String>,
        extensions: Result<ObjectList<PartialObjectMeta<Namespace>>, String>,
        service_profiles: Result<ObjectList<PartialObjectMeta<ServiceProfile>>, String>,
    ) -> Self {
        Self {
            architecture,
            config,
            kubernetes_version: version.map(|version| version.git_version),
            extensions: extensions.map(|list| {
                let metadata = list.items.into_iter().map(|namespace| namespace.metadata);
                metadata.collect()
            }),
            service_profiles: service_profiles.map(|list| total(list.items.len(), &list.metadata)),
        }
    }
}

impl Absence {
    /// Returns why a report without Prometheus has no figures.
    pub fn no_prometheus() -> Self {
        Self::LeftOut("the value prometheusUrl is empty".to_owned())
    }
}

impl Report {
    /// Creates the report of an installation. `figures` are the parameters from Prometheus.
    pub fn new(observations: &Observations, figures: Vec<Parameter>) -> Self {
        let mut parameters = figures;
        parameters.extend(of_installation(observations));
        parameters.extend(of_extensions(&observations.extensions));
        parameters.sort_by(|a, b| a.name.cmp(&b.name));
        for parameter in &mut parameters {
            bound(&mut parameter.value);
        }
        Self(parameters)
    }

    /// Returns all parameters, including those that are not sent.
    pub fn parameters(&self) -> &[Parameter] {
        &self.0
    }

    /// Returns the query that sends the report, sorted by name.
    pub fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for parameter in &self.0 {
            if let Ok(value) = &parameter.value {
                query.append_pair(&parameter.name, value);
            }
        }
        query.finish()
    }
}

/// Returns the parameters that every installation has.
fn of_installation(observations: &Observations) -> Vec<Parameter> {
    let config = observations.config.as_ref();
    let config = config.map_err(|reason| Absence::Unread(reason.clone()));
    let of_config = |find: fn(&ConfigMap) -> Option<String>, what: &str| {
        let found = find(config.clone()?);
        found.ok_or_else(|| Absence::LeftOut(format!("ConfigMap {CONFIG} has no {what}")))
    };
    let profiles = match &observations.service_profiles {
        Ok(Some(count)) => Ok(count.to_string()),
        Ok(None) => Err(Absence::LeftOut(
            "the API server does not count them".to_owned(),
        )),
        Err(reason) => Err(Absence::Unread(reason.clone())),
    };
    vec![
        parameter("source", Ok("heartbeat".to_owned()), "kind of the report"),
        parameter(
            "arch",
            read(&observations.architecture),
            "architecture of the node that sends the report",
        ),
        parameter(
            "version",
            of_config(version, "valid value linkerdVersion"),
            "version of the mesh",
        ),
        parameter(
            "uuid",
            of_config(|config| config.metadata.uid.clone(), "UID"),
            "UID of ConfigMap linkerd-config, which identifies the installation",
        ),
        parameter(
            "install-time",
            of_config(installed, "creation time"),
            "creation of ConfigMap linkerd-config, in seconds since 1970",
        ),
        parameter(
            "k8s-version",
            read(&observations.kubernetes_version),
            "version of Kubernetes",
        ),
        parameter(
            "service-profile-count",
            profiles,
            "number of ServiceProfiles",
        ),
    ]
}

fn read(observation: &Result<String, String>) -> Result<String, Absence> {
    observation.clone().map_err(Absence::Unread)
}

fn version(config: &ConfigMap) -> Option<String> {
    let text = config.data.as_ref()?.get("values")?;
    let values = Values::read(serde_norway::from_str(text).ok()?).ok()?;
    non_empty(&values.linkerd_version).map(str::to_owned)
}

fn installed(config: &ConfigMap) -> Option<String> {
    let created = config.metadata.creation_timestamp.as_ref()?;
    Some(created.0.as_second().to_string())
}

/// Returns a parameter for each extension, or one that says why there is none.
fn of_extensions(namespaces: &Result<Vec<ObjectMeta>, String>) -> Vec<Parameter> {
    let namespaces = match namespaces {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            let absence = Absence::Unread(reason.clone());
            return vec![parameter("ext-NAME", Err(absence), "installed extensions")];
        }
    };
    let names: BTreeSet<&str> = namespaces.iter().filter_map(extension).collect();
    let names = names.into_iter().take(MAX_EXTENSIONS as usize);
    names
        .map(|name| Parameter {
            name: format!("ext-{name}"),
            value: Ok("1".to_owned()),
            meaning: "the extension is installed",
        })
        .collect()
}

/// Returns the extension that a namespace belongs to.
fn extension(namespace: &ObjectMeta) -> Option<&str> {
    non_empty(namespace.labels.as_ref()?.get(EXTENSION)?)
}

fn parameter(name: &str, value: Result<String, Absence>, meaning: &'static str) -> Parameter {
    Parameter {
        name: name.to_owned(),
        value,
        meaning,
    }
}

fn bound(value: &mut Result<String, Absence>) {
    if value.as_ref().is_ok_and(|value| value.len() > MAX_VALUE) {
        let reason = format!("the value is longer than {MAX_VALUE} bytes");
        *value = Err(Absence::LeftOut(reason));
    }
}

#[cfg(test)]
mod tests;
