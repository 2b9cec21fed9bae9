//! Objects that the chart makes, and whether what runs agrees with them.

use std::net::IpAddr;

use ipnet::IpNet;
use mesh_core::annotation;
use mesh_k8s::{
    kinds::{EndpointSlice, ResourceExt, Service, ServiceAccount},
    pod, select,
    values::reading::ignored_keys,
};

use super::{
    super::{
        Facts, Line, Outcome, Verdict, count,
        facts::{Seen, full_name, see},
        repair,
    },
    pods::COMPONENTS,
};
use crate::cluster::agent;

pub(super) fn accounts(facts: &Facts) -> Verdict {
    let there = see(&facts.objects.accounts)?;
    let mut wanted: Vec<String> = COMPONENTS
        .iter()
        .map(|component| format!("linkerd-{component}"))
        .collect();
    if facts.has_agents() {
        wanted.push(agent::NAME.to_owned());
    }
    let missing = wanted
        .into_iter()
        .filter(|name| !there.iter().any(|account| account.name_any() == *name));
    let missing = missing.map(|name| {
        Line::new(format!("ServiceAccount {name} is missing"))
            .fixed_by("{upgrade}, then kubectl -n {ns} rollout restart deployment,daemonset")
    });
    let mut wrong: Vec<Line> = missing.collect();
    wrong.extend(orphans(facts, there)?);
    Ok(Outcome::fail_if(wrong, ""))
}

/// Pods that are older than their account: their tokens are of the one that was deleted.
fn orphans(facts: &Facts, accounts: &[ServiceAccount]) -> Seen<Vec<Line>> {
    let mut orphans = Vec::new();
    for pod in facts.live_pods()? {
        let account = accounts.iter().find(|account| {
            pod.namespace().as_ref() == Some(&facts.control_namespace)
                && account.name_any() == pod::service_account(pod)
        });
        let account = account.and_then(|account| account.creation_timestamp());
        if let (Some(account), Some(own)) = (account, pod.creation_timestamp())
            && own.0 < account.0
        {
            let line = Line::new(format!(
                "{} is older than its ServiceAccount {}: the API server refuses its token until it is restarted",
                full_name(pod),
                pod::service_account(pod)
            ));
            orphans.push(line.fixed_by(repair::restart(pod)));
        }
    }
    Ok(orphans)
}

/// The Services by which proxies and the API server find the control plane. Others of its Services
/// are looked at where they are.
const SERVICES: [(&str, i32); 4] = [
    ("linkerd-identity-headless", 8080),
    ("linkerd-dst-headless", 8086),
    ("linkerd-policy", 8090),
    ("linkerd-proxy-injector", 443),
];

pub(super) fn services(facts: &Facts) -> Verdict {
    let services = see(&facts.objects.services)?;
    let slices = see(&facts.objects.slices)?;
    let own: Vec<&Service> = services
        .iter()
        .filter(|service| service.namespace().as_deref() == Some(&facts.control_namespace))
        .filter(|service| {
            SERVICES
                .iter()
                .any(|(name, _port)| service.name_any() == *name)
                || service
                    .labels()
                    .contains_key(annotation::CONTROL_PLANE_COMPONENT)
        })
        .collect();
    let missing = SERVICES
        .iter()
        .filter(|(name, _port)| !own.iter().any(|service| service.name_any() == *name));
    let mut wrong: Vec<Line> = missing
        .map(|(name, _port)| {
            Line::new(format!("Service {name} is missing"))
                .fixed_by("{upgrade}")
                .own()
        })
        .collect();
    for service in &own {
        let name = service.name_any();
        let wanted = SERVICES.iter().find(|(known, _port)| *known == name);
        let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
        let has = |port: i32| ports.into_iter().flatten().any(|one| one.port == port);
        if let Some((_, port)) = wanted.filter(|(_, port)| !has(*port)) {
            let line = Line::new(format!(
                "Service {name} has not the port {port} at which it is called"
            ));
            wrong.push(line.fixed_by("{upgrade}").own());
        }
        if !slices.iter().any(|slice| leads_somewhere(slice, &name)) {
            wrong.push(without_endpoint(facts, service)?);
        }
    }
    Ok(Outcome::fail_if(
        wrong,
        count(own.len(), "Service", "Services"),
    ))
}

/// Either its selector chooses no pod, or none that it chooses is ready, which has a cause of its
/// own.
fn without_endpoint(facts: &Facts, service: &Service) -> Seen<Line> {
    let name = service.name_any();
    let selector = service
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.as_ref());
    let component = service.labels().get(annotation::CONTROL_PLANE_COMPONENT);
    let chosen = facts.live_pods()?.any(|pod| {
        pod.namespace() == service.namespace()
            && select::service_matches(selector, pod.metadata.labels.as_ref())
    });
    let there = component.is_none_or(|component| {
        facts.control_pods().is_ok_and(|mut pods| {
            pods.any(|pod| pod::label(pod, annotation::CONTROL_PLANE_COMPONENT) == Some(component))
        })
    });
    let leads = format!("Service {name} leads to no ready pod");
    Ok(match selector {
        Some(selector) if !chosen && there => {
            let selector: Vec<String> = selector
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            Line::new(format!(
                "{leads}: its selector {} chooses none",
                selector.join(",")
            ))
            .fixed_by("{upgrade}")
            .own()
        }
        _ => Line::new(leads).fixed_by("kubectl -n {ns} get pods -o wide"),
    })
}

fn leads_somewhere(slice: &EndpointSlice, service: &str) -> bool {
    slice
        .labels()
        .get("kubernetes.io/service-name")
        .map(String::as_str)
        == Some(service)
        && slice.endpoints.iter().any(|endpoint| {
            endpoint
                .conditions
                .as_ref()
                .and_then(|conditions| conditions.ready)
                .unwrap_or(true)
        })
}

pub(super) fn permissions(facts: &Facts) -> Verdict {
    let (mut wrong, mut unseen) = (Vec::new(), None);
    for access in &facts.access {
        let Some(who) = access.who else { continue };
        match &access.allowed {
            Ok(true) => {}
            Ok(false) => wrong.push(format!("ServiceAccount {who} may not {}", access.what)),
            Err(reason) => unseen = Some(reason),
        }
    }
    Ok(match unseen {
        Some(reason) if wrong.is_empty() => {
            Outcome::warn(format!("you may not ask what they may do: {reason}"))
        }
        _ => Outcome::fail_if(wrong, ""),
    })
}

/// The blocks of `clusterNetworks`.
fn networks(facts: &Facts) -> Seen<Vec<IpNet>> {
    let text = facts.values()?.cluster_networks;
    text.split(',')
        .map(str::trim)
        .filter(|block| !block.is_empty())
        .map(|block| {
            block
                .parse()
                .map_err(|_bad| format!("clusterNetworks: {block:?} is no block of addresses"))
        })
        .collect()
}

pub(super) fn node_networks(facts: &Facts) -> Verdict {
    let networks = networks(facts)?;
    let mut wrong = Vec::new();
    for node in see(&facts.objects.nodes)? {
        let blocks = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.as_ref());
        for block in blocks.into_iter().flatten() {
            let inside = block
                .parse::<IpNet>()
                .is_ok_and(|block| networks.iter().any(|network| network.contains(&block)));
            if !inside {
                wrong.push(format!(
                    "node {}: {block} is in no block of clusterNetworks",
                    node.name_any()
                ));
            }
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

pub(super) fn addresses(facts: &Facts) -> Verdict {
    let networks = networks(facts)?;
    let is_outside = |ip: &IpAddr| !networks.iter().any(|network| network.contains(ip));
    let mut wrong = Vec::new();
    for pod in facts.live_pods()?.filter(|pod| !pod::is_host_network(pod)) {
        if let Some(ip) = pod::ips(pod).iter().find(|ip| is_outside(ip)) {
            wrong.push(format!("pod {} has {ip}", full_name(pod)));
        }
    }
    for service in see(&facts.objects.services)? {
        let ip = service
            .spec
            .as_ref()
            .and_then(|spec| spec.cluster_ip.as_ref());
        let outside = ip
            .and_then(|ip| ip.parse().ok())
            .filter(|ip| is_outside(ip));
        if let Some(ip) = outside {
            wrong.push(format!(
                "Service {}/{} has {ip}",
                service.namespace().unwrap_or_default(),
                service.name_any()
            ));
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// Keys that only Linkerd's chart has. They are accepted so that its values files can be used, and
/// not silently.
pub(super) fn without_effect(facts: &Facts) -> Verdict {
    let text = facts.values_text()?;
    let given = serde_norway::from_str(&text)
        .map_err(|error| format!("the values of ConfigMap linkerd-config: {error}"))?;
    let keys = ignored_keys(&given);
    let lines = keys
        .iter()
        .map(|key| format!("{}: {}", key.path, key.reason));
    Ok(Outcome::warn_if(lines.collect(), ""))
}

/// What the controllers were told when they started, against what is written down now: a value that
/// was edited by hand is in force for new pods alone, and proxies that disagree with their control
/// plane about a domain trust nobody.
pub(super) fn drift(facts: &Facts) -> Verdict {
    let values = facts.values()?;
    let expected = [
        (
            "cluster domain",
            "--cluster-domain",
            values.cluster_domain.as_str(),
        ),
        (
            "trust domain",
            "--identity-trust-domain",
            values.trust_domain(),
        ),
    ];
    let mut wrong = Vec::new();
    for deployment in see(&facts.objects.deployments)? {
        let spec = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.as_ref());
        for container in spec.iter().flat_map(|spec| &spec.containers) {
            let words = container.command.iter().chain(&container.args).flatten();
            for (what, flag, value) in &expected {
                let given = argument(words.clone(), flag);
                if let Some(given) = given.filter(|given| given != value) {
                    wrong.push(format!(
                        "{what}: container {} of Deployment {} has {given:?}, linkerd-config says {value:?}",
                        container.name,
                        deployment.name_any()
                    ));
                }
            }
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// The value of a flag, as one argument or two.
fn argument<'a>(mut words: impl Iterator<Item = &'a String>, flag: &str) -> Option<&'a str> {
    while let Some(word) = words.next() {
        match word.strip_prefix(flag) {
            Some("") => return words.next().map(String::as_str),
            Some(rest) if rest.starts_with('=') => return rest.strip_prefix('='),
            _ => {}
        }
    }
    None
}
