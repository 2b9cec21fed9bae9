//! Consistency of the destination service and the policy service about one target.

use mesh_core::policy::outbound::{OutboundProtocol, Target};
use mesh_core::profile::Profile;

use super::super::{DestinationIndex, PolicyIndex, ProfileTarget, Subscription};
use super::fixture::{SERVICE, apply, destination_settings, pod, policy_settings, profile_key};

/// Returns the Service at 10.96.0.1 with a port for each `appProtocol`, and these ports. With
/// `listed` they are in the annotation of opaque ports.
fn service(listed: bool) -> (String, Vec<u16>) {
    let protocols = [
        "",
        "http",
        "HTTP",
        "kubernetes.io/h2c",
        "linkerd.io/opaque",
        "https",
        "grpc",
        "kubernetes.io/ws",
        "kubernetes.io/wss",
        "mysql",
    ];
    let first = if listed { 8000 } else { 9000 };
    let numbered = || protocols.iter().zip(first..);
    let ports: Vec<String> = numbered()
        .map(|(protocol, port)| {
            let text = match *protocol {
                "" => String::new(),
                text => format!(", appProtocol: '{text}'"),
            };
            format!("{{name: p{port}, port: {port}{text}}}")
        })
        .collect();
    let text = SERVICE
        .replace(
            "{name: web, namespace: shop}",
            "{name: web, namespace: shop, annotations: {config.linkerd.io/opaque-ports: '8000-8999'}}",
        )
        .replace("ports: [", &format!("ports: [{}, ", ports.join(", ")));
    (text, numbered().map(|(_, port)| port).collect())
}

fn profile(index: &mut DestinationIndex, addr: &str) -> Profile {
    let key = profile_key(ProfileTarget::Addr(addr.parse().unwrap()));
    let Ok(Subscription::Cached(kept)) = index.profile(key) else {
        panic!("the profile of {addr} is not cached");
    };
    Profile::clone(kept.borrow().value())
}

fn protocol(index: &mut PolicyIndex, addr: &str) -> OutboundProtocol {
    let target = Target::Addr(addr.parse().unwrap());
    let watched = index.outbound(&target, &"shop".into()).unwrap();
    watched.borrow().value().as_ref().clone().unwrap().protocol
}

#[test]
fn destination_and_policy_agree_on_opaque_ports() {
    for listed in [true, false] {
        let (text, ports) = service(listed);
        let text = text + &pod("web-1", "10.1.0.1", true, "");
        let mut destination = DestinationIndex::new(destination_settings());
        destination.apply(apply(&text));
        let mut policy = PolicyIndex::new(policy_settings());
        policy.apply(apply(&text));
        let mut opaque = Vec::new();
        for port in ports {
            let addr = format!("10.96.0.1:{port}");
            let protocol = protocol(&mut policy, &addr);
            let is_opaque = matches!(protocol, OutboundProtocol::Opaque(_));
            let profile = profile(&mut destination, &addr);
            assert_eq!(profile.opaque, is_opaque, "{addr}: {protocol:?}");
            assert!(profile.fqn.is_some() && profile.endpoint.is_none());
            opaque.push(is_opaque);
        }
        // A known `appProtocol` takes precedence over the list.
        let expect = [
            listed, false, false, false, true, true, false, false, true, listed,
        ];
        assert_eq!(opaque, expect);
    }
}
