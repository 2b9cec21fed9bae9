//! Follows the ConfigMaps of machines outside Kubernetes, which the identity service issues
//! certificates to.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client, ResourceExt as _};
use mesh_cluster::api_server::{Backoff, watch_objects};
use mesh_core::annotation::MACHINE;
use mesh_core::rights::{self, Right};
use mesh_k8s::invalid::summary;
use mesh_k8s::machine::Machine;
use tokio::sync::watch;

use crate::identity::Machines;

/// The most machines. Further ones are not admitted.
const MAX_MACHINES: usize = 10_000;

/// Returns the rights to follow machines, in the namespace of the control plane.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    rights::all("", "configmaps", &["list", "watch"])
}

/// Runs until it is dropped. An invalid ConfigMap changes nothing.
pub(crate) async fn follow(
    client: Client,
    namespace: String,
    machines: watch::Sender<Arc<Machines>>,
) {
    let config_maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let config = Config::default().labels(MACHINE);
    let what = "ConfigMaps of machines";
    let mut events = Box::pin(watch_objects(
        config_maps,
        config,
        what,
        Backoff::for_api_server(),
    ));
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        let machines = |change: &mut dyn FnMut(&mut Machines)| {
            machines.send_modify(|current| change(Arc::make_mut(current)));
        };
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => {
                listed.insert(name(&object));
                machines(&mut |current| apply(current, &object));
            }
            Event::InitDone => machines(&mut |current| current.retain(|it, _| listed.contains(it))),
            Event::Apply(object) => machines(&mut |current| apply(current, &object)),
            Event::Delete(object) => machines(&mut |current| {
                if current.remove(&name(&object)).is_some() {
                    tracing::info!(machine = name(&object), "The machine is no longer admitted");
                }
            }),
        }
    }
}

fn name(object: &ConfigMap) -> String {
    object.labels().get(MACHINE).cloned().unwrap_or_default()
}

fn apply(machines: &mut Machines, object: &ConfigMap) {
    let config_map = object.name_any();
    match Machine::read(object) {
        Ok(machine) if machines.len() >= MAX_MACHINES && !machines.contains_key(&machine.name) => {
            tracing::warn!(
                config_map,
                "Ignored a machine: there are {MAX_MACHINES} others"
            );
        }
        Ok(machine) => {
            if machines.get(&machine.name) != Some(&machine) {
                tracing::info!(machine = machine.name, "The machine is admitted");
                machines.insert(machine.name.clone(), machine);
            }
        }
        Err(problems) => {
            let problems = summary(&problems);
            tracing::warn!(config_map, problems, "Ignored the ConfigMap of a machine");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_map(name: &str) -> ConfigMap {
        let key = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let machine = Machine {
            name: name.to_owned(),
            accounts: [mesh_k8s::machine::AccountName::parse("shop/db").unwrap()].into(),
            key: key.to_owned(),
            token: None,
        };
        machine.config_map("linkerd")
    }

    #[test]
    fn invalid_config_map_changes_nothing_and_machines_are_bounded() {
        let mut machines = Machines::new();
        apply(&mut machines, &config_map("db-1"));
        let before = machines.clone();
        assert_eq!(before.len(), 1);
        let mut invalid = config_map("db-1");
        invalid.data.as_mut().unwrap().clear();
        apply(&mut machines, &invalid);
        assert_eq!(machines, before);
        for at in 0..MAX_MACHINES {
            apply(&mut machines, &config_map(&format!("m{at}")));
        }
        assert_eq!(machines.len(), MAX_MACHINES);
        let mut changed = config_map("db-1");
        let accounts = changed.data.as_mut().unwrap();
        accounts.insert("service-accounts".to_owned(), "shop/web".to_owned());
        apply(&mut machines, &changed);
        assert_ne!(machines["db-1"], before["db-1"]);
    }
}
