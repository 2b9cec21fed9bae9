//! The fields of a Link that its gateway's Service decides. `multicluster link-gen` fills them, and
//! `multicluster check` compares them. The server of the trust bundle is found in the same way.

use std::net::IpAddr;

use mesh_core::annotation::{GATEWAY_IDENTITY, GATEWAY_PROBE_PATH, GATEWAY_PROBE_PERIOD};
use mesh_core::identity::is_dns_label;
use mesh_core::trust_domain;
use mesh_k8s::crd::LinkSpec;
use mesh_k8s::crd::link::ProbeSpec;
use mesh_k8s::kinds::{ResourceExt, Service};

/// What the user selects instead of what the Service has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice<'a> {
    pub(crate) addresses: &'a [String],
    pub(crate) port: Option<u16>,
}

/// The names of the Service's ports.
const GATEWAY_PORT: &str = "mc-gateway";
const PROBE_PORT: &str = "mc-probe";

/// Adds the gateway to a Link. The error continues a sentence that begins with the Service.
pub(crate) fn add(
    service: &Service,
    choice: Choice<'_>,
    spec: &mut LinkSpec,
) -> Result<(), String> {
    let annotation = |key: &str| {
        let value = service.annotations().get(key);
        let value = value.filter(|value| !value.is_empty());
        value.ok_or_else(|| {
            format!("has no annotation {key}, which the chart of the multicluster extension sets")
        })
    };
    spec.gateway_address = addresses(service, choice.addresses)?.join(",");
    spec.gateway_identity = annotation(GATEWAY_IDENTITY)?.clone();
    spec.gateway_port = match choice.port {
        Some(port) => port.to_string(),
        None => port(service, GATEWAY_PORT, "; --gateway-port names it")?,
    };
    spec.probe_spec = Some(ProbeSpec {
        path: annotation(GATEWAY_PROBE_PATH)?.clone(),
        port: port(service, PROBE_PORT, "")?,
        period: period(annotation(GATEWAY_PROBE_PERIOD)?),
        ..ProbeSpec::default()
    });
    Ok(())
}

/// Fails if proxies of a mesh with this trust domain cannot have the identity of the gateway. The
/// error continues a sentence that begins with the Service.
pub(crate) fn check_identity(identity: &str, trust_domain: &str) -> Result<(), String> {
    match trust_domain::of_service_account(identity) {
        Some(other) if other != trust_domain => Err(format!(
            "has the annotation {GATEWAY_IDENTITY} with trust domain {other}, and the mesh of its cluster has {trust_domain}: set the value identityTrustDomain of the chart linkerd-multicluster to {trust_domain}, and upgrade"
        )),
        _ => Ok(()),
    }
}

fn addresses(service: &Service, chosen: &[String]) -> Result<Vec<String>, String> {
    if !chosen.is_empty() {
        for address in chosen {
            if !is_address(address) {
                return Err(format!(
                    "cannot be reached at {address:?}: --gateway-addresses takes IP addresses and DNS names"
                ));
            }
        }
        return Ok(chosen.to_vec());
    }
    assigned(service, "--gateway-addresses")
}

/// Returns the addresses that the load balancer has assigned. `flag` names others.
pub(crate) fn assigned(service: &Service, flag: &str) -> Result<Vec<String>, String> {
    let status = service.status.as_ref();
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    let ingresses = balancer.and_then(|balancer| balancer.ingress.as_ref());
    let found: Vec<String> = ingresses
        .into_iter()
        .flatten()
        .filter_map(|ingress| {
            let ip = ingress.ip.clone().filter(|ip| !ip.is_empty());
            ip.or_else(|| ingress.hostname.clone().filter(|name| !name.is_empty()))
        })
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let type_ = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    Err(match type_ {
        Some("LoadBalancer") => format!(
            "has no address yet: wait until the load balancer of this cluster assigns one, or name another one with {flag}"
        ),
        other => format!(
            "is of type {}, so that no load balancer assigns it an address: name one with {flag}",
            other.unwrap_or("ClusterIP")
        ),
    })
}

fn is_address(text: &str) -> bool {
    let is_name = || text.len() <= 253 && text.split('.').all(is_dns_label);
    text.parse::<IpAddr>().is_ok() || is_name()
}

/// Returns the port that other clusters connect to. `instead` says what else names it.
pub(crate) fn port(service: &Service, name: &str, instead: &str) -> Result<String, String> {
    let spec = service.spec.as_ref();
    let mut ports = spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let found = ports.find(|port| port.name.as_deref() == Some(name));
    let found = found.ok_or_else(|| format!("has no port with the name {name}{instead}"))?;
    let is_node_port = spec.and_then(|spec| spec.type_.as_deref()) == Some("NodePort");
    if !is_node_port {
        return Ok(found.port.to_string());
    }
    let port = found.node_port.filter(|port| *port != 0);
    let port = port
        .ok_or_else(|| format!("has no node port for its port {name} yet: try again{instead}"))?;
    Ok(port.to_string())
}

/// Returns a period as a duration; the chart writes it as a number of seconds.
fn period(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(seconds) => format!("{seconds}s"),
        Err(_not_a_number) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(edit: impl FnOnce(&mut Value)) -> Service {
        let mut service = json!({
            "metadata": { "name": "linkerd-gateway", "annotations": {
                "mirror.linkerd.io/gateway-identity": "gateway.example",
                "mirror.linkerd.io/probe-path": "/ready",
                "mirror.linkerd.io/probe-period": "3",
            } },
            "spec": { "type": "LoadBalancer", "ports": [
                { "name": "mc-gateway", "port": 4143, "nodePort": 30143 },
                { "name": "mc-probe", "port": 4191, "nodePort": 30191 },
            ] },
            "status": { "loadBalancer": { "ingress": [
                { "ip": "192.0.2.1" }, { "hostname": "gw.example.com" }, { "ip": "" },
            ] } },
        });
        edit(&mut service);
        serde_json::from_value(service).unwrap()
    }

    fn gateway(service: &Service, choice: Choice<'_>) -> Result<LinkSpec, String> {
        let mut spec = LinkSpec::default();
        add(service, choice, &mut spec)?;
        Ok(spec)
    }

    const NOTHING: Choice<'_> = Choice {
        addresses: &[],
        port: None,
    };

    #[test]
    fn gateway_is_what_the_load_balancer_and_the_ports_say() {
        let spec = gateway(&service(|_| ()), NOTHING).unwrap();
        assert_eq!(spec.gateway_address, "192.0.2.1,gw.example.com");
        assert_eq!(spec.gateway_port, "4143");
        assert_eq!(spec.gateway_identity, "gateway.example");
        let probe = spec.probe_spec.unwrap();
        let found = [&probe.path, &probe.port, &probe.period];
        assert_eq!(found, ["/ready", "4191", "3s"]);
        // Definitions before v1alpha3 lack these fields.
        assert!(probe.timeout.is_empty() && probe.failure_threshold.is_empty());
    }

    #[test]
    fn nodes_are_reached_at_node_ports() {
        let addresses = ["192.0.2.7".to_owned(), "node.example".to_owned()];
        let choice = Choice {
            addresses: &addresses,
            port: None,
        };
        let nodes = service(|it| it["spec"]["type"] = json!("NodePort"));
        let spec = gateway(&nodes, choice).unwrap();
        assert_eq!(spec.gateway_address, "192.0.2.7,node.example");
        assert_eq!(spec.gateway_port, "30143");
        assert_eq!(spec.probe_spec.unwrap().port, "30191");
        let port = Some(443);
        let spec = gateway(&nodes, Choice { port, ..choice }).unwrap();
        assert_eq!(spec.gateway_port, "443");
    }

    #[test]
    fn identity_of_another_trust_domain_is_an_error() {
        let gateway = "linkerd-gateway.linkerd-multicluster.serviceaccount.identity.linkerd";
        let own = format!("{gateway}.east.example");
        assert_eq!(check_identity(&own, "east.example"), Ok(()));
        // Not of a ServiceAccount.
        assert_eq!(check_identity("gateway.example", "east.example"), Ok(()));
        let other = format!("{gateway}.cluster.local");
        let error = check_identity(&other, "east.example").unwrap_err();
        assert!(
            error.contains("set the value identityTrustDomain"),
            "{error}"
        );
    }

    #[test]
    fn error_says_what_the_service_lacks() {
        type Case = (fn(&mut Value), &'static str);
        let cases: [Case; 8] = [
            (|it| it["status"] = json!({}), "has no address yet"),
            (
                |it| {
                    it["status"] = json!({});
                    it["spec"]["type"] = json!("ClusterIP");
                },
                "is of type ClusterIP",
            ),
            (
                |it| it["metadata"]["annotations"] = json!({}),
                "has no annotation mirror.linkerd.io/gateway-identity",
            ),
            (
                |it| it["metadata"]["annotations"]["mirror.linkerd.io/probe-path"] = json!(""),
                "has no annotation mirror.linkerd.io/probe-path",
            ),
            (
                |it| {
                    let annotations = it["metadata"]["annotations"].as_object_mut().unwrap();
                    annotations.remove("mirror.linkerd.io/probe-period");
                },
                "has no annotation mirror.linkerd.io/probe-period",
            ),
            (
                |it| it["spec"]["ports"][0]["name"] = json!("http"),
                "has no port with the name mc-gateway; --gateway-port names it",
            ),
            (
                |it| it["spec"]["ports"][1]["name"] = json!("http"),
                "has no port with the name mc-probe",
            ),
            (
                |it| {
                    it["spec"]["type"] = json!("NodePort");
                    it["spec"]["ports"][0]["nodePort"] = json!(0);
                },
                "has no node port for its port mc-gateway yet",
            ),
        ];
        for (edit, expect) in cases {
            let error = gateway(&service(edit), NOTHING).unwrap_err();
            assert!(error.starts_with(expect), "{error}");
        }
        for bad in ["a_b", "http://gw", "192.0.2.1:80", ""] {
            let addresses = [bad.to_owned()];
            let choice = Choice {
                addresses: &addresses,
                port: None,
            };
            let error = gateway(&service(|_| ()), choice).unwrap_err();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    #[test]
    fn period_is_a_duration() {
        for (text, expect) in [("3", "3s"), ("90", "90s"), ("1m", "1m"), ("x", "x")] {
            assert_eq!(period(text), expect);
        }
    }
}
