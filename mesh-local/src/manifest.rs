//! Reads a directory of Kubernetes YAML. The node runs Pods and Deployments and assigns addresses
//! to Services. The controllers read policies from the same directory themselves. Invalid objects
//! are reported as a [`Problem`] with file, line and object; all others are used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::document::Document;
use crate::file::{self, FileError};

mod document;

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    pub namespace: String,
    pub name: String,
}

/// The objects that the node uses. All namespaced objects have a namespace.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    pub namespaces: BTreeMap<String, Namespace>,
    pub service_accounts: BTreeMap<ObjectKey, ServiceAccount>,
    pub config_maps: BTreeMap<ObjectKey, ConfigMap>,
    pub secrets: BTreeMap<ObjectKey, Secret>,
    pub pods: BTreeMap<ObjectKey, Pod>,
    pub deployments: BTreeMap<ObjectKey, Deployment>,
    pub services: BTreeMap<ObjectKey, Service>,
    /// EndpointSlices of Services without selector; the node creates the others.
    pub endpoint_slices: BTreeMap<ObjectKey, EndpointSlice>,
    /// The source of each object, for messages.
    locations: BTreeMap<(&'static str, ObjectKey), SourceLocation>,
    pub problems: Vec<Problem>,
}

/// A file and the first line of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLocation {
    pub file: PathBuf,
    pub line: usize,
}

/// An invalid object or file, with a message for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    #[serde(rename = "place")]
    pub location: Option<SourceLocation>,
    /// Kind and name, such as `Pod demo/web`, if they could be read.
    pub object: Option<String>,
    pub message: String,
}

/// Reads all `.yaml` and `.yml` files of a directory in the order of their names. Subdirectories
/// are not read.
pub fn read_directory(directory: &Path) -> Result<Manifests, FileError> {
    let read_error = file::failed("read the directory of manifests", directory);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(&read_error)? {
        let path = entry.map_err(&read_error)?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let yaml = path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml");
        if yaml && !hidden && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    let mut manifests = Manifests::default();
    for file in files {
        match fs::read_to_string(&file) {
            Ok(text) => manifests.add_text(&file, &text),
            Err(error) => manifests.problems.push(Problem {
                location: Some(SourceLocation { file, line: 1 }),
                object: None,
                message: format!("unreadable: {error}"),
            }),
        }
    }
    Ok(manifests)
}

impl Manifests {
    /// Retains the last valid version of objects whose file or document has become invalid.
    pub fn retain_last_valid(&mut self, last: &Self) {
        for ((kind, key), location) in &last.locations {
            let object = format!("{kind} {key}");
            let is_invalid = self.problems.iter().any(|problem| {
                let same_file = problem
                    .location
                    .as_ref()
                    .is_some_and(|p| p.file == location.file);
                same_file && problem.object.as_ref().is_none_or(|named| *named == object)
            });
            if !is_invalid || self.locations.contains_key(&(*kind, key.clone())) {
                continue;
            }
            match *kind {
                "Namespace" => copy_object(&mut self.namespaces, &last.namespaces, &key.name),
                "ServiceAccount" => {
                    copy_object(&mut self.service_accounts, &last.service_accounts, key);
                }
                "ConfigMap" => copy_object(&mut self.config_maps, &last.config_maps, key),
                "Secret" => copy_object(&mut self.secrets, &last.secrets, key),
                "Pod" => copy_object(&mut self.pods, &last.pods, key),
                "Deployment" => copy_object(&mut self.deployments, &last.deployments, key),
                "Service" => copy_object(&mut self.services, &last.services, key),
                _ => copy_object(&mut self.endpoint_slices, &last.endpoint_slices, key),
            }
            self.locations.insert((kind, key.clone()), location.clone());
        }
    }

    /// Adds the documents of one file.
    pub fn add_text(&mut self, file: &Path, text: &str) {
        for document in document::split(text) {
            self.add_document(file, &document);
        }
    }

    /// Returns the source of an object.
    pub fn location(&self, kind: &'static str, key: &ObjectKey) -> Option<&SourceLocation> {
        self.locations.get(&(kind, key.clone()))
    }

    /// Returns the metadata of a namespace; empty if no manifest defines it.
    pub(crate) fn namespace_meta(&self, name: &str) -> ObjectMeta {
        let namespace = self.namespaces.get(name);
        namespace.map_or_else(ObjectMeta::default, |namespace| namespace.metadata.clone())
    }

    /// Creates a problem with an object.
    pub fn problem(
        &self,
        kind: &'static str,
        key: &ObjectKey,
        message: impl Into<String>,
    ) -> Problem {
        Problem {
            location: self.location(kind, key).cloned(),
            object: Some(format!("{kind} {key}")),
            message: message.into(),
        }
    }

    fn add_document(&mut self, file: &Path, document: &Document<'_>) {
        let location = SourceLocation {
            file: file.to_owned(),
            line: document.line,
        };
        let type_meta = match document.type_meta() {
            Ok(Some(type_meta)) => type_meta,
            Ok(None) => return,
            Err(error) => {
                self.problems.push(Problem {
                    location: Some(document.location_of(file, &error)),
                    object: None,
                    message: document::message(&error),
                });
                return;
            }
        };
        let result = match type_meta.kind.as_str() {
            "Namespace" => self.add_namespace(document, &location),
            "ServiceAccount" => self.add(document, &location, "ServiceAccount", |m| {
                &mut m.service_accounts
            }),
            "ConfigMap" => self.add(document, &location, "ConfigMap", |m| &mut m.config_maps),
            "Secret" => self.add(document, &location, "Secret", |m| &mut m.secrets),
            "Pod" => self.add(document, &location, "Pod", |m| &mut m.pods),
            "Deployment" => self.add(document, &location, "Deployment", |m| &mut m.deployments),
            "Service" => self.add(document, &location, "Service", |m| &mut m.services),
            "EndpointSlice" => self.add(document, &location, "EndpointSlice", |m| {
                &mut m.endpoint_slices
            }),
            "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job" | "CronJob" => {
                self.problems.push(Problem {
                    location: Some(location.clone()),
                    object: Some(type_meta.to_string()),
                    message:
                        "the local node supports only Pods and Deployments; use one of these kinds"
                            .into(),
                });
                Ok(())
            }
            // The controllers read policies and routes; other kinds have no effect.
            _ => Ok(()),
        };
        if let Err(error) = result {
            self.problems.push(Problem {
                location: Some(document.location_of(file, &error)),
                object: Some(type_meta.to_string()),
                message: document::message(&error),
            });
        }
    }

    fn add_namespace(
        &mut self,
        document: &Document<'_>,
        location: &SourceLocation,
    ) -> Result<(), serde_norway::Error> {
        let namespace: Namespace = document.parse()?;
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let key = ObjectKey {
            namespace: String::new(),
            name: name.clone(),
        };
        if self.register("Namespace", &key, location) {
            self.namespaces.insert(name, namespace);
        }
        Ok(())
    }

    fn add<T>(
        &mut self,
        document: &Document<'_>,
        location: &SourceLocation,
        kind: &'static str,
        map: fn(&mut Self) -> &mut BTreeMap<ObjectKey, T>,
    ) -> Result<(), serde_norway::Error>
    where
        T: DeserializeOwned + k8s_openapi::Metadata<Ty = ObjectMeta>,
    {
        let mut object: T = document.parse()?;
        let key = ObjectKey::fill_in(object.metadata_mut());
        if self.register(kind, &key, location) {
            map(self).insert(key, object);
        }
        Ok(())
    }

    /// Records the source of an object. Returns false and reports a problem for duplicate and
    /// invalid names; the first object of a name is used.
    fn register(&mut self, kind: &'static str, key: &ObjectKey, location: &SourceLocation) -> bool {
        let message = if let Some(first) = self.location(kind, key) {
            format!("duplicate of the object at {first}, which is used; change metadata.name")
        } else if !is_dns_name(&key.name) {
            "invalid metadata.name: expected lower-case letters, digits, '-' and '.'".to_owned()
        } else {
            self.locations.insert((kind, key.clone()), location.clone());
            return true;
        };
        self.problems.push(Problem {
            location: Some(location.clone()),
            object: Some(format!("{kind} {key}")),
            message,
        });
        false
    }
}

fn copy_object<K: Ord + Clone, T: Clone>(map: &mut BTreeMap<K, T>, last: &BTreeMap<K, T>, key: &K) {
    if let Some(object) = last.get(key) {
        map.insert(key.clone(), object.clone());
    }
}

impl ObjectKey {
    /// Returns the key of an object, and sets a missing namespace to `default`.
    pub fn fill_in(meta: &mut ObjectMeta) -> Self {
        let namespace = meta
            .namespace
            .get_or_insert_with(|| "default".to_owned())
            .clone();
        Self {
            namespace,
            name: meta.name.clone().unwrap_or_default(),
        }
    }

    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl Problem {
    /// Returns whether the problem is about an object of a kind, which is passed with a trailing
    /// blank.
    pub fn is_about(&self, kind: &str) -> bool {
        let object = self.object.as_deref();
        object.is_some_and(|object| object.starts_with(kind))
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Returns whether the name is a valid DNS subdomain (RFC 1123), as Kubernetes requires.
fn is_dns_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=253).contains(&name.len())
        && name.bytes().all(|b| plain(b) || b == b'-' || b == b'.')
        && name.bytes().next().is_some_and(plain)
        && name.bytes().last().is_some_and(plain)
}

#[cfg(test)]
mod tests;
