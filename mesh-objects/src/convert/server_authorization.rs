//! ServerAuthorizations.

use std::sync::Arc;

use mesh_k8s::crd;
use mesh_k8s::crd::server_authorization::{ClientSelector, MeshTlsSelector};

use super::policy::{add_identities, networks};
use super::{ConvertError, name};
use crate::model::{
    ClientAuthentication, IdentitySet, Name, Selector, ServerAuthorization, ServerSelector,
};

pub(crate) fn server_authorization(
    authorization: &crd::ServerAuthorization,
) -> Result<ServerAuthorization, ConvertError> {
    let own = name(&authorization.metadata);
    let spec = &authorization.spec;
    let client = &spec.client;
    let in_client = |error: ConvertError| error.inside("spec.client");
    Ok(ServerAuthorization {
        servers: servers(&spec.server).map_err(|error| error.inside("spec"))?,
        networks: networks(client.networks.as_deref().unwrap_or_default()).map_err(in_client)?,
        authentication: authentication(&own, client).map_err(in_client)?,
        name: own,
    })
}

fn servers(
    server: &crd::server_authorization::ServerSelector,
) -> Result<ServerSelector, ConvertError> {
    let problem = match (&server.name, &server.selector) {
        (Some(name), None) if !name.is_empty() => {
            return Ok(ServerSelector::Name(Arc::from(name.as_str())));
        }
        (None, Some(selector)) => {
            return Ok(ServerSelector::Labels(Selector::from(selector.clone())));
        }
        (_, None) => "selects no Server; set name or selector",
        (Some(_), Some(_)) => "has a name and a selector; remove one of them",
    };
    Err(ConvertError::new("server", problem))
}

fn authentication(
    own: &Name,
    client: &ClientSelector,
) -> Result<ClientAuthentication, ConvertError> {
    match (&client.mesh_tls, client.unauthenticated) {
        (None, true) => Ok(ClientAuthentication::Unauthenticated),
        (Some(tls), false) => tls_authentication(own, tls).map_err(|error| error.inside("meshTLS")),
        (None, false) => Err(ConvertError::new(
            "meshTLS",
            "is missing; set it, or unauthenticated: true for clients without identity",
        )),
        (Some(_), true) => Err(ConvertError::new(
            "unauthenticated",
            "is true beside meshTLS, which requires TLS; remove one of them",
        )),
    }
}

fn tls_authentication(
    own: &Name,
    tls: &MeshTlsSelector,
) -> Result<ClientAuthentication, ConvertError> {
    let mut clients = IdentitySet::default();
    add_identities(&mut clients, &tls.identities)?;
    let accounts = tls.service_accounts.iter().flatten();
    clients.service_accounts = accounts
        .map(|account| {
            let namespace = account.namespace.as_deref().unwrap_or(&own.namespace);
            Name::new(namespace, &account.name)
        })
        .collect();
    match (tls.unauthenticated_tls, clients.is_empty()) {
        (true, true) => Ok(ClientAuthentication::Tls),
        (false, false) => Ok(ClientAuthentication::Identities(clients)),
        (true, false) => Err(ConvertError::new(
            "unauthenticatedTLS",
            "is true beside identities or serviceAccounts, which it would make optional; remove one of them",
        )),
        (false, true) => Err(ConvertError::new(
            "identities",
            "are missing; set identities or serviceAccounts, or unauthenticatedTLS: true for clients without identity",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(spec: &str) -> String {
        let text = format!("metadata: {{name: a, namespace: shop}}\nspec: {spec}");
        let read: crd::ServerAuthorization = serde_norway::from_str(&text).unwrap();
        server_authorization(&read).unwrap_err().to_string()
    }

    #[test]
    fn invalid_field_is_named_with_its_fix() {
        let client = |client: &str| error(&format!("{{server: {{name: web}}, client: {client}}}"));
        let server = |server: &str| {
            error(&format!(
                "{{server: {server}, client: {{unauthenticated: true}}}}"
            ))
        };
        for (found, field, fix) in [
            (
                server("{}"),
                "spec.server: selects no Server",
                "set name or selector",
            ),
            (
                server("{name: ''}"),
                "spec.server: selects no Server",
                "set name or selector",
            ),
            (
                server("{name: web, selector: {}}"),
                "spec.server: has a name and a selector",
                "remove one",
            ),
            (
                client("{}"),
                "spec.client.meshTLS: is missing",
                "unauthenticated: true",
            ),
            (
                client("{unauthenticated: true, meshTLS: {identities: ['*']}}"),
                "spec.client.unauthenticated: is true beside meshTLS",
                "remove one",
            ),
            (
                client("{meshTLS: {}}"),
                "spec.client.meshTLS.identities: are missing",
                "unauthenticatedTLS: true",
            ),
            (
                client("{meshTLS: {identities: []}}"),
                "spec.client.meshTLS.identities: are missing",
                "set identities or serviceAccounts",
            ),
            (
                client("{meshTLS: {unauthenticatedTLS: true, serviceAccounts: [{name: a}]}}"),
                "spec.client.meshTLS.unauthenticatedTLS: is true beside",
                "remove one",
            ),
            (
                client("{meshTLS: {identities: [a, '*.']}}"),
                "spec.client.meshTLS.identities[1]: \"*.\"",
                "such as *.shop.",
            ),
            (
                client(
                    "{unauthenticated: true, networks: [{cidr: 10.0.0.0/8, except: [11.0.0.0/8]}]}",
                ),
                "spec.client.networks[0].except[0]: 11.0.0.0/8 is not inside",
                "except a part of it",
            ),
        ] {
            assert!(found.starts_with(field) && found.contains(fix), "{found}");
        }
    }
}
