//! Keeps the [`Inventory`] as its source says.

use mesh_cluster::source::{Batch, Change};
use mesh_objects::inventory::Inventory;
use mesh_objects::model::{Key, Kind, Object};

/// Applies changes. Objects of other kinds are ignored.
pub(crate) fn apply(inventory: &mut Inventory, batch: Batch) {
    for change in batch {
        match change {
            Change::Apply(object) => insert(inventory, object),
            Change::Delete(Key {
                kind: Kind::Listed(kind),
                name,
            }) => inventory.remove(kind, &name),
            Change::Delete(_) => {}
            Change::Replace(objects) => {
                inventory.clear();
                for object in objects {
                    insert(inventory, object);
                }
            }
        }
    }
}

fn insert(inventory: &mut Inventory, object: Object) {
    if let Object::Listed(object) = object {
        inventory.insert(object);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mesh_cluster::source::kube::kinds;
    use mesh_cluster::source::manifest::{self, Document};
    use mesh_objects::model::{ListedKind, Name};

    use super::*;

    /// Returns an inventory of the objects; none may be invalid.
    pub(crate) fn of_manifests(text: &str) -> Inventory {
        let read = manifest::read(text, &kinds::in_directories(kinds::METRICS_API));
        let objects = read.into_iter().map(|document| match document {
            Document::Object { object, .. } => object,
            other => panic!("{other:?}"),
        });
        let mut inventory = Inventory::new();
        apply(&mut inventory, vec![Change::Replace(objects.collect())]);
        inventory
    }

    #[test]
    fn changes_are_applied() {
        let shop = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";
        let mut inventory = of_manifests(shop);
        let name = Name::new("", "shop");
        assert!(inventory.get(ListedKind::Namespace, &name).is_some());
        let kind = Kind::Listed(ListedKind::Namespace);
        apply(&mut inventory, vec![Change::Delete(Key { kind, name })]);
        assert!(inventory.is_empty());
    }
}
