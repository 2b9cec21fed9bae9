//! A cluster, whose objects are as the processes write them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::core::PartialObjectMeta;
use mesh_k8s::crd::LinkStatus;
use mesh_k8s::kinds::core::{Endpoints, Namespace, Service};
use mesh_objects::model::Name;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::follow::{Step, set_endpoints, set_namespace, set_service};
use super::super::links::{RawLink, set_link};
use super::super::objects::{Mirrors, RemoteObjects, Settings};
use super::super::planned::Key;
use super::super::records::{RemoteService, RemoteSlice};
use super::super::target::Target;
use crate::writer::{Action, Answer, Change, Field, Write, Written as _};

/// The Links, Services and namespaces of this cluster, and the processes that serve Links.
pub(super) struct World {
    objects: BTreeMap<(&'static str, Name), Value>,
    pub(super) processes: Vec<Mirrors>,
    version: u64,
    pub(super) now: Timestamp,
    /// Writes of these objects are refused.
    pub(super) refused: BTreeSet<String>,
}

pub(super) const SERVICE: &str = "Service";
pub(super) const ENDPOINTS: &str = "Endpoints";
pub(super) const LINK: &str = "Link";
const NAMESPACE: &str = "Namespace";

/// A Link to the cluster `east`, with a gateway.
pub(super) const EAST: &str = "
targetClusterName: east
targetClusterDomain: east.local
targetClusterLinkerdNamespace: linkerd
clusterCredentialsSecret: cluster-credentials-east
gatewayAddress: 192.0.2.1
gatewayPort: '4143'
gatewayIdentity: gateway.example
probeSpec: {path: /ready, port: '4191', period: 3s}
selector: {matchLabels: {mirror.linkerd.io/exported: 'true'}}
remoteDiscoverySelector: {matchLabels: {mirror.linkerd.io/exported: remote-discovery}}
federatedServiceSelector: {matchLabels: {mirror.linkerd.io/federated: member}}
";

/// A Service `web` that is exported behind the gateway.
pub(super) const WEB: &str = "
metadata:
  name: web
  namespace: shop
  resourceVersion: '7'
  uid: u-7
  labels: {app: web, mirror.linkerd.io/exported: 'true'}
spec:
  clusterIP: 10.1.0.1
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}]
";

pub(super) fn name(name: &str) -> Name {
    let (namespace, name) = name.split_once('/').unwrap_or(("shop", name));
    Name::new(namespace, name)
}

/// Parses YAML.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> T {
    serde_norway::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(super) fn settings(link: Option<&str>) -> Settings {
    Settings {
        namespace: "links".into(),
        link: link.map(Arc::from),
        mirrors_headless: false,
        creates_namespaces: false,
        probe_service: link.map(|link| format!("probe-{link}").into()),
    }
}

impl World {
    /// Returns a world without processes, with the namespace `shop`.
    pub(super) fn empty() -> Self {
        let mut world = Self {
            objects: BTreeMap::new(),
            processes: Vec::new(),
            version: 100,
            now: Timestamp::from_second(1_000_000).unwrap(),
            refused: BTreeSet::new(),
        };
        world.put(NAMESPACE, &Name::new("", "shop"), json!({}));
        world
    }

    /// Returns a world with a process that serves the Link `east`, whose gateway is known and whose
    /// target has no Services.
    pub(super) fn east() -> Self {
        Self::with(settings(Some("east")))
    }

    pub(super) fn with(settings: Settings) -> Self {
        let mut world = Self::empty();
        world.put_link("east", EAST);
        world.start(settings, None);
        world
    }

    /// Starts a process, and returns its number. It knows all objects, and its target is empty.
    pub(super) fn start(&mut self, settings: Settings, target: Option<Target>) -> usize {
        let cluster = settings.link.clone();
        let mut mirrors = Mirrors::new(settings, target);
        for (kind, name) in self.objects.keys() {
            tell(
                &mut mirrors,
                kind,
                name,
                Some(&self.objects[&(*kind, name.clone())]),
            );
        }
        let listed = |of: &str| {
            let all = self.objects.keys().filter(|(kind, _)| *kind == of);
            all.map(|(_, name)| name.clone()).collect::<BTreeSet<_>>()
        };
        set_service(&mut mirrors, Step::Listed(listed(SERVICE)));
        set_endpoints(&mut mirrors, Step::Listed(listed(ENDPOINTS)));
        set_namespace(&mut mirrors, Step::Listed(listed(NAMESPACE)));
        set_link(&mut mirrors, Step::Listed(listed(LINK)));
        mirrors.remote = Some(RemoteObjects::new(cluster));
        let gateway: IpAddr = "192.0.2.1".parse().unwrap();
        mirrors.gateway.addresses = Some(Arc::new([gateway]));
        mirrors.forget_plan();
        self.processes.push(mirrors);
        self.processes.len() - 1
    }

    /// Creates or changes a Link, a second after the one before.
    pub(super) fn put_link(&mut self, link: &str, spec: &str) {
        let key = (LINK, Name::new("links", link));
        let before = self.objects.get(&key);
        let created = before.map_or_else(
            || {
                let seconds = i64::try_from(self.version).unwrap();
                json!(Timestamp::from_second(seconds).unwrap())
            },
            |before| before["metadata"]["creationTimestamp"].clone(),
        );
        let status = before.map_or(Value::Null, |before| before["status"].clone());
        let mut object = json!({
            "metadata": { "creationTimestamp": created },
            "spec": read::<Value>(spec),
        });
        if !status.is_null() {
            object["status"] = status;
        }
        self.put(LINK, &key.1, object);
    }

    /// Creates or changes an object of this cluster, as another client.
    pub(super) fn put(&mut self, kind: &'static str, name: &Name, mut object: Value) {
        self.version += 1;
        object["metadata"]["name"] = (*name.name).into();
        if !name.namespace.is_empty() {
            object["metadata"]["namespace"] = (*name.namespace).into();
        }
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if kind == SERVICE && object["spec"]["clusterIP"].is_null() {
            object["spec"]["clusterIP"] = format!("10.0.0.{}", self.version % 250).into();
        }
        for mirrors in &mut self.processes {
            tell(mirrors, kind, name, Some(&object));
        }
        self.objects.insert((kind, name.clone()), object);
    }

    pub(super) fn delete(&mut self, kind: &'static str, name: &Name) {
        self.objects.remove(&(kind, name.clone()));
        for mirrors in &mut self.processes {
            tell(mirrors, kind, name, None);
        }
    }

    pub(super) fn delete_namespace(&mut self, namespace: &str) {
        self.delete(NAMESPACE, &Name::new("", namespace));
    }

    pub(super) fn put_namespace(&mut self, namespace: &str, metadata: Value) {
        let object = json!({ "metadata": metadata });
        self.put(NAMESPACE, &Name::new("", namespace), object);
    }

    pub(super) fn get(&self, kind: &'static str, of: &str) -> Option<&Value> {
        self.objects.get(&(kind, name(of)))
    }

    /// Creates or changes a Service of the first process' target.
    pub(super) fn export(&mut self, manifest: &str) {
        self.export_to(0, manifest);
    }

    pub(super) fn export_to(&mut self, process: usize, manifest: &str) {
        let service: Service = read(manifest);
        let meta = &service.metadata;
        let name = Name::new(
            meta.namespace.as_deref().unwrap(),
            meta.name.as_deref().unwrap(),
        );
        let service = RemoteService::new(service);
        self.remote(process, |remote| remote.set_service(&name, Some(service)));
    }

    pub(super) fn unexport(&mut self, process: usize, of: &str) {
        self.remote(process, |remote| remote.set_service(&name(of), None));
    }

    /// Sets the EndpointSlice of a Service of the first process' target.
    pub(super) fn endpoints(&mut self, of: &str, endpoints: &str) {
        let slice = format!(
            "
metadata: {{name: {of}-1, namespace: shop, labels: {{kubernetes.io/service-name: {of}}}}}
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}]
endpoints: {endpoints}
"
        );
        let has_hosts = self.processes[0].settings.mirrors_headless;
        let slice = RemoteSlice::new(read(&slice), has_hosts);
        let name = name(&format!("{of}-1"));
        self.remote(0, |remote| remote.set_slice(&name, slice));
    }

    fn remote(&mut self, process: usize, change: impl FnOnce(&mut RemoteObjects) -> bool) {
        let mirrors = &mut self.processes[process];
        change(mirrors.remote.as_mut().unwrap());
        mirrors.forget_plan();
    }

    pub(super) fn change(&mut self, change: impl FnOnce(&mut Mirrors)) {
        change(&mut self.processes[0]);
        self.processes[0].forget_plan();
    }

    /// Lets all processes write until nothing differs, and returns the writes without
    /// statuses.
    pub(super) fn settle(&mut self) -> Vec<String> {
        let mut writes = Vec::new();
        for _round in 0..20 {
            let mut is_settled = true;
            // Later than the interval of statuses.
            self.now += SignedDuration::from_secs(10);
            for process in 0..self.processes.len() {
                let keys: Vec<Key> = self.processes[process].keys().cloned().collect();
                for key in keys {
                    let Some(write) = self.processes[process].write(&key, self.now) else {
                        continue;
                    };
                    let action = action(&write.action);
                    let is_refused = self.refused.contains(&key.to_string());
                    if is_refused {
                        let refused = Answer::Refused("quota exceeded");
                        self.processes[process].answered(&key, refused);
                        continue;
                    }
                    is_settled = false;
                    if !matches!(key, Key::Status(_)) {
                        writes.push(format!("{action} {key}"));
                    }
                    self.send(write);
                    self.processes[process].answered(&key, Answer::Written);
                }
            }
            if is_settled {
                return writes;
            }
        }
        panic!("the processes write without end: {writes:?}");
    }

    fn send(&mut self, write: Write) {
        let kind = match write.resource.kind.as_str() {
            "Service" => SERVICE,
            "Endpoints" => ENDPOINTS,
            "Namespace" => NAMESPACE,
            _ => LINK,
        };
        let key = (kind, write.name.clone());
        let current = self.objects.get(&key).cloned();
        let expect = |version: &str| {
            let found = current
                .as_ref()
                .map(|it| it["metadata"]["resourceVersion"].clone());
            assert_eq!(found, Some(version.into()), "{key:?}");
        };
        match write.action {
            Action::Create(object) => {
                assert!(current.is_none(), "{key:?} exists");
                self.put(kind, &key.1, object);
            }
            Action::Replace(object) => {
                expect(object["metadata"]["resourceVersion"].as_str().unwrap());
                self.put(kind, &key.1, object);
            }
            Action::Set {
                resource_version,
                fields,
            } => {
                expect(&resource_version);
                let mut object = current.unwrap();
                for Field { path, change } in fields {
                    let (last, parents) = path.split_last().unwrap();
                    let mut at = &mut object;
                    for part in parents {
                        at = &mut at[*part];
                    }
                    match change {
                        Change::Set(value) => at[*last] = value,
                        Change::Remove => drop(at.as_object_mut().unwrap().remove(*last)),
                        // No client is recorded here, so nothing is kept of a map.
                        Change::Merge { keys, .. } => at[*last] = Value::Object(keys),
                    }
                }
                self.put(kind, &key.1, object);
            }
            Action::Delete { resource_version } => {
                expect(&resource_version.unwrap());
                self.delete(kind, &key.1);
            }
            Action::PatchStatus(patch) => {
                expect(patch["metadata"]["resourceVersion"].as_str().unwrap());
                let mut object = current.unwrap();
                object["status"] = patch["status"].clone();
                self.put(kind, &key.1, object);
            }
        }
    }

    pub(super) fn status(&self) -> LinkStatus {
        let link = &self.objects[&(LINK, Name::new("links", "east"))];
        serde_json::from_value(link["status"].clone()).unwrap_or_default()
    }

    /// Returns the conditions of the status: Service, reason, and message or mirror.
    pub(super) fn reported(&self) -> Vec<String> {
        let status = self.status();
        let lists = [status.mirror_services, status.federated_services];
        let entries = lists.into_iter().flatten();
        let lines = entries.map(|entry| {
            let condition = &entry.conditions[0];
            let local = condition.local_ref.as_ref();
            let what = local.map_or(&condition.message, |local| &local.name);
            let of = &entry.remote_ref;
            format!("{}/{} {}: {what}", of.namespace, of.name, condition.reason)
        });
        lines.collect()
    }
}

fn action(action: &Action) -> &'static str {
    match action {
        Action::Create(_) => "create",
        Action::Replace(_) => "replace",
        Action::Set { .. } => "set",
        Action::Delete { .. } => "delete",
        Action::PatchStatus(_) => "patch",
    }
}

fn tell(mirrors: &mut Mirrors, kind: &str, name: &Name, object: Option<&Value>) {
    fn step<K: DeserializeOwned>(name: &Name, object: Option<&Value>) -> Step<K> {
        match object {
            Some(object) => {
                let object = serde_json::from_value(object.clone());
                Step::Set(name.clone(), object.expect("an object"))
            }
            None => Step::Delete(name.clone()),
        }
    }
    match kind {
        SERVICE => set_service(mirrors, step::<Service>(name, object)),
        ENDPOINTS => set_endpoints(mirrors, step::<Endpoints>(name, object)),
        NAMESPACE => {
            let step = step::<PartialObjectMeta<Namespace>>(name, object);
            set_namespace(mirrors, step)
        }
        _ => set_link(mirrors, step::<RawLink>(name, object)),
    };
}
