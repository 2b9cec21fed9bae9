//! The objects of the chart, and whether the running control plane matches them.

use std::net::IpAddr;

use ipnet::IpNet;
use mesh_core::annotation;
use mesh_k8s::kinds::{ResourceExt, Service, ServiceAccount};
use mesh_k8s::values::reading::ignored_keys;
use mesh_k8s::values::{Redirection, Values};
use mesh_k8s::{heartbeat, pod, select};

use super::super::fix;
use super::super::framework::{CheckResult, Finding, Outcome};
use super::super::system::has_ready_endpoint;
use crate::cluster::agent;
use crate::facts::names::COMPONENTS;
use crate::facts::{Fact, Facts, fact_ref, full_name};
use crate::output::count;

pub(super) fn accounts(facts: &Facts) -> CheckResult {
    let there = fact_ref(&facts.objects.accounts)?;
    let (own, of_agents) = (&facts.control_namespace, facts.agent_namespace());
    let mut wanted: Vec<(&str, String)> = COMPONENTS
        .iter()
        .map(|component| (own.as_str(), format!("linkerd-{component}")))
        .collect();
    if facts.has_agents() {
        wanted.push((&of_agents, agent::NAME.to_owned()));
    }
    if facts.sends_heartbeat() {
        wanted.push((own, heartbeat::NAME.to_owned()));
    }
    let missing = wanted.into_iter().filter(|(namespace, name)| {
        !there.iter().any(|account| {
            account.name_any() == *name && account.namespace().as_deref() == Some(namespace)
        })
    });
    let missing = missing.map(|(namespace, name)| {
        let kind = if name == agent::NAME {
            "daemonset"
        } else {
            "deployment"
        };
        Finding::new(format!("ServiceAccount {name} is missing")).with_fix(format!(
            "{{upgrade}}, then kubectl -n {namespace} rollout restart {kind}"
        ))
    });
    let mut wrong: Vec<Finding> = missing.collect();
    wrong.extend(orphans(facts, there)?);
    Ok(Outcome::fail_if(wrong, ""))
}

/// Finds pods that are older than their ServiceAccount, whose tokens belong to a deleted account.
fn orphans(facts: &Facts, accounts: &[ServiceAccount]) -> Fact<Vec<Finding>> {
    let mut orphans = Vec::new();
    for pod in facts.live_pods()? {
        let account = accounts.iter().find(|account| {
            pod.namespace() == account.namespace()
                && account.name_any() == pod::service_account(pod)
        });
        let account = account.and_then(|account| account.creation_timestamp());
        if let (Some(account), Some(own)) = (account, pod.creation_timestamp())
            && own.0 < account.0
        {
            let finding = Finding::new(format!(
                "{} is older than its ServiceAccount {}: the API server rejects its token until it is restarted",
                full_name(pod),
                pod::service_account(pod)
            ));
            orphans.push(finding.with_fix(fix::restart_command(pod)));
        }
    }
    Ok(orphans)
}

/// Proxies and the API server reach the control plane through these Services. Its other Services
/// are checked only if they exist.
const SERVICES: [(&str, i32); 4] = [
    ("linkerd-identity-headless", 8080),
    ("linkerd-dst-headless", 8086),
    ("linkerd-policy", 8090),
    ("linkerd-proxy-injector", 443),
];

pub(super) fn services(facts: &Facts) -> CheckResult {
    let services = fact_ref(&facts.objects.services)?;
    let slices = fact_ref(&facts.objects.slices)?;
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
    let mut wrong: Vec<Finding> = missing
        .map(|(name, _port)| {
            Finding::new(format!("Service {name} is missing"))
                .with_fix("{upgrade}")
                .into_root_cause()
        })
        .collect();
    for service in &own {
        let name = service.name_any();
        let wanted = SERVICES.iter().find(|(known, _port)| *known == name);
        let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
        let has = |port: i32| ports.into_iter().flatten().any(|one| one.port == port);
        if let Some((_, port)) = wanted.filter(|(_, port)| !has(*port)) {
            let finding = Finding::new(format!(
                "Service {name} lacks port {port}, which its clients use"
            ));
            wrong.push(finding.with_fix("{upgrade}").into_root_cause());
        }
        if !slices.iter().any(|slice| has_ready_endpoint(slice, &name)) {
            wrong.push(without_endpoint(facts, service)?);
        }
    }
    Ok(Outcome::fail_if(
        wrong,
        count(own.len(), "Service", "Services"),
    ))
}

/// Describes a Service without ready endpoints: its selector matches no pod, which is a root cause,
/// or no pod that it matches is ready, which another check explains.
fn without_endpoint(facts: &Facts, service: &Service) -> Fact<Finding> {
    let name = service.name_any();
    let selector = service
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.as_ref());
    let component = service.labels().get(annotation::CONTROL_PLANE_COMPONENT);
    let is_selected = facts.live_pods()?.any(|pod| {
        pod.namespace() == service.namespace()
            && select::service_matches(selector, pod.metadata.labels.as_ref())
    });
    let there = component.is_none_or(|component| {
        facts.control_pods().is_ok_and(|mut pods| {
            pods.any(|pod| pod::label(pod, annotation::CONTROL_PLANE_COMPONENT) == Some(component))
        })
    });
    let text = format!("Service {name} has no ready endpoint");
    Ok(match selector {
        Some(selector) if !is_selected && there => Finding::new(format!(
            "{text}: its selector {} matches no pod",
            select::text(selector)
        ))
        // Helm keeps labels that were added to a selector by hand.
        .with_fix(format!(
            "kubectl -n {{ns}} delete service {name}, then {{upgrade}}"
        ))
        .into_root_cause(),
        _ => Finding::new(text).with_fix("kubectl -n {ns} get pods -o wide"),
    })
}

pub(super) fn permissions(facts: &Facts) -> CheckResult {
    let (mut wrong, mut unknown) = (Vec::new(), None);
    for access in &facts.access {
        let Some(account) = access.account else {
            continue;
        };
        match &access.allowed {
            Ok(true) => {}
            Ok(false) => wrong.push(format!(
                "ServiceAccount {account} may not {}",
                access.permission
            )),
            Err(reason) => unknown = Some(reason),
        }
    }
    Ok(match unknown {
        Some(reason) if wrong.is_empty() => {
            Outcome::warn(format!("you may not query their permissions: {reason}"))
        }
        _ => Outcome::fail_if(wrong, ""),
    })
}

/// Returns the address ranges of `clusterNetworks`.
fn networks(facts: &Facts) -> Fact<Vec<IpNet>> {
    let text = &facts.values()?.cluster_networks;
    text.split(',')
        .map(str::trim)
        .filter(|block| !block.is_empty())
        .map(|block| {
            block
                .parse()
                .map_err(|_bad| format!("clusterNetworks: {block:?} is not a CIDR block"))
        })
        .collect()
}

pub(super) fn node_networks(facts: &Facts) -> CheckResult {
    let networks = networks(facts)?;
    let mut wrong = Vec::new();
    for node in fact_ref(&facts.objects.nodes)? {
        let blocks = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.as_ref());
        for block in blocks.into_iter().flatten() {
            let inside = block
                .parse::<IpNet>()
                .is_ok_and(|block| networks.iter().any(|network| network.contains(&block)));
            if !inside {
                wrong.push(format!(
                    "node {}: {block} is not part of clusterNetworks",
                    node.name_any()
                ));
            }
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

pub(super) fn addresses(facts: &Facts) -> CheckResult {
    let networks = networks(facts)?;
    let is_outside = |ip: &IpAddr| !networks.iter().any(|network| network.contains(ip));
    let mut wrong = Vec::new();
    for pod in facts.live_pods()?.filter(|pod| !pod::is_host_network(pod)) {
        if let Some(ip) = pod::ips(pod).iter().find(|ip| is_outside(ip)) {
            wrong.push(format!("pod {} has {ip}", full_name(pod)));
        }
    }
    for service in fact_ref(&facts.objects.services)? {
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

/// With agents in the same namespace, `pre-pod-security` reports a level that rejects them.
pub(super) fn pod_security(facts: &Facts) -> CheckResult {
    let (values, namespace) = (facts.values()?, &facts.control_namespace);
    let level = values.pod_security_level();
    let enforced = facts.enforced_level(namespace);
    let finding = |text: String| {
        Finding::new(text).with_fix(format!(
            "kubectl label namespace {namespace} --overwrite pod-security.kubernetes.io/enforce={level}"
        ))
    };
    Ok(match enforced {
        Some(enforced) if enforced == level => Outcome::ok(level),
        Some(enforced)
            if level == "privileged" && values.redirection() == Redirection::InitContainer =>
        {
            Outcome::fail(finding(format!(
                "namespace {namespace} enforces {enforced:?}; linkerd-init in its pods needs {level:?}"
            )))
        }
        _ if level == "privileged" => Outcome::ok(""),
        other => Outcome::warn(finding(format!(
            "namespace {namespace} enforces {}; its own pods meet {level:?}, and other pods there can take over nodes",
            other.map_or_else(|| "no level".to_owned(), |found| format!("{found:?}"))
        ))),
    })
}

/// Reports keys that only Linkerd's chart supports. They are accepted so that its values files can
/// be used.
pub(super) fn without_effect(facts: &Facts) -> CheckResult {
    let text = facts.values_text()?;
    let values = serde_norway::from_str(&text)
        .map_err(|error| format!("the values of ConfigMap linkerd-config: {error}"))?;
    let keys = ignored_keys::<Values>(&values);
    let findings = keys
        .iter()
        .map(|key| format!("{}: {}", key.path, key.reason));
    Ok(Outcome::warn_if(findings, ""))
}

/// Compares the arguments of the controllers with linkerd-config. A value that was edited by hand
/// applies only to new pods, and a proxy trusts no certificate if its trust domain is not the
/// control plane's.
pub(super) fn drift(facts: &Facts) -> CheckResult {
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
    for deployment in fact_ref(&facts.objects.deployments)? {
        let spec = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.as_ref());
        for container in spec.iter().flat_map(|spec| &spec.containers) {
            let words = container.command.iter().chain(&container.args).flatten();
            for (what, flag, value) in &expected {
                let actual = argument(words.clone(), flag);
                if let Some(actual) = actual.filter(|actual| actual != value) {
                    wrong.push(format!(
                        "{what}: container {} of Deployment {} has {actual:?}, linkerd-config has {value:?}",
                        container.name,
                        deployment.name_any()
                    ));
                }
            }
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// Returns the value of a flag, which is one argument or two.
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
