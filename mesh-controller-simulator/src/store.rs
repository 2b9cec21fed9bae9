//! The objects of the API server, with all versions of the current history.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::resources::Resource;

/// The name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    pub resource: Resource,
    /// Empty for an object without one.
    pub namespace: String,
    pub name: String,
}

/// A change of one object.
#[derive(Clone, Debug)]
pub struct Commit {
    pub version: u64,
    pub id: Id,
    pub before: Option<Value>,
    /// `None` if it was deleted.
    pub after: Option<Value>,
}

/// Objects by name.
pub type Objects = BTreeMap<Id, Value>;

/// The objects and how they came about. Versions only increase, but for [`Store::restore`].
#[derive(Debug)]
pub struct Store {
    version: u64,
    objects: Objects,
    commits: Vec<Commit>,
    /// Watches from before this version have expired.
    compacted: u64,
}

/// All versions of a world have the same number of digits.
const FIRST_VERSION: u64 = 100_000;

impl Default for Store {
    fn default() -> Self {
        Self {
            version: FIRST_VERSION,
            objects: Objects::new(),
            commits: Vec::new(),
            compacted: FIRST_VERSION,
        }
    }
}

impl Id {
    /// Reads the name of an object.
    ///
    /// # Panics
    ///
    /// The object is of a kind that the API server does not know.
    pub fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let resource = Resource::of(&version, &kind);
        Self {
            resource: resource.unwrap_or_else(|| panic!("{kind} of {version} is not served")),
            namespace: text(&object["metadata"]["namespace"]),
            name: text(&object["metadata"]["name"]),
        }
    }
}

impl Store {
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    pub fn get(&self, id: &Id) -> Option<&Value> {
        self.objects.get(id)
    }

    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Makes watches from before the current version expire.
    pub fn compact(&mut self) {
        self.compacted = self.version;
    }

    /// Stores an object, or deletes it, `skipped` versions after the current one: other objects
    /// have these. Returns the stored object.
    pub fn commit(&mut self, id: Id, object: Option<Value>, skipped: u64) -> Option<Value> {
        self.version += 1 + skipped;
        let version = Value::from(self.version.to_string());
        let before = self.objects.get(&id).cloned();
        let after = object.map(|mut object| {
            object["metadata"]["resourceVersion"] = version.clone();
            object
        });
        match &after {
            Some(after) => self.objects.insert(id.clone(), after.clone()),
            None => self.objects.remove(&id),
        };
        self.commits.push(Commit {
            version: self.version,
            id,
            before,
            after: after.clone(),
        });
        after
    }

    /// Returns the commits after a version, the oldest first.
    pub fn since(&self, version: u64) -> &[Commit] {
        let at = self.commits.partition_point(|it| it.version <= version);
        &self.commits[at..]
    }

    /// Returns the objects as they were at a version.
    pub fn at(&self, version: u64) -> Objects {
        let mut objects = self.objects.clone();
        for commit in self.since(version).iter().rev() {
            match &commit.before {
                Some(before) => objects.insert(commit.id.clone(), before.clone()),
                None => objects.remove(&commit.id),
            };
        }
        objects
    }

    /// Returns the version that the last `count` commits follow.
    pub fn version_before(&self, count: usize) -> u64 {
        let at = self.commits.len().saturating_sub(count);
        let before = at.checked_sub(1).map(|at| self.commits[at].version);
        before.unwrap_or(FIRST_VERSION)
    }

    /// Returns the last version of a commit that is not higher.
    pub fn version_at(&self, version: u64) -> u64 {
        let at = self.commits.partition_point(|it| it.version <= version);
        let before = at.checked_sub(1).map(|at| self.commits[at].version);
        before.unwrap_or(FIRST_VERSION)
    }

    /// Goes back to a version, as if nothing had happened since.
    pub fn restore(&mut self, version: u64) {
        self.objects = self.at(version);
        let at = self.commits.partition_point(|it| it.version <= version);
        self.commits.truncate(at);
        self.version = version;
        self.compacted = self.compacted.min(version);
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.resource.api().kind;
        match &*self.namespace {
            "" => write!(f, "{kind} {}", self.name),
            namespace => write!(f, "{kind} {namespace}/{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, note: u64) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": "shop" }, "note": note,
        })
    }

    #[test]
    fn every_version_can_be_read_and_restored() {
        let mut store = Store::default();
        let (web, cart) = (Id::of(&service("web", 0)), Id::of(&service("cart", 0)));
        store.commit(web.clone(), Some(service("web", 1)), 0);
        let first = store.version();
        store.commit(web.clone(), Some(service("web", 2)), 5);
        store.commit(cart.clone(), Some(service("cart", 3)), 0);
        store.commit(web.clone(), None, 0);
        assert_eq!(store.since(first).len(), 3);
        assert_eq!(store.version_before(3), first);
        assert_eq!(store.at(first)[&web]["note"], 1);
        assert!(!store.at(first).contains_key(&cart));
        assert!(store.get(&web).is_none());
        store.restore(first);
        assert_eq!(store.version(), first);
        assert_eq!(store.get(&web).unwrap()["note"], 1);
        assert!(store.get(&cart).is_none());
        assert!(store.since(first).is_empty());
    }
}
