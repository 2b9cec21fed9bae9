//! The converted objects of a kind, the invalid ones, and the changes between two states.
//!
//! Without I/O. An invalid object keeps its last valid version, also in lists; one that never was
//! valid does not exist.

use std::collections::BTreeMap;

use mesh_k8s::kinds::ObjectMeta;
use mesh_objects::convert::{self, Json, ObjectError, name};
use mesh_objects::model::{Key, Kind, Name, Object};

use super::received::Received;
use crate::source::Change;

pub(super) struct Table {
    kind: Kind,
    objects: BTreeMap<Name, Object>,
    /// The invalid objects, and why.
    invalid: BTreeMap<Name, String>,
    /// The objects of an incomplete list so far.
    listing: Option<Listing>,
}

#[derive(Default)]
struct Listing {
    objects: BTreeMap<Name, Object>,
    invalid: BTreeMap<Name, String>,
}

/// An invalid object, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidObject {
    pub(super) key: Key,
    pub(super) problem: String,
    /// Whether an older version stays in effect.
    pub(super) kept: bool,
}

impl Table {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            objects: BTreeMap::new(),
            invalid: BTreeMap::new(),
            listing: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn invalid(&self) -> usize {
        self.invalid.len()
    }

    /// Starts a list. Discards an earlier incomplete one.
    pub(super) fn begin(&mut self) {
        self.listing = Some(Listing::default());
    }

    /// Adds an object of the list, which has no effect before the list is complete.
    pub(super) fn list(&mut self, object: Received) -> Result<(), InvalidObject> {
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
        listing.invalid.insert(name.clone(), problem.clone());
        report(self.invalid.get(&name), key, problem, kept)
    }

    /// Returns whether the list, which is complete, lacks objects.
    pub(super) fn lacks_objects(&self) -> bool {
        let listed = |name| {
            let listing = self.listing.as_ref();
            listing.is_some_and(|listing| listing.objects.contains_key(name))
        };
        !self.objects.keys().all(listed)
    }

    /// Completes the list and returns the changes. `keep` keeps objects that it lacks.
    pub(super) fn finish(&mut self, keep: bool) -> Vec<Change> {
        let Listing {
            mut objects,
            invalid,
        } = self.listing.take().unwrap_or_default();
        if keep {
            for (name, object) in &self.objects {
                objects
                    .entry(name.clone())
                    .or_insert_with(|| object.clone());
            }
        }
        let before = std::mem::replace(&mut self.objects, objects);
        self.invalid = invalid;
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

    /// Applies a new or changed object. Returns `None` if its record is unchanged, as after most
    /// changes of pods and nodes.
    pub(super) fn apply(&mut self, object: Received) -> Result<Option<Change>, InvalidObject> {
        let (key, read) = self.read(object);
        let name = key.name.clone();
        match read {
            Ok(object) => {
                self.invalid.remove(&name);
                if self.objects.get(&name) == Some(&object) {
                    return Ok(None);
                }
                self.objects.insert(name, object.clone());
                Ok(Some(Change::Apply(object)))
            }
            Err(problem) => {
                let kept = self.objects.contains_key(&name);
                let before = self.invalid.insert(name, problem.clone());
                report(before.as_ref(), key, problem, kept).map(|()| None)
            }
        }
    }

    pub(super) fn delete(&mut self, meta: &ObjectMeta) -> Option<Change> {
        let name = name(meta);
        self.invalid.remove(&name);
        self.objects.remove(&name)?;
        Some(self.deleted(&name))
    }

    fn deleted(&self, name: &Name) -> Change {
        Change::Delete(Key {
            kind: self.kind,
            name: name.clone(),
        })
    }

    fn read(&self, received: Received) -> (Key, Result<Object, String>) {
        let key = Key {
            kind: self.kind,
            name: name(&received.metadata),
        };
        let mut object = match received.object {
            Ok(object) => object,
            Err(problem) => return (key, Err(problem)),
        };
        // A watch of metadata has another kind here.
        if !matches!(self.kind, Kind::Reported(_)) {
            object.types = None;
            if has_written_status(self.kind)
                && let Some(fields) = object.data.as_object_mut()
            {
                fields.remove("status");
            }
        }
        // Unused, and often half of an object.
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

/// Returns whether controllers write the status of objects of this kind. It has no influence on
/// traffic, so a status that cannot be read must not make an object invalid.
fn has_written_status(kind: Kind) -> bool {
    matches!(
        kind.group(),
        "policy.linkerd.io" | "gateway.networking.k8s.io"
    )
}

/// Returns no error if the same problem was reported before.
fn report(
    before: Option<&String>,
    key: Key,
    problem: String,
    kept: bool,
) -> Result<(), InvalidObject> {
    if before == Some(&problem) {
        return Ok(());
    }
    Err(InvalidObject { key, problem, kept })
}

#[cfg(test)]
mod tests;
