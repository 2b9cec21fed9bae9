//! Finds the node and the pod that a command operates on.

use std::path::Path;

use anyhow::Context as _;
use mesh_local::client;
use mesh_local::manifest::ObjectKey;
use mesh_local::node_paths::{FindError, Name, NodePaths};

use crate::exit::Failure;
use crate::global::Global;
use crate::node::failed;

/// Returns the node of `--local`, or else of the directory, or else the only node of this machine.
pub(super) fn node(global: &Global, dir: Option<&Path>) -> anyhow::Result<NodePaths> {
    let input = |error: &dyn std::error::Error| Failure::Input(error.to_string());
    if let Some(name) = global.local_name() {
        let name = name.parse().map_err(|error| input(&error))?;
        return Ok(NodePaths::new(name));
    }
    if let Some(dir) = dir {
        let path = std::path::absolute(dir).with_context(|| format!("find {}", dir.display()))?;
        let name = Name::from_directory(&path).map_err(|error| input(&error))?;
        return Ok(NodePaths::new(name));
    }
    NodePaths::find(None).map_err(|error| {
        let failure = match error {
            FindError::Several(_) => Failure::Input(error.to_string()),
            FindError::None | FindError::Read(_) => Failure::Unreachable(error.to_string()),
        };
        failure.into()
    })
}

/// Returns the pod of that name, or the only one with that prefix.
pub(super) fn pod(paths: &NodePaths, wanted: &str) -> anyhow::Result<ObjectKey> {
    let status = client::status(paths).map_err(failed)?;
    let pods = status.pods.iter();
    let keys: Vec<ObjectKey> = pods
        .map(|pod| ObjectKey::new(&pod.namespace, &pod.name))
        .collect();
    resolve(&keys, wanted).map_err(|message| Failure::Input(message).into())
}

fn resolve(pods: &[ObjectKey], wanted: &str) -> Result<ObjectKey, String> {
    let (namespace, name) = match wanted.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, wanted),
    };
    let candidates: Vec<&ObjectKey> = pods
        .iter()
        .filter(|pod| namespace.is_none_or(|namespace| pod.namespace == namespace))
        .collect();
    let select = |matches: &dyn Fn(&str) -> bool| -> Vec<&ObjectKey> {
        candidates
            .iter()
            .copied()
            .filter(|pod| matches(&pod.name))
            .collect()
    };
    let exact = select(&|pod| pod == name);
    let prefix = format!("{name}-");
    let found = if exact.is_empty() {
        select(&|pod| pod.starts_with(&prefix))
    } else {
        exact
    };
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(format!(
            "pod {wanted:?} does not exist; `meshctl local status` lists the pods"
        )),
        several => {
            let names: Vec<String> = several.iter().map(ToString::to_string).collect();
            Err(format!(
                "{wanted:?} is ambiguous: {}; write the full name",
                names.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_found_by_name_namespace_and_prefix() {
        let pods = [
            ("a", "client"),
            ("a", "web-1-x"),
            ("a", "web-1-y"),
            ("b", "client"),
            ("b", "db-0"),
        ]
        .map(|(namespace, name)| ObjectKey::new(namespace, name));
        let check = |wanted: &str, expect: Option<(&str, &str)>| {
            let found = resolve(&pods, wanted).ok();
            assert_eq!(
                found,
                expect.map(|(namespace, name)| ObjectKey::new(namespace, name)),
                "{wanted}"
            );
        };
        check("db-0", Some(("b", "db-0")));
        check("db", Some(("b", "db-0")));
        check("a/client", Some(("a", "client")));
        check("client", None);
        check("web", None);
        check("web-1-x", Some(("a", "web-1-x")));
        check("we", None);
    }
}
