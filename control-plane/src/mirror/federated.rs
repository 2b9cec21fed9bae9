//! The members of a federated Service, which several processes write: each changes its own entry.

use mesh_core::units::list_items;

/// Returns the list with a member at its end, unless it has it.
pub(super) fn join(list: &str, member: &str) -> String {
    if has(list, member) {
        return list.to_owned();
    }
    let members = list_items(list).chain([member]);
    members.collect::<Vec<_>>().join(",")
}

/// Returns the list without a member.
pub(super) fn leave(list: &str, member: &str) -> String {
    let others = list_items(list).filter(|item| *item != member);
    others.collect::<Vec<_>>().join(",")
}

/// Returns whether a list has a member.
pub(super) fn has(list: &str, member: &str) -> bool {
    list_items(list).any(|item| item == member)
}

/// Returns the clusters of the members.
pub(super) fn clusters(list: &str) -> impl Iterator<Item = &str> {
    list_items(list).filter_map(|item| Some(item.split_once('@')?.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_entry_of_a_list_changes() {
        assert_eq!(join("", "web@east"), "web@east");
        assert_eq!(join("web@west", "web@east"), "web@west,web@east");
        assert_eq!(join("web@east, web@west", "web@east"), "web@east, web@west");
        assert_eq!(
            leave("web@west,web@east,db@east", "web@east"),
            "web@west,db@east"
        );
        assert_eq!(leave("web@east", "web@east"), "");
        assert_eq!(leave("", "web@east"), "");
        assert!(has("a@b, web@east", "web@east") && !has("web@eastern", "web@east"));
        let clusters: Vec<_> = clusters("web@west, web,web@east").collect();
        assert_eq!(clusters, ["west", "east"]);
    }
}
