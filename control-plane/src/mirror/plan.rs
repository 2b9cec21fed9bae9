//! Decides which objects should exist in this cluster, and the outcome for each selected Service: a
//! pure function of the objects of both clusters.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use mesh_core::identity::is_dns_label;
use mesh_k8s::crd::link::MISSING_NAMESPACE;
use mesh_objects::model::Name;

use super::federated;
use super::limits::{MAX_HOSTS, MAX_SERVICE_BYTES};
use super::objects::{Mirrors, RemoteObjects};
use super::planned::{
    ERROR, Entry, FEDERATED, Form, HostGroup, INVALID_SERVICE, Key, Outcome, Plan, Problem, Source,
};
use super::records::LocalService;
use super::target::{Mode, Target, named};

/// The endpoints of a Service in the target cluster.
#[derive(Debug, Default)]
struct Endpoints {
    has_any: bool,
    ready: bool,
    groups: Vec<HostGroup>,
}

struct Planner<'a> {
    mirrors: &'a Mirrors,
    target: &'a Target,
    remote: &'a RemoteObjects,
    endpoints: HashMap<Name, Endpoints>,
    plan: Plan,
}

impl Mirrors {
    /// Returns what should exist, which is nothing until everything was read.
    pub(super) fn plan(&self) -> &Plan {
        self.plan.get_or_init(|| Arc::new(plan(self)))
    }
}

/// Returns what should exist; nothing while objects are missing that decide about it.
fn plan(mirrors: &Mirrors) -> Plan {
    let Mirrors { target, remote, .. } = mirrors;
    let (Some(target), Some(remote)) = (target, remote) else {
        return Plan::default();
    };
    // The Link may have named another cluster before, whose objects these are.
    if !mirrors.is_complete() || remote.cluster != target.cluster || !is_in_effect(mirrors, target)
    {
        return Plan::default();
    }
    let mut planner = Planner {
        mirrors,
        target,
        remote,
        endpoints: endpoints(remote),
        plan: Plan::default(),
    };
    planner.add_mirrors();
    planner.add_members();
    planner.add_hosts();
    if let Some(cluster) = &target.cluster {
        planner.add_probe();
        planner.remove_orphans(cluster);
    }
    planner.remove_members();
    if let Some((link, _)) = mirrors.own_link() {
        let key = Key::Status(link.clone());
        planner.plan.entries.insert(key, Entry::Status);
    }
    planner.plan
}

/// Returns whether a Link is in effect: several Links of one cluster would write the same mirrors,
/// so only the oldest is.
fn is_in_effect(mirrors: &Mirrors, target: &Target) -> bool {
    let Some(cluster) = &target.cluster else {
        return true;
    };
    let own = mirrors.own_link().map(|(name, _)| name);
    own.is_some() && mirrors.link_of(cluster) == own
}

fn endpoints(remote: &RemoteObjects) -> HashMap<Name, Endpoints> {
    let mut all: HashMap<Name, Endpoints> = HashMap::new();
    for (name, slice) in &remote.slices {
        let service = Name {
            namespace: name.namespace.clone(),
            name: slice.service.clone(),
        };
        let endpoints = all.entry(service).or_default();
        endpoints.has_any |= !slice.is_empty;
        endpoints.ready |= slice.ready;
        if slice.hosts.is_empty() {
            continue;
        }
        let mut groups = endpoints.groups.iter_mut();
        let group = groups.find(|group| group.ports == slice.ports);
        let group = match group {
            Some(group) => group,
            None => {
                endpoints.groups.push(HostGroup {
                    ports: slice.ports.clone(),
                    ..HostGroup::default()
                });
                let last = endpoints.groups.len() - 1;
                &mut endpoints.groups[last]
            }
        };
        for (host, ready) in &slice.hosts {
            *group.hosts.entry(host.clone()).or_default() |= ready;
        }
    }
    all
}

impl Planner<'_> {
    fn sources(&self) -> impl Iterator<Item = Source> + use<'_> {
        self.remote.services.iter().map(|(name, service)| Source {
            name: name.clone(),
            service: service.clone(),
        })
    }

    fn add_mirrors(&mut self) {
        let sources: Vec<Source> = self.sources().collect();
        for source in sources {
            let Some(mode) = self.target.mode(&source.service.labels.to_map()) else {
                continue;
            };
            let local = self.target.mirror(&source.name);
            let name = source.name.clone();
            let outcome = self.mirror(source, mode, &local).unwrap_or_else(|problem| {
                for key in [Key::Service(local.clone()), Key::Endpoints(local.clone())] {
                    self.plan.entries.entry(key).or_insert(Entry::Kept);
                }
                Outcome::Failed(problem)
            });
            self.plan.mirrored.insert(name, outcome);
        }
    }

    /// Plans the mirror of a Service.
    fn mirror(&mut self, source: Source, mode: Mode, local: &Name) -> Result<Outcome, Problem> {
        check(&source, local)?;
        if !self.has_namespace(&source)? {
            return Ok(Outcome::planned(local));
        }
        let cluster = self.target.cluster.as_deref();
        let before = self.before(local, cluster)?;
        let (service, endpoints) = (Key::Service(local.clone()), Key::Endpoints(local.clone()));
        let form = match mode {
            Mode::Discovery => Some(Form::Discovery),
            Mode::Gateway => {
                self.check_gateway()?;
                self.form(&source, before)
            }
        };
        let Some(form) = form else {
            return Ok(Outcome::planned(local));
        };
        let of_service = self.endpoints.get(&source.name);
        let entry = match form {
            Form::Discovery => Entry::Absent,
            Form::Gateway => {
                Entry::MirrorEndpoints(source.clone(), of_service.is_some_and(|it| it.ready))
            }
            Form::Headless => {
                let groups = of_service.map_or_else(Vec::new, |it| bounded(&it.groups));
                Entry::HeadlessEndpoints(source.clone(), groups)
            }
        };
        self.plan.entries.insert(endpoints, entry);
        let entry = Entry::Mirror(source, form);
        self.plan.entries.insert(service, entry);
        Ok(Outcome::Planned {
            local: local.clone(),
            has_endpoints: form != Form::Discovery,
            note: "".into(),
        })
    }

    /// Returns the kind of a mirror behind the gateway: headless if an endpoint has a host name, as
    /// in Linkerd. A mirror stays headless while its Service has no endpoints. Without a mirror and
    /// endpoints it is not known yet.
    fn form(&self, source: &Source, was_headless: Option<bool>) -> Option<Form> {
        if !self.mirrors.settings.mirrors_headless || !source.service.headless {
            return Some(Form::Gateway);
        }
        let endpoints = self.endpoints.get(&source.name);
        if endpoints.is_some_and(|it| !it.groups.is_empty()) || was_headless == Some(true) {
            return Some(Form::Headless);
        }
        let is_known = was_headless.is_some() || endpoints.is_some_and(|it| it.has_any);
        is_known.then_some(Form::Gateway)
    }

    fn add_members(&mut self) {
        let sources: Vec<Source> = self.sources().collect();
        for source in sources {
            if !self.target.is_member(&source.service.labels.to_map()) {
                continue;
            }
            let local = named(&source.name, FEDERATED);
            let name = source.name.clone();
            let outcome = self.member(source, &local).unwrap_or_else(|problem| {
                let key = Key::Service(local.clone());
                // A headless Service leaves.
                if problem.reason != INVALID_SERVICE {
                    self.plan.entries.entry(key).or_insert(Entry::Kept);
                }
                Outcome::Failed(problem)
            });
            self.plan.federated.insert(name, outcome);
        }
    }

    /// Plans a member of a federated Service.
    fn member(&mut self, source: Source, local: &Name) -> Result<Outcome, Problem> {
        if source.service.headless {
            let message = "a headless Service cannot be a member of a federated Service";
            return Err(Problem::new(INVALID_SERVICE, message));
        }
        check(&source, local)?;
        if !self.has_namespace(&source)? {
            return Ok(Outcome::planned(local));
        }
        self.before(local, None)?;
        let entry = Entry::Member(source);
        self.plan.entries.insert(Key::Service(local.clone()), entry);
        Ok(Outcome::planned(local))
    }

    /// Plans the mirrors of hosts, after the mirrors of all Services, which have precedence.
    fn add_hosts(&mut self) {
        let entries = self.plan.entries.values();
        let headless = entries.filter_map(|entry| match entry {
            Entry::HeadlessEndpoints(source, groups) => Some((source.clone(), groups.clone())),
            _ => None,
        });
        let headless: Vec<(Source, Vec<HostGroup>)> = headless.collect();
        for (source, groups) in headless {
            let mut hosts: BTreeMap<Arc<str>, bool> = BTreeMap::new();
            for (host, ready) in groups.into_iter().flat_map(|group| group.hosts) {
                *hosts.entry(host).or_default() |= ready;
            }
            let left_out = self.endpoints.get(&source.name).map_or(0, |it| {
                let all = it.groups.iter().flat_map(|group| group.hosts.keys());
                let all: BTreeSet<_> = all.collect();
                all.len().saturating_sub(hosts.len())
            });
            let mut problems = Vec::new();
            if left_out > 0 {
                problems.push(format!(
                    "{left_out} hosts beyond {MAX_HOSTS} have no mirrors"
                ));
            }
            for (host, ready) in hosts {
                if let Err(problem) = self.add_host(&source, &host, ready) {
                    problems.push(format!("the host {host} has no mirror: {problem}"));
                }
            }
            if let Some(Outcome::Planned { note, .. }) = self.plan.mirrored.get_mut(&source.name)
                && !problems.is_empty()
            {
                problems.truncate(MAX_NOTED);
                *note = problems.join("; ").into();
            }
        }
    }

    fn add_host(&mut self, source: &Source, host: &Arc<str>, ready: bool) -> Result<(), String> {
        let local = self.target.mirror(&Name {
            namespace: source.name.namespace.clone(),
            name: host.clone(),
        });
        if !is_dns_label(&local.name) {
            return Err(format!("{} is not a name of a Service", local.name));
        }
        let cluster = self.target.cluster.as_deref();
        self.before(&local, cluster)
            .map_err(|problem| problem.message)?;
        let host = host.clone();
        let entry = Entry::Host(source.clone(), host.clone());
        self.plan.entries.insert(Key::Service(local.clone()), entry);
        let entry = Entry::HostEndpoints(source.clone(), host, ready);
        self.plan.entries.insert(Key::Endpoints(local), entry);
        Ok(())
    }

    /// Returns whether a mirror has its namespace, which is created otherwise.
    fn has_namespace(&mut self, source: &Source) -> Result<bool, Problem> {
        let namespace = &source.name.namespace;
        if self.mirrors.namespaces.objects.contains(namespace) {
            return Ok(true);
        }
        if !self.mirrors.settings.creates_namespaces {
            let message = format!("there is no namespace {namespace}");
            return Err(Problem::new(MISSING_NAMESPACE, message));
        }
        let key = Key::Namespace(namespace.clone());
        self.plan.entries.insert(key, Entry::Namespace);
        Ok(false)
    }

    /// Checks that a name is free, or a mirror of the cluster has it. Returns whether that is
    /// headless.
    fn before(&self, local: &Name, cluster: Option<&str>) -> Result<Option<bool>, Problem> {
        if self.plan.entries.contains_key(&Key::Service(local.clone())) {
            let message = format!("another mirror has the name {}", local.name);
            return Err(Problem::new(ERROR, message));
        }
        let Some(service) = self.mirrors.services.objects.get(local) else {
            return Ok(None);
        };
        let mirror = service.mirror_of(cluster).ok_or_else(|| {
            let message = format!(
                "there is a Service {} that is not its mirror, and is left alone",
                local.name
            );
            Problem::new(ERROR, message)
        })?;
        Ok(Some(mirror.headless))
    }

    fn check_gateway(&self) -> Result<(), Problem> {
        let message = match &self.target.gateway {
            None => {
                "the Link has no gateway; set spec.gatewayAddress, or export the Service for remote discovery"
            }
            Some(_) if self.mirrors.gateway.addresses.is_none() => {
                "no address of the gateway could be resolved"
            }
            Some(_) => return Ok(()),
        };
        Err(Problem::new(ERROR, message))
    }

    fn add_probe(&mut self) {
        let probed = self
            .target
            .gateway
            .as_ref()
            .and_then(|gateway| gateway.probe.as_ref());
        let service = self.mirrors.settings.probe_service.as_ref();
        if let Some(service) = service
            && probed.is_some()
            && self.mirrors.gateway.addresses.is_some()
        {
            let namespace = self.mirrors.settings.namespace.clone();
            let name = service.clone();
            let key = Key::Endpoints(Name { namespace, name });
            self.plan.entries.insert(key, Entry::ProbeEndpoints);
        }
    }

    /// Removes mirrors of the cluster that are not planned.
    fn remove_orphans(&mut self, cluster: &str) {
        let entries = &mut self.plan.entries;
        let kept = |entries: &BTreeMap<Key, Entry>, name: Name| {
            matches!(entries.get(&Key::Service(name)), Some(Entry::Kept))
        };
        for (name, service) in &self.mirrors.services.objects {
            let Some(mirror) = service.mirror_of(Some(cluster)) else {
                continue;
            };
            let headless = mirror.headless_mirror.as_ref().map(|headless| Name {
                namespace: name.namespace.clone(),
                name: headless.clone(),
            });
            let entry = match headless {
                Some(headless) if kept(entries, headless.clone()) => Entry::Kept,
                _ => Entry::Absent,
            };
            let key = Key::Service(name.clone());
            entries.entry(key).or_insert(entry);
        }
        for (name, endpoints) in &self.mirrors.endpoints.objects {
            if !endpoints.of_mirror || *endpoints.cluster != *cluster {
                continue;
            }
            let entry = if kept(entries, name.clone()) {
                Entry::Kept
            } else {
                Entry::Absent
            };
            entries.entry(Key::Endpoints(name.clone())).or_insert(entry);
        }
    }

    /// Removes the entries of Services that are no longer members.
    fn remove_members(&mut self) {
        for (name, service) in &self.mirrors.services.objects {
            let LocalService::Mirror(mirror) = &**service else {
                continue;
            };
            let suffix = format!("-{FEDERATED}");
            let Some(base) = name.name.strip_suffix(&suffix) else {
                continue;
            };
            let is_member = match &self.target.cluster {
                None => {
                    let list = mirror.local_members.as_deref().unwrap_or_default();
                    federated::has(list, base)
                }
                Some(cluster) => {
                    let list = mirror.remote_members.as_deref().unwrap_or_default();
                    federated::has(list, &format!("{base}@{cluster}"))
                }
            };
            if mirror.cluster.is_none() && is_member {
                let key = Key::Service(name.clone());
                let entry = Entry::NoMember(base.into());
                self.plan.entries.entry(key).or_insert(entry);
            }
        }
    }
}

/// The number of problems of hosts that a status names.
const MAX_NOTED: usize = 5;

/// Returns the first hosts in the order of their names.
fn bounded(groups: &[HostGroup]) -> Vec<HostGroup> {
    let hosts = groups.iter().flat_map(|group| group.hosts.keys());
    let mut hosts: Vec<&Arc<str>> = hosts.collect();
    hosts.sort_unstable();
    hosts.dedup();
    let Some(first_out) = hosts.get(MAX_HOSTS).copied() else {
        return groups.to_vec();
    };
    let groups = groups.iter().map(|group| HostGroup {
        ports: group.ports.clone(),
        hosts: group
            .hosts
            .range(..first_out.clone())
            .map(|(host, ready)| (host.clone(), *ready))
            .collect(),
    });
    groups.collect()
}

/// Checks the fields of a Service that its mirror needs.
fn check(source: &Source, local: &Name) -> Result<(), Problem> {
    let service = &source.service;
    let message = if service.is_cut {
        format!(
            "its labels, annotations and ports have more than {} KiB",
            MAX_SERVICE_BYTES >> 10
        )
    } else if service.ports.is_empty() {
        "it has no ports".to_owned()
    } else if !is_dns_label(&local.name) {
        format!(
            "the name of its mirror, {}, would be longer than 63 characters",
            local.name
        )
    } else {
        return Ok(());
    };
    Err(Problem::new(INVALID_SERVICE, message))
}
