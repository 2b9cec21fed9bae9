//! The objects of one kind: what each means, which cannot be read, and what a new state of things
//! changes.
//!
//! Pure. An object that cannot be read keeps its last good version, over lists too; one that never
//! had one is simply not there.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use mesh_k8s::kinds::{ObjectMeta, Resource};
use serde::de::DeserializeOwned;

use crate::{
    convert::{self, Manifest, ObjectError},
    model::{Key, Kind, Name, Object},
    source::{Change, manifest::without_position},
};

pub(super) struct Table {
    kind: Kind,
    objects: BTreeMap<Name, Object>,
    /// Those that cannot be read, and why.
    broken: BTreeMap<Name, String>,
    /// What a list that is under way has brought so far.
    listing: Option<Listing>,
}

#[derive(Default)]
struct Listing {
    objects: BTreeMap<Name, Object>,
    broken: BTreeMap<Name, String>,
}

/// An object that cannot be read, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) key: Key,
    pub(super) problem: String,
    /// An older version of it stays in force.
    pub(super) kept: bool,
}

impl Table {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            objects: BTreeMap::new(),
            broken: BTreeMap::new(),
            listing: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn broken(&self) -> usize {
        self.broken.len()
    }

    /// A list begins; what an earlier one brought that was not finished is forgotten.
    pub(super) fn begin(&mut self) {
        self.listing = Some(Listing::default());
    }

    /// An object of the list. It has no effect before the list is complete.
    pub(super) fn list(&mut self, object: DynamicObject) -> Result<(), Broken> {
        let (key, read) = self.read(object);
        let listing = self.listing.get_or_insert_default();
        let name = key.name.clone();
        let problem = match read {
            Ok(object) => {
                listing.objects.insert(name, object);
                return Ok(());
            }
            Err(problem) => problem,
        };
        let last = self.objects.get(&name).cloned();
        let kept = last.is_some();
        if let Some(last) = last {
            listing.objects.insert(name.clone(), last);
        }
        listing.broken.insert(name.clone(), problem.clone());
        report(self.broken.get(&name), key, problem, kept)
    }

    /// The list is complete: what it changed.
    pub(super) fn finish(&mut self) -> Vec<Change> {
        let Listing { objects, broken } = self.listing.take().unwrap_or_default();
        let before = std::mem::replace(&mut self.objects, objects);
        self.broken = broken;
        let gone = before
            .keys()
            .filter(|name| !self.objects.contains_key(*name));
        let new = self
            .objects
            .iter()
            .filter(|(name, object)| before.get(*name) != Some(*object));
        gone.map(|name| self.deleted(name))
            .chain(new.map(|(_, object)| Change::Apply(object.clone())))
            .collect()
    }

    /// A new object, or a new version. Most versions of a pod or a node mean to us what the one
    /// before meant.
    pub(super) fn apply(&mut self, object: DynamicObject) -> Result<Option<Change>, Broken> {
        let (key, read) = self.read(object);
        let name = key.name.clone();
        match read {
            Ok(object) => {
                self.broken.remove(&name);
                if self.objects.get(&name) == Some(&object) {
                    return Ok(None);
                }
                self.objects.insert(name, object.clone());
                Ok(Some(Change::Apply(object)))
            }
            Err(problem) => {
                let kept = self.objects.contains_key(&name);
                let before = self.broken.insert(name, problem.clone());
                report(before.as_ref(), key, problem, kept).map(|()| None)
            }
        }
    }

    pub(super) fn delete(&mut self, meta: &ObjectMeta) -> Option<Change> {
        let name = name(meta);
        self.broken.remove(&name);
        self.objects.remove(&name)?;
        Some(self.deleted(&name))
    }

    /// The kind itself is gone.
    pub(super) fn clear(&mut self) -> Vec<Change> {
        self.begin();
        self.finish()
    }

    fn deleted(&self, name: &Name) -> Change {
        Change::Delete(Key {
            kind: self.kind,
            name: name.clone(),
        })
    }

    fn read(&self, mut object: DynamicObject) -> (Key, Result<Object, String>) {
        let key = Key {
            kind: self.kind,
            name: name(&object.metadata),
        };
        // The kind is known, and where only metadata is watched this says something else.
        object.types = None;
        // Often half of an object, and never of interest here.
        object.metadata.managed_fields = None;
        let read = match serde_json::to_value(object) {
            Ok(json) => match convert::object(self.kind, &Json(json)) {
                Ok(object) => Ok(object),
                Err(ObjectError::Read(problem)) => Err(problem),
                Err(ObjectError::Convert(error)) => Err(error.to_string()),
            },
            Err(error) => Err(error.to_string()),
        };
        (key, read)
    }
}

/// Nothing where the same was said before.
fn report(before: Option<&String>, key: Key, problem: String, kept: bool) -> Result<(), Broken> {
    if before == Some(&problem) {
        return Ok(());
    }
    Err(Broken { key, problem, kept })
}

fn name(meta: &ObjectMeta) -> Name {
    Name::new(
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}

/// An object as the API server wrote it.
struct Json(serde_json::Value);

impl Manifest for Json {
    type Error = String;

    fn read<T: DeserializeOwned + Resource>(&self) -> Result<T, String> {
        T::deserialize(&self.0).map_err(|error| field_and_problem::<T>(&self.0, &error))
    }
}

/// The JSON reader does not say where it stumbled; the YAML reader does, and JSON is YAML.
fn field_and_problem<T: DeserializeOwned>(
    json: &serde_json::Value,
    error: &serde_json::Error,
) -> String {
    match serde_norway::from_str::<T>(&json.to_string()) {
        Err(error) => without_position(&error),
        Ok(_) => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
