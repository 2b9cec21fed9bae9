//! Servers, AuthorizationPolicies and authentications.

use std::sync::Arc;

use mesh_core::identity::Identity;
use mesh_core::policy::inbound::{Network, Suffix};
use mesh_k8s::crd;
use mesh_k8s::kinds::{self, ServiceAccount};

use super::{ConvertError, created, name};
use crate::model::{
    AuthenticationRef, AuthorizationPolicy, AuthorizationTarget, MeshTlsAuthentication, Name,
    NetworkAuthentication, Protocol, Selector, Server, ServerPort,
};

pub(crate) fn server(server: crd::Server) -> Server {
    let spec = server.spec;
    Server {
        name: name(&server.metadata),
        created: created(&server.metadata),
        pods: spec.pod_selector.map(Selector::from),
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
    }
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
            "spec.targetRef.kind",
            format!(
                "{:?} of group {:?} is not Server, Namespace, HTTPRoute or GRPCRoute",
                target.kind,
                target.group.as_deref().unwrap_or_default()
            ),
        ))
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

fn resolve_name(own: &Name, reference: &crd::NamespacedTargetRef) -> Name {
    let namespace = reference.namespace.as_deref().unwrap_or(&own.namespace);
    Name::new(namespace, &reference.name)
}

pub(crate) fn mesh_tls_authentication(
    authentication: &crd::MeshTLSAuthentication,
) -> Result<MeshTlsAuthentication, ConvertError> {
    let own = name(&authentication.metadata);
    let mut converted = MeshTlsAuthentication {
        name: own.clone(),
        identities: Vec::new(),
        suffixes: Vec::new(),
        service_accounts: Vec::new(),
        namespaces: Vec::new(),
    };
    let spec = &authentication.spec;
    for (at, text) in spec.identities.iter().flatten().enumerate() {
        match identity(text) {
            Ok(IdentityMatch::Exact(identity)) => converted.identities.push(identity),
            Ok(IdentityMatch::Suffix(suffix)) => converted.suffixes.push(suffix),
            Err(problem) => {
                return Err(ConvertError::new(format!("spec.identities[{at}]"), problem));
            }
        }
    }
    for (at, reference) in spec.identity_refs.iter().flatten().enumerate() {
        if reference.targets::<ServiceAccount>() {
            converted
                .service_accounts
                .push(resolve_name(&own, reference));
        } else if reference.targets::<kinds::Namespace>() {
            converted.namespaces.push(reference.name.as_str().into());
        } else {
            return Err(ConvertError::new(
                format!("spec.identityRefs[{at}].kind"),
                format!(
                    "{:?} is neither ServiceAccount nor Namespace",
                    reference.kind
                ),
            ));
        }
    }
    let is_empty = converted.identities.is_empty()
        && converted.suffixes.is_empty()
        && converted.service_accounts.is_empty()
        && converted.namespaces.is_empty();
    if is_empty {
        return Err(ConvertError::new(
            "spec",
            "matches no identity; set identities or identityRefs",
        ));
    }
    Ok(converted)
}

enum IdentityMatch {
    Exact(Identity),
    Suffix(Suffix),
}

/// Parses `*` (every identity), `*.a.b` (every identity with this suffix) or a single identity.
fn identity(text: &str) -> Result<IdentityMatch, String> {
    if text == "*" {
        return Ok(IdentityMatch::Suffix(Suffix(Vec::new())));
    }
    if let Some(suffix) = text.strip_prefix("*.") {
        let Ok(Identity::Dns(suffix)) = Identity::parse(suffix) else {
            return Err(format!("{text:?} is not a wildcard DNS name"));
        };
        let parts = suffix.split('.').map(Arc::from).collect();
        return Ok(IdentityMatch::Suffix(Suffix(parts)));
    }
    Identity::parse(text)
        .map(IdentityMatch::Exact)
        .map_err(|error| error.to_string())
}

pub(crate) fn network_authentication(
    authentication: crd::NetworkAuthentication,
) -> NetworkAuthentication {
    NetworkAuthentication {
        name: name(&authentication.metadata),
        networks: authentication
            .spec
            .networks
            .into_iter()
            .map(|network| Network {
                net: network.cidr,
                except: network.except.unwrap_or_default(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
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
        let converted = mesh_tls_authentication(&authentication).unwrap();
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
                .starts_with("spec.identityRefs[0].kind")
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
        assert_eq!(unknown.field, "spec.targetRef.kind");
    }
}
