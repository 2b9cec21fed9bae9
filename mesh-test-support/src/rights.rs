//! The rights that a chart grants and those that code lists, in one format (`Right` of mesh-core),
//! so that tests compare them.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the rights of the roles that are bound to each ServiceAccount of a chart, in the format
/// of a `Right`. `built_in` has roles of Kubernetes, and the right that the account uses.
pub fn granted<'a>(
    chart: &'a str,
    built_in: &[(&str, &str)],
) -> BTreeMap<&'a str, BTreeSet<String>> {
    let mut granted: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for line in chart.lines() {
        let binding = line.strip_prefix("ServiceAccount ");
        let Some((account, role)) = binding.and_then(|binding| binding.split_once(": ")) else {
            continue;
        };
        let lines = chart.lines();
        let mut rights: BTreeSet<String> = lines
            .filter_map(|line| parse_line(line, role))
            .flatten()
            .collect();
        let built_in = built_in.iter().filter(|(name, _)| *name == role);
        rights.extend(built_in.map(|(_, right)| (*right).to_owned()));
        if rights.is_empty() {
            rights.insert(format!("an unknown role: {role}"));
        }
        granted.entry(account).or_default().extend(rights);
    }
    granted
}

/// Returns the rights that the code of each ServiceAccount lists, in the same format.
pub fn by_account<R: ToString>(
    accounts: BTreeMap<&str, Vec<R>>,
) -> BTreeMap<&str, BTreeSet<String>> {
    let accounts = accounts.into_iter();
    accounts
        .map(|(account, rights)| (account, rights.iter().map(R::to_string).collect()))
        .collect()
}

/// Parses lines such as `ClusterRole web: deployments.apps: get list only a b`, the format of the
/// charts' rights, and returns them in the format of a `Right`, one for each verb and name.
/// `None` for another role.
fn parse_line(line: &str, role: &str) -> Option<BTreeSet<String>> {
    let (resource, verbs) = line
        .strip_prefix(role)?
        .strip_prefix(": ")?
        .split_once(": ")?;
    let (verbs, names) = verbs.split_once(" only ").unwrap_or((verbs, ""));
    let mut all = BTreeSet::new();
    for verb in verbs.split(' ') {
        if names.is_empty() {
            all.insert(format!("{verb} {resource}"));
        }
        let names = names.split(' ').filter(|name| !name.is_empty());
        all.extend(names.map(|name| format!("{verb} {resource} {name}")));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_charts_are_rights() {
        let line = "Role web: secrets: get update only a b";
        let found = parse_line(line, "Role web").unwrap();
        let expected = [
            "get secrets a",
            "get secrets b",
            "update secrets a",
            "update secrets b",
        ];
        assert_eq!(found, BTreeSet::from(expected.map(str::to_owned)));
        assert_eq!(parse_line(line, "Role we"), None);
        let found = parse_line("Role web: jobs.batch: list", "Role web").unwrap();
        assert_eq!(found, BTreeSet::from(["list jobs.batch".to_owned()]));
    }
}
