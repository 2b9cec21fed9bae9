//! What the facts say about the cluster of a rotation.

use std::collections::HashMap;

use mesh_core::anchor_rotation::{
    Anchors, Cluster, Delivery, InUse, Proxy, Replica, Root, Workload,
};
use mesh_core::annotation::CONTROL_PLANE_COMPONENT;
use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod;
use mesh_k8s::trust::{ISSUER_LABEL, ISSUER_METRIC, fingerprint};
use serde_json::Value;

use super::stored::Stored;
use super::{Direction, Kind, Roots, Subject};
use crate::certificate::read_pem;
use crate::facts::containers::can_respond;
use crate::facts::names::COMPONENTS;
use crate::facts::restarts::{restart_command, workload};
use crate::facts::trust::{Sent, bundle, environment, mounts_copy, number, same_anchors};
use crate::facts::{self, Controller, Fact, Facts, Mode, fact_ref, full_name, proxy_container};
use crate::resource::{MeshPod, Scope};

/// The name of the identity service among the controllers.
const IDENTITY: &str = COMPONENTS[0];

/// Returns whether the facts are about a part of the pods.
pub(super) fn is_partial(facts: &Facts) -> bool {
    let all = matches!(
        facts.mode,
        Mode::Installed { proxies: true } | Mode::Rotation
    );
    !all || facts.scope != Scope::All
}

/// Returns the state of the cluster.
pub(super) fn cluster(
    facts: &Facts,
    roots: &Roots,
    stored: Option<&Stored>,
) -> Fact<Cluster<Subject>> {
    let values = facts.values()?;
    let text = bundle(facts)?;
    let anchors = roots.of_bundle(fact_ref(&facts.trust.anchors)?);
    let issuer = fact_ref(&facts.trust.issuer)?;
    let sent = Sent::read(facts).filter(|sent| same_anchors(&sent.anchors, &text));
    let delivery = match (values.identity.publish_trust_roots, &sent) {
        (false, _) => Delivery::Off,
        (true, None) => Delivery::NotSent,
        (true, Some(_)) => Delivery::Sent,
    };
    let number = sent.as_ref().map(|sent| sent.number);
    let proxies = facts.proxies.iter();
    let observer = Observer {
        facts,
        roots,
        anchors,
        proxies: proxies
            .map(|proxy| ((proxy.namespace.as_str(), proxy.pod.as_str()), proxy))
            .collect(),
        number: number.filter(|_| delivery == Delivery::Sent),
        trust_domain: values.trust_domain(),
    };
    let has_old_keys = stored.is_some_and(Stored::has_old_keys);
    Ok(Cluster {
        anchors,
        // A number is at least the time of the change.
        anchors_age: number.map_or(0, |number| facts.clock().saturating_sub(number)),
        delivery,
        issuer: roots.of_issuer(issuer),
        has_cross_certificate: roots.has_cross_certificate(issuer),
        // The last step of an aborted rotation deletes them.
        has_old_keys: has_old_keys && roots.direction == Direction::Forward,
        replicas: observer.replicas(issuer)?,
        workloads: observer.workloads()?,
    })
}

struct Observer<'a> {
    facts: &'a Facts,
    roots: &'a Roots,
    /// The anchors of the cluster.
    anchors: Anchors,
    /// The proxies that were queried, by namespace and pod.
    proxies: HashMap<(&'a str, &'a str), &'a facts::Proxy>,
    /// The number of these anchors, if the identity service sends them.
    number: Option<u64>,
    trust_domain: &'a str,
}

impl Observer<'_> {
    fn replicas(&self, issuer: &[Vec<u8>]) -> Fact<Vec<Replica<Subject>>> {
        let pods = fact_ref(&self.facts.objects.pods)?.iter();
        let identity = pods.filter(|pod| {
            pod.namespace().as_deref() == Some(&self.facts.control_namespace)
                && pod::label(pod, CONTROL_PLANE_COMPONENT) == Some(IDENTITY)
                && !pod::is_terminal(pod)
        });
        let replicas = identity.filter_map(|pod| {
            let name = full_name(pod);
            let mut controllers = self.facts.controllers.iter();
            let found = controllers.find(|it| it.name == IDENTITY && it.pod == name);
            // One that is being deleted issues until it has ended.
            if found.is_none() && pod.metadata.deletion_timestamp.is_some() {
                return None;
            }
            Some(Replica {
                name: subject(pod, Kind::Replica),
                issues: match found {
                    Some(replica) => self.issues(replica, issuer),
                    None => Err("it does not run".to_owned()),
                },
            })
        });
        Ok(replicas.collect())
    }

    /// Returns the root of the issuer that a replica uses, and for how long.
    fn issues(&self, replica: &Controller, issuer: &[Vec<u8>]) -> Result<(Root, u64), String> {
        let metrics = fact_ref(&replica.metrics)?;
        let sample = metrics.iter().find(|sample| sample.name == ISSUER_METRIC);
        let sample = sample.ok_or(
            "it does not report its issuer: upgrade the control plane to the version of meshctl",
        )?;
        let current = issuer
            .first()
            .map(|der| fingerprint(der))
            .unwrap_or_default();
        let root = if sample.label(ISSUER_LABEL) == current {
            self.roots.of_issuer(issuer)
        } else {
            Root::Other
        };
        Ok((root, self.facts.clock().saturating_sub(sample.value as u64)))
    }

    fn workloads(&self) -> Fact<Vec<Workload<Subject>>> {
        let pods = fact_ref(&self.facts.objects.pods)?.iter();
        let pods = pods.filter(|pod| !pod::is_terminal(pod) && self.is_inspected(pod));
        let mut all: Vec<_> = pods.filter_map(|pod| self.workload(pod)).collect();
        let machines = self.facts.objects.policies.iter().flatten();
        let machines = machines.filter(|it| it["kind"] == "ExternalWorkload");
        if !is_partial(self.facts) {
            all.extend(machines.map(machine));
        }
        Ok(all)
    }

    /// Returns whether the proxy of a pod was queried if it runs.
    fn is_inspected(&self, pod: &Pod) -> bool {
        let namespace = pod.namespace().unwrap_or_default();
        let is_own = namespace == self.facts.control_namespace;
        let all = matches!(
            self.facts.mode,
            Mode::Installed { proxies: true } | Mode::Rotation
        );
        is_own || all && self.facts.scope.contains(&namespace)
    }

    /// Returns a pod with a proxy; `None` without one, or if it ends unobserved.
    fn workload(&self, pod: &Pod) -> Option<Workload<Subject>> {
        proxy_container(pod)?;
        let record = MeshPod::new(pod, &[]);
        record.admin_port?;
        let proxy = self.proxy(pod, &record);
        // A pod that is being deleted, on a node that may be gone, keeps nothing waiting.
        if pod.metadata.deletion_timestamp.is_some() && !matches!(proxy, Proxy::Running { .. }) {
            return None;
        }
        Some(Workload {
            name: subject(pod, Kind::Pod),
            starts_with: match environment(pod) {
                Some(text) => {
                    let own = read_pem(text.as_bytes(), "the environment").unwrap_or_default();
                    self.roots.of_bundle(&own)
                }
                // A reference to the ConfigMap, which the kubelet resolves at each start.
                None => self.anchors,
            },
            proxy,
        })
    }

    fn proxy(&self, pod: &Pod, record: &MeshPod) -> Proxy {
        let name = (record.namespace.as_str(), record.name.as_str());
        let Some(found) = self.proxies.get(&name) else {
            let runs = record.ip.is_some() && can_respond(pod, pod::PROXY_CONTAINER);
            return if self.facts.is_on_unready_node(pod) {
                Proxy::Unknown("its node is not Ready".to_owned())
            } else if runs {
                Proxy::Unknown("it was not queried".to_owned())
            } else {
                Proxy::NotRunning
            };
        };
        let metrics = match &found.metrics {
            Ok(metrics) => metrics,
            Err(reason) => return Proxy::Unknown(reason.clone()),
        };
        let anchors = match number(metrics) {
            _ if mounts_copy(self.facts, pod) => InUse::Kept,
            None => InUse::Kept,
            Some(number) if Some(number) == self.number => InUse::Sent,
            Some(_) => InUse::Late,
        };
        let certificate = match &found.chain {
            Some(Ok(chain)) => record
                .identity(self.trust_domain)
                .map(|name| self.roots.of_proxy(chain, &name, self.facts.clock()))
                .map_err(|error| error.to_string()),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("its certificate was not queried".to_owned()),
        };
        Proxy::Running {
            anchors,
            certificate,
        }
    }
}

fn subject(pod: &Pod, kind: Kind) -> Subject {
    Subject {
        kind,
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        workload: workload(pod),
        restart: restart_command(pod),
    }
}

fn machine(object: &Value) -> Workload<Subject> {
    let text = |field: &str| {
        let text = object["metadata"][field].as_str();
        text.unwrap_or_default().to_owned()
    };
    Workload {
        name: Subject {
            kind: Kind::Machine,
            namespace: text("namespace"),
            name: text("name"),
            workload: None,
            restart: "restart its proxy with the new anchors".to_owned(),
        },
        starts_with: Anchors::default(),
        proxy: Proxy::Unknown("the proxy of a machine cannot be queried from here".to_owned()),
    }
}
