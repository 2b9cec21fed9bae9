//! Which generations of objects the API server has served, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::objects;
use crate::store::{Id, Objects};

/// A change of the served objects.
#[derive(Clone, Debug)]
pub struct Change {
    pub at: Duration,
    pub id: Id,
    /// `None` if the object is not there.
    pub generation: Option<u64>,
}

/// All changes, the oldest first. An API server that goes back in time makes changes, too: old
/// generations are served again.
#[derive(Debug, Default)]
pub struct History {
    changes: Vec<Change>,
    served: BTreeMap<Id, u64>,
}

impl History {
    /// Records the differences between the objects that are served now and those before.
    pub fn record(&mut self, at: Duration, objects: &Objects) {
        let now: BTreeMap<Id, u64> = objects
            .iter()
            .filter_map(|(id, object)| {
                let marker = object["metadata"]["annotations"]["example.com/generation"].as_str();
                Some((id.clone(), objects::generations(marker?).next()?))
            })
            .collect();
        let gone = self.served.keys().filter(|id| !now.contains_key(*id));
        let gone = gone.map(|id| (id.clone(), None));
        let new = now
            .iter()
            .filter(|(id, it)| self.served.get(*id) != Some(*it));
        let new = new.map(|(id, it)| (id.clone(), Some(*it)));
        for (id, generation) in gone.chain(new).collect::<Vec<_>>() {
            self.changes.push(Change { at, id, generation });
        }
        self.served = now;
    }

    pub fn changes(&self) -> &[Change] {
        &self.changes
    }
}
