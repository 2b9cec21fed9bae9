//! Servers, AuthorizationPolicies and authentications.

use std::sync::Arc;

use mesh_core::policy::inbound::{IdentityMatch, Network};
use mesh_k8s::crd;
use mesh_k8s::kinds::{self, LabelSelector, ServiceAccount};

use super::{ConvertError, created, name};
use crate::model::{
    AuthenticationRef, AuthorizationPolicy, AuthorizationTarget, IdentitySet,
    MeshTlsAuthentication, Name, NetworkAuthentication, Protocol, Server, ServerPort,
    WorkloadSelector,
};

pub(crate) fn server(server: crd::Server) -> Result<Server, ConvertError> {
    let spec = server.spec;
    Ok(Server {
        name: name(&server.metadata),
        created: created(&server.metadata),
        workloads: workloads(spec.pod_selector, spec.external_workload_selector)?,
        labels: server.metadata.labels.unwrap_or_default(),
        port: match spec.port {
            crd::PortRef::Number(port) => ServerPort::Number(port),
            crd::PortRef::Name(name) => ServerPort::Name(name.into()),
        },
        protocol: match spec.proxy_protocol {
            crd::ProxyProtocol::Unknown => Protocol::Detect,
            crd::ProxyProtocol::Http1 => Protocol::Http1,
            crd::ProxyProtocol::Http2 => Protocol::Http2,
            crd::ProxyProtocol::Grpc => Protocol::Grpc,
            crd::ProxyProtocol::Opaque => Protocol::Opaque,
            crd::ProxyProtocol::Tls => Protocol::Tls,
        },
        access: spec.access_policy,
    })
}

fn workloads(
    pods: Option<LabelSelector>,
    external: Option<LabelSelector>,
) -> Result<WorkloadSelector, ConvertError> {
    let problem = match (pods, external) {
        (Some(selector), None) => return Ok(WorkloadSelector::Pods(selector.into())),
        (None, Some(selector)) => {
            return Ok(WorkloadSelector::ExternalWorkloads(selector.into()));
        }
        (None, None) => "selects no workloads; set podSelector or externalWorkloadSelector",
        (Some(_), Some(_)) => {
            "has a podSelector and an externalWorkloadSelector; make a Server for each"
        }
    };
    Err(ConvertError::new("spec", problem))
}

pub(crate) fn authorization_policy(
    policy: &crd::AuthorizationPolicy,
) -> Result<AuthorizationPolicy, ConvertError> {
    let own = name(&policy.metadata);
    let target = authorization_target(&own, &policy.spec.target_ref)?;
    let required = policy.spec.required_authentication_refs.iter().enumerate();
    let required = required
        .map(|(at, reference)| {
            authentication_ref(&own, reference).ok_or_else(|| {
                ConvertError::new(
                    format!("spec.requiredAuthenticationRefs[{at}].kind"),
                    format!(
                        "{:?} is not MeshTLSAuthentication, NetworkAuthentication or ServiceAccount",
                        reference.kind
                    ),
                )
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    check_one_of_each_kind(&required)?;
    Ok(AuthorizationPolicy {
        name: own,
        target,
        required,
    })
}

/// A client must satisfy all authentications of a policy and has a single identity and address, so
/// several of a kind are an error, as in Linkerd.
fn check_one_of_each_kind(required: &[AuthenticationRef]) -> Result<(), ConvertError> {
    let networks = required
        .iter()
        .filter(|reference| matches!(reference, AuthenticationRef::Network(_)))
        .count();
    let problem = if networks > 1 {
        "lists more than one NetworkAuthentication; put all networks into one"
    } else if required.len() - networks > 1 {
        "lists more than one MeshTLSAuthentication or ServiceAccount; put all identities into one MeshTLSAuthentication"
    } else {
        return Ok(());
    };
    Err(ConvertError::new(
        "spec.requiredAuthenticationRefs",
        problem,
    ))
}

fn authorization_target(
    own: &Name,
    target: &crd::LocalTargetRef,
) -> Result<AuthorizationTarget, ConvertError> {
    let name = || Arc::from(target.name.as_str());
    if target.targets::<crd::Server>() {
        Ok(AuthorizationTarget::Server(name()))
    } else if target.targets::<kinds::Namespace>() {
        if *target.name != *own.namespace {
            return Err(ConvertError::new(
                "spec.targetRef.name",
                format!(
                    "is the namespace {:?}, but a policy can only target its own, {:?}",
                    target.name, own.namespace
                ),
            ));
        }
        Ok(AuthorizationTarget::Namespace)
    } else if target.targets::<crd::PolicyHttpRoute>() {
        Ok(AuthorizationTarget::PolicyHttpRoute(name()))
    } else if target.targets::<kinds::HttpRoute>() {
        Ok(AuthorizationTarget::GatewayHttpRoute(name()))
    } else if target.targets::<kinds::GrpcRoute>() {
        Ok(AuthorizationTarget::GatewayGrpcRoute(name()))
    } else {
        Err(ConvertError::new(
            "spec.targetRef",
            format!(
                "is {}; expected Server or HTTPRoute of policy.linkerd.io, HTTPRoute or GRPCRoute of gateway.networking.k8s.io, or Namespace without group",
                kind_and_group(&target.kind, target.group.as_deref())
            ),
        ))
    }
}

/// Describes the kind and group of a reference. A reference without a group is to the core group,
/// which users of kinds of other groups overlook.
pub(super) fn kind_and_group(kind: &str, group: Option<&str>) -> String {
    match group {
        None | Some("") => format!("{kind:?} without group"),
        Some(group) => format!("{kind:?} of group {group:?}"),
    }
}

fn authentication_ref(
    own: &Name,
    reference: &crd::NamespacedTargetRef,
) -> Option<AuthenticationRef> {
    let name = resolve_name(own, reference);
    if reference.targets::<crd::MeshTLSAuthentication>() {
        Some(AuthenticationRef::MeshTls(name))
    } else if reference.targets::<crd::NetworkAuthentication>() {
        Some(AuthenticationRef::Network(name))
    } else if reference.targets::<ServiceAccount>() {
        Some(AuthenticationRef::ServiceAccount(name))
    } else {
        None
    }
}

pub(super) fn resolve_name(own: &Name, reference: &crd::NamespacedTargetRef) -> Name {
    let namespace = reference.namespace.as_deref().unwrap_or(&own.namespace);
    Name::new(namespace, &reference.name)
}

pub(crate) fn mesh_tls_authentication(
    authentication: &crd::MeshTLSAuthentication,
) -> Result<MeshTlsAuthentication, ConvertError> {
    let own = name(&authentication.metadata);
    let spec = &authentication.spec;
    let mut clients = IdentitySet::default();
    add_identities(&mut clients, &spec.identities).map_err(|error| error.inside("spec"))?;
    for (at, reference) in spec.identity_refs.iter().flatten().enumerate() {
        if reference.targets::<ServiceAccount>() {
            let account = resolve_name(&own, reference);
            clients.service_accounts.push(account);
        } else if reference.targets::<kinds::Namespace>() {
            clients.namespaces.push(reference.name.as_str().into());
        } else {
            return Err(ConvertError::new(
                format!("spec.identityRefs[{at}]"),
                format!(
                    "is {}; expected ServiceAccount or Namespace without group",
                    kind_and_group(&reference.kind, reference.group.as_deref())
                ),
            ));
        }
    }
    if clients.is_empty() {
        return Err(ConvertError::new(
            "spec",
            "matches no identity; set identities or identityRefs",
        ));
    }
    Ok(MeshTlsAuthentication { name: own, clients })
}

/// Adds the entries of a field `identities`.
pub(super) fn add_identities(
    clients: &mut IdentitySet,
    identities: &Option<Vec<String>>,
) -> Result<(), ConvertError> {
    for (at, text) in identities.iter().flatten().enumerate() {
        match IdentityMatch::parse(text) {
            Ok(IdentityMatch::Exact(identity)) => clients.identities.push(identity),
            Ok(IdentityMatch::Suffix(suffix)) => clients.suffixes.push(suffix),
            Err(problem) => {
                return Err(ConvertError::new(format!("identities[{at}]"), problem));
            }
        }
    }
    Ok(())
}

pub(crate) fn network_authentication(
    authentication: &crd::NetworkAuthentication,
) -> Result<NetworkAuthentication, ConvertError> {
    let networks = &authentication.spec.networks;
    if networks.is_empty() {
        return Err(ConvertError::new(
            "spec.networks",
            "is empty; list the networks of the clients",
        ));
    }
    Ok(NetworkAuthentication {
        name: name(&authentication.metadata),
        networks: self::networks(networks).map_err(|error| error.inside("spec"))?,
    })
}

/// Converts a field `networks`.
pub(super) fn networks(networks: &[crd::Network]) -> Result<Vec<Network>, ConvertError> {
    let convert = |(at, network): (usize, &crd::Network)| {
        network.check().map_err(|error| {
            let field = format!("networks[{at}].except[{}]", error.at);
            ConvertError::new(field, format!("{} {}", error.except, error.problem))
        })?;
        Ok(Network {
            net: network.cidr,
            except: network.except.clone().unwrap_or_default(),
        })
    };
    networks.iter().enumerate().map(convert).collect()
}

#[cfg(test)]
mod tests {
    use mesh_core::identity::Identity;
    use mesh_core::policy::inbound::Suffix;

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(text: &str) -> T {
        serde_norway::from_str(text).unwrap()
    }

    #[test]
    fn identities_match_exactly_or_by_suffix() {
        let authentication: crd::MeshTLSAuthentication = read(
            "metadata: {name: a, namespace: ns}
spec:
  identities: ['*', '*.ns.example', Web.ns.example, 'spiffe://example/web']
  identityRefs: [{kind: ServiceAccount, name: sa}, {kind: Namespace, name: other}]",
        );
        let converted = mesh_tls_authentication(&authentication).unwrap().clients;
        let expect = [Suffix(vec![]), Suffix(vec!["ns".into(), "example".into()])];
        assert_eq!(converted.suffixes, expect);
        let identities: Vec<&str> = converted.identities.iter().map(Identity::as_str).collect();
        assert_eq!(identities, ["web.ns.example", "spiffe://example/web"]);
        assert_eq!(converted.service_accounts, [Name::new("ns", "sa")]);
        assert_eq!(converted.namespaces, ["other".into()]);
    }

    #[test]
    fn authentication_without_valid_identity_is_rejected() {
        let error = |spec: &str| {
            let text = format!("metadata: {{name: a, namespace: ns}}\nspec: {spec}");
            mesh_tls_authentication(&read(&text))
                .unwrap_err()
                .to_string()
        };
        assert!(error("{}").starts_with("spec: matches no identity"));
        assert!(error("{identities: ['*.']}").starts_with("spec.identities[0]"));
        assert!(error("{identities: [a, 'b c']}").starts_with("spec.identities[1]"));
        assert!(
            error("{identityRefs: [{kind: Pod, name: x}]}")
                .starts_with("spec.identityRefs[0]: is \"Pod\" without group")
        );
    }

    #[test]
    fn authorization_targets_are_resolved_by_group_and_kind() {
        let target = |target: &str| {
            let text = format!(
                "metadata: {{name: a, namespace: ns}}\nspec: {{targetRef: {target}, requiredAuthenticationRefs: []}}"
            );
            authorization_policy(&read(&text)).map(|policy| policy.target)
        };
        let group = "group: policy.linkerd.io";
        assert_eq!(
            target(&format!("{{{group}, kind: Server, name: web}}")),
            Ok(AuthorizationTarget::Server("web".into()))
        );
        assert_eq!(
            target(&format!("{{{group}, kind: HTTPRoute, name: get}}")),
            Ok(AuthorizationTarget::PolicyHttpRoute("get".into()))
        );
        assert_eq!(
            target("{group: gateway.networking.k8s.io, kind: HTTPRoute, name: get}"),
            Ok(AuthorizationTarget::GatewayHttpRoute("get".into()))
        );
        assert_eq!(
            target("{kind: Namespace, name: ns}"),
            Ok(AuthorizationTarget::Namespace)
        );
        let foreign = target("{kind: Namespace, name: other}").unwrap_err();
        assert_eq!(foreign.field, "spec.targetRef.name");
        let unknown = target("{kind: Pod, name: x}").unwrap_err();
        assert_eq!(unknown.field, "spec.targetRef");
        let without_group = target("{kind: Server, name: web}").unwrap_err();
        assert_eq!(
            without_group.to_string(),
            "spec.targetRef: is \"Server\" without group; expected Server or HTTPRoute of policy.linkerd.io, HTTPRoute or GRPCRoute of gateway.networking.k8s.io, or Namespace without group"
        );
    }
}
