//! A folder of ordinary Kubernetes YAML, as the node reads it.
//!
//! The node runs Pods and Deployments and gives Services addresses; what belongs to the mesh's
//! policies it leaves to the controllers, which read the same folder. What cannot be used is a
//! [`Problem`] that names file, line and object; the rest goes on.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

mod document;

use self::document::Document;

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

/// What the node runs and serves. Every namespaced object has its namespace filled in.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    pub namespaces: BTreeMap<String, Namespace>,
    pub service_accounts: BTreeMap<Key, ServiceAccount>,
    pub config_maps: BTreeMap<Key, ConfigMap>,
    pub secrets: BTreeMap<Key, Secret>,
    pub pods: BTreeMap<Key, Pod>,
    pub deployments: BTreeMap<Key, Deployment>,
    pub services: BTreeMap<Key, Service>,
    /// Of Services without selector; the node makes the others.
    pub endpoint_slices: BTreeMap<Key, EndpointSlice>,
    /// Where each object was written, to name it in messages.
    places: BTreeMap<(&'static str, Key), Place>,
    pub problems: Vec<Problem>,
}

/// A file and the line where a document begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub file: PathBuf,
    pub line: usize,
}

/// Something in the folder that cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub place: Option<Place>,
    /// `Pod demo/web`, as far as known.
    pub object: Option<String>,
    pub message: String,
}

#[derive(Debug, thiserror::Error)]
#[error("read the folder of manifests {path}")]
pub struct ReadError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Reads every `.yaml` and `.yml` file of the folder, in the order of their names. Folders within
/// it are not read.
pub fn read_folder(folder: &Path) -> Result<Manifests, ReadError> {
    let read_error = |source| ReadError {
        path: folder.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(read_error)? {
        let path = entry.map_err(read_error)?.path();
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
                place: Some(Place { file, line: 1 }),
                object: None,
                message: format!("cannot be read: {error}"),
            }),
        }
    }
    Ok(manifests)
}

impl Manifests {
    /// Takes over, from the last reading, what a file held that now cannot be read: its last good
    /// version stays in force.
    pub fn keep_last_good(&mut self, last: &Self) {
        for ((kind, key), place) in &last.places {
            let object = format!("{kind} {key}");
            let spoiled = self.problems.iter().any(|problem| {
                let same_file = problem.place.as_ref().is_some_and(|p| p.file == place.file);
                same_file && problem.object.as_ref().is_none_or(|named| *named == object)
            });
            if !spoiled || self.places.contains_key(&(*kind, key.clone())) {
                continue;
            }
            match *kind {
                "Namespace" => keep(&mut self.namespaces, &last.namespaces, &key.name),
                "ServiceAccount" => keep(&mut self.service_accounts, &last.service_accounts, key),
                "ConfigMap" => keep(&mut self.config_maps, &last.config_maps, key),
                "Secret" => keep(&mut self.secrets, &last.secrets, key),
                "Pod" => keep(&mut self.pods, &last.pods, key),
                "Deployment" => keep(&mut self.deployments, &last.deployments, key),
                "Service" => keep(&mut self.services, &last.services, key),
                _ => keep(&mut self.endpoint_slices, &last.endpoint_slices, key),
            }
            self.places.insert((kind, key.clone()), place.clone());
        }
    }

    /// Adds the documents of one file.
    pub fn add_text(&mut self, file: &Path, text: &str) {
        for document in document::split(text) {
            self.add_document(file, &document);
        }
    }

    /// Where an object was written.
    pub fn place(&self, kind: &'static str, key: &Key) -> Option<&Place> {
        self.places.get(&(kind, key.clone()))
    }

    /// A problem with an object of the folder.
    pub fn problem(&self, kind: &'static str, key: &Key, message: impl Into<String>) -> Problem {
        Problem {
            place: self.place(kind, key).cloned(),
            object: Some(format!("{kind} {key}")),
            message: message.into(),
        }
    }

    fn add_document(&mut self, file: &Path, document: &Document<'_>) {
        let place = Place {
            file: file.to_owned(),
            line: document.line,
        };
        let head = match document.head() {
            Ok(Some(head)) => head,
            Ok(None) => return,
            Err(error) => {
                self.problems.push(Problem {
                    place: Some(document.place_of(file, &error)),
                    object: None,
                    message: document::message(&error),
                });
                return;
            }
        };
        let result = match head.kind.as_str() {
            "Namespace" => self.add_namespace(document, &place),
            "ServiceAccount" => self.add(document, &place, "ServiceAccount", |m| {
                &mut m.service_accounts
            }),
            "ConfigMap" => self.add(document, &place, "ConfigMap", |m| &mut m.config_maps),
            "Secret" => self.add(document, &place, "Secret", |m| &mut m.secrets),
            "Pod" => self.add(document, &place, "Pod", |m| &mut m.pods),
            "Deployment" => self.add(document, &place, "Deployment", |m| &mut m.deployments),
            "Service" => self.add(document, &place, "Service", |m| &mut m.services),
            "EndpointSlice" => self.add(document, &place, "EndpointSlice", |m| {
                &mut m.endpoint_slices
            }),
            "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job" | "CronJob" => {
                self.problems.push(Problem {
                    place: Some(place.clone()),
                    object: Some(head.to_string()),
                    message:
                        "the local node runs Pods and Deployments only; write it as one of these"
                            .into(),
                });
                Ok(())
            }
            // Policies and routes are the controllers' business, anything else nobody's here.
            _ => Ok(()),
        };
        if let Err(error) = result {
            self.problems.push(Problem {
                place: Some(document.place_of(file, &error)),
                object: Some(head.to_string()),
                message: document::message(&error),
            });
        }
    }

    fn add_namespace(
        &mut self,
        document: &Document<'_>,
        place: &Place,
    ) -> Result<(), serde_norway::Error> {
        let namespace: Namespace = document.parse()?;
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let key = Key {
            namespace: String::new(),
            name: name.clone(),
        };
        if self.claim("Namespace", &key, place) {
            self.namespaces.insert(name, namespace);
        }
        Ok(())
    }

    fn add<T>(
        &mut self,
        document: &Document<'_>,
        place: &Place,
        kind: &'static str,
        map: fn(&mut Self) -> &mut BTreeMap<Key, T>,
    ) -> Result<(), serde_norway::Error>
    where
        T: DeserializeOwned + k8s_openapi::Metadata<Ty = ObjectMeta>,
    {
        let mut object: T = document.parse()?;
        let key = Key::fill_in(object.metadata_mut());
        if self.claim(kind, &key, place) {
            map(self).insert(key, object);
        }
        Ok(())
    }

    /// Notes where an object is. The first of a name counts; the others are a problem that names
    /// both places. So is an object without a usable name.
    fn claim(&mut self, kind: &'static str, key: &Key, place: &Place) -> bool {
        let message = if let Some(first) = self.place(kind, key) {
            format!(
                "there is one of this name already, at {first}, and that one is used; give this another metadata.name"
            )
        } else if !is_dns_name(&key.name) {
            "metadata.name must be lower-case letters, digits, '-' and '.'".to_owned()
        } else {
            self.places.insert((kind, key.clone()), place.clone());
            return true;
        };
        self.problems.push(Problem {
            place: Some(place.clone()),
            object: Some(format!("{kind} {key}")),
            message,
        });
        false
    }
}

fn keep<K: Ord + Clone, T: Clone>(map: &mut BTreeMap<K, T>, last: &BTreeMap<K, T>, key: &K) {
    if let Some(object) = last.get(key) {
        map.insert(key.clone(), object.clone());
    }
}

impl Key {
    /// The key of an object, whose namespace is `default` where none is given.
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
    /// Is it about an object of this kind? The kind ends with a blank, as it stands in the object's
    /// name.
    pub fn is_about(&self, kind: &str) -> bool {
        let object = self.object.as_deref();
        object.is_some_and(|object| object.starts_with(kind))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// What Kubernetes allows as the name of an object that becomes a DNS name.
fn is_dns_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=253).contains(&name.len())
        && name.bytes().all(|b| plain(b) || b == b'-' || b == b'.')
        && name.bytes().next().is_some_and(plain)
        && name.bytes().last().is_some_and(plain)
}

#[cfg(test)]
mod tests;
