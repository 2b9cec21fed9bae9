//! Publishes objects for the controllers, and nftables rules and DNS records for the machine, when
//! they change.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Namespace, Pod, Service, ServiceAccount};
use mesh_k8s::inject::{self, Values};
use mesh_k8s::pod as accessors;
use serde::{Deserialize, Serialize};

use super::dns::DnsServer;
use crate::command::{self, CommandError};
use crate::file::FileError;
use crate::manifest::{Manifests, ObjectKey, Problem};
use crate::network::Network;
use crate::node_paths::NodePaths;
use crate::objects::{ObjectDirectory, ObjectError, ObjectSet};
use crate::service::endpoints::{self, RunningPod};
use crate::service::{self, AddressAllocator, dns, nft};
use crate::workload::Workloads;
use crate::{digest, token};

pub(super) struct Publisher {
    network: Network,
    table: String,
    directory: ObjectDirectory,
    dns: DnsServer,
    addresses: AddressAllocator,
    services: BTreeMap<ObjectKey, Service>,
    /// The nftables script that was applied last.
    applied_script: String,
}

/// A Service in the output of `meshctl local status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSummary {
    pub namespace: String,
    pub name: String,
    /// `["None"]` for a headless Service.
    pub addresses: Vec<String>,
    pub ports: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error(transparent)]
    Objects(#[from] ObjectError),
    #[error("apply the nftables rules of the Services")]
    Rules(#[source] CommandError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// The pods with their status, and whether each is terminating.
pub(super) type Pods = BTreeMap<ObjectKey, (Pod, bool)>;

impl Publisher {
    pub(super) fn new(
        paths: &NodePaths,
        network: &Network,
        dns: DnsServer,
    ) -> Result<Self, PublishError> {
        Ok(Self {
            network: network.clone(),
            table: paths.nft_table(),
            directory: ObjectDirectory::create(&paths.objects())?,
            dns,
            addresses: AddressAllocator::default(),
            services: BTreeMap::new(),
            applied_script: String::new(),
        })
    }

    /// Computes objects, rules and records and applies the changes. Returns the problems of
    /// Services.
    pub(super) async fn publish(
        &mut self,
        node: &str,
        manifests: &Manifests,
        workloads: &Workloads,
        pods: &Pods,
        values: Option<&Values>,
    ) -> Result<Vec<Problem>, PublishError> {
        let problems = self.compute_services(manifests, values);
        let running: BTreeMap<ObjectKey, RunningPod<'_>> = pods
            .iter()
            .map(|(key, (pod, terminating))| {
                let terminating = *terminating;
                (key.clone(), RunningPod { pod, terminating })
            })
            .collect();
        let mut slices: Vec<_> = self
            .services
            .iter()
            .filter(|(_, service)| has_selector(service))
            .flat_map(|(key, service)| {
                endpoints::slices(&self.network, node, key, service, &running)
            })
            .collect();
        let mut objects = ObjectSet::default();
        for slice in &slices {
            let name = slice.metadata.name.clone().unwrap_or_default();
            let namespace = slice.metadata.namespace.clone().unwrap_or_default();
            objects.add("EndpointSlice", &ObjectKey::new(namespace, name), slice)?;
        }
        // The controllers read the slices of the directory themselves; rules and records need them,
        // too.
        slices.extend(manifests.endpoint_slices.values().cloned());
        for (key, (pod, _)) in pods {
            objects.add("Pod", key, pod)?;
        }
        // The controllers read the Deployments of the directory themselves, but not the control
        // plane's.
        for (key, deployment) in &manifests.deployments {
            objects.add("Deployment", key, deployment)?;
        }
        for (key, set) in &workloads.replica_sets {
            objects.add("ReplicaSet", key, set)?;
        }
        for (key, service) in &self.services {
            objects.add("Service", key, service)?;
        }
        for (key, account) in service_accounts(manifests, pods) {
            objects.add("ServiceAccount", &key, &account)?;
        }
        for (name, namespace) in namespaces(manifests, pods) {
            objects.add("Namespace", &ObjectKey::new("", name), &namespace)?;
        }
        self.directory.update(objects)?;
        let ips: BTreeSet<_> = pods
            .values()
            .filter(|(pod, _)| !accessors::is_host_network(pod))
            .flat_map(|(pod, _)| accessors::ips(pod))
            .collect();
        let ips: Vec<_> = ips.into_iter().collect();
        let script = nft::script(&self.table, &self.network, &self.services, &slices, &ips);
        if script != self.applied_script {
            command::run("nft", &["-f", "-"], script.as_bytes())
                .await
                .map_err(PublishError::Rules)?;
            self.applied_script = script;
        }
        self.dns
            .update(dns::records(&self.services, &slices))
            .await?;
        Ok(problems)
    }

    pub(super) fn services(&self) -> Vec<ServiceSummary> {
        let summaries = self.services.iter().map(|(key, service)| {
            let spec = service.spec.as_ref();
            let ports = spec.and_then(|spec| spec.ports.as_ref());
            ServiceSummary {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                addresses: spec
                    .and_then(|spec| spec.cluster_ips.clone())
                    .unwrap_or_default(),
                ports: ports
                    .into_iter()
                    .flatten()
                    .map(|port| {
                        let protocol = port.protocol.as_deref().unwrap_or("TCP");
                        format!("{}/{protocol}", port.port)
                    })
                    .collect(),
            }
        });
        summaries.collect()
    }

    /// Allocates the addresses of Services. Services whose request cannot be satisfied are skipped
    /// and reported.
    fn compute_services(&mut self, manifests: &Manifests, values: Option<&Values>) -> Vec<Problem> {
        let mut problems = Vec::new();
        let keys: BTreeSet<&ObjectKey> = manifests.services.keys().collect();
        self.addresses.retain(&keys);
        let mut services = BTreeMap::new();
        for (key, service) in &manifests.services {
            let mut service = match values {
                Some(values) => with_webhook_annotations(manifests, values, service),
                None => service.clone(),
            };
            match self.addresses.allocate(&self.network, key, &service) {
                Ok(addresses) => {
                    service::fill_in(&mut service, &addresses);
                    let uid = digest::uuid(&format!("Service {key}"));
                    service.metadata.uid = Some(uid);
                    services.insert(key.clone(), service);
                }
                Err(error) => {
                    problems.push(manifests.problem("Service", key, error.to_string()));
                }
            }
        }
        self.services = services;
        problems
    }
}

/// Returns the Service with the annotations that the webhook adds on a cluster.
fn with_webhook_annotations(manifests: &Manifests, values: &Values, service: &Service) -> Service {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let meta = manifests.namespace_meta(namespace);
    let patch = inject::patch_service(values, &meta, service);
    let patched = || {
        let mut document = serde_json::to_value(service).ok()?;
        patch.apply(&mut document).ok()?;
        serde_json::from_value(document).ok()
    };
    // The patch adds one annotation and creates the map if necessary, so that it does not fail.
    patched().unwrap_or_else(|| service.clone())
}

fn has_selector(service: &Service) -> bool {
    let selector = service
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| !selector.is_empty())
}

/// Returns the ServiceAccounts of the manifests and those that pods use.
fn service_accounts(manifests: &Manifests, pods: &Pods) -> BTreeMap<ObjectKey, ServiceAccount> {
    let mut accounts = manifests.service_accounts.clone();
    for (key, (pod, _)) in pods {
        let key = ObjectKey::new(&key.namespace, accessors::service_account(pod));
        accounts.entry(key).or_default();
    }
    for (key, account) in &mut accounts {
        account.metadata.name = Some(key.name.clone());
        account.metadata.namespace = Some(key.namespace.clone());
        account.metadata.uid = Some(token::account_uid(&key.namespace, &key.name));
    }
    accounts
}

/// Returns the namespaces of the manifests and those that objects are in.
fn namespaces(manifests: &Manifests, pods: &Pods) -> BTreeMap<String, Namespace> {
    let mut namespaces = manifests.namespaces.clone();
    let used = pods.keys().chain(manifests.services.keys());
    for key in used {
        namespaces.entry(key.namespace.clone()).or_default();
    }
    for (name, namespace) in &mut namespaces {
        let meta = &mut namespace.metadata;
        meta.name = Some(name.clone());
        // The API server adds this label, which namespace selectors use.
        let labels = meta.labels.get_or_insert_default();
        labels.insert("kubernetes.io/metadata.name".into(), name.clone());
    }
    namespaces
}
