//! The authorizations of Servers and routes. Their order has no meaning: a client is authorized if
//! any of them matches.

use std::sync::Arc;

use mesh_core::identity::{self, Identity};
use mesh_core::policy::inbound::{Authentication, Authorization, Network, Suffix, all_networks};

use super::policy_resource;
use crate::model::{
    self, AuthorizationPolicy, ClientAuthentication, IdentitySet, Name, RouteId, Server,
    ServerAuthorization,
};
use crate::policy::settings::PolicySettings;
use crate::store::Store;

/// Returns the authorizations of policies for the Server and its namespace, of
/// ServerAuthorizations, and of its access policy.
pub(super) fn of_server(
    store: &Store,
    settings: &PolicySettings,
    server: &Server,
) -> Vec<Authorization> {
    let namespace = &server.name.namespace;
    let mut authorizations = of_policies(store, settings, namespace, |policy| {
        policy.is_for_server(server)
    });
    let of_server = store
        .server_authorizations_in(namespace)
        .filter(|authorization| authorization.is_for_server(server));
    authorizations.extend(of_server.map(|it| of_server_authorization(settings, it)));
    authorizations.extend(server.access.authorizations(&settings.cluster_networks));
    authorizations
}

/// Returns the authorizations of policies for a route. They apply in addition to the authorizations
/// for its Server.
pub(super) fn of_route(
    store: &Store,
    settings: &PolicySettings,
    route: &RouteId,
) -> Vec<Authorization> {
    of_policies(store, settings, &route.name.namespace, |policy| {
        policy.is_for_route(route)
    })
}

/// Returns the identity of a ServiceAccount; `None` if no ServiceAccount can have the name.
pub(super) fn account(account: &Name, settings: &PolicySettings) -> Option<Identity> {
    let id = identity::service_account(
        &account.name,
        &account.namespace,
        &settings.control_namespace,
        &settings.identity_domain,
    );
    Identity::parse(&id).ok()
}

fn of_policies(
    store: &Store,
    settings: &PolicySettings,
    namespace: &Arc<str>,
    applies: impl Fn(&AuthorizationPolicy) -> bool,
) -> Vec<Authorization> {
    store
        .authorization_policies_in(namespace)
        .filter(|policy| applies(policy))
        .filter_map(|policy| of_policy(store, settings, policy))
        .collect()
}

/// Returns the authorization of a policy; `None` if it authorizes no client.
fn of_policy(
    store: &Store,
    settings: &PolicySettings,
    policy: &AuthorizationPolicy,
) -> Option<Authorization> {
    let mut networks = None;
    let mut authentication = Authentication::Unauthenticated;
    for found in policy.authentications(store).ok()? {
        match found {
            model::Authentication::Network(found) => networks = Some(found.networks.clone()),
            model::Authentication::ServiceAccount(name) => {
                authentication = Authentication::TlsAuthenticated {
                    identities: vec![account(name, settings)?],
                    suffixes: Vec::new(),
                };
            }
            model::Authentication::MeshTls(found) => {
                authentication = identified(&found.clients, settings);
            }
        }
    }
    Some(Authorization {
        meta: policy_resource("authorizationpolicy", &policy.name),
        networks: networks.unwrap_or_else(all_networks),
        authentication,
    })
}

fn of_server_authorization(
    settings: &PolicySettings,
    authorization: &ServerAuthorization,
) -> Authorization {
    let networks = if authorization.networks.is_empty() {
        let cluster = settings.cluster_networks.iter();
        cluster.copied().map(Network::from).collect()
    } else {
        authorization.networks.clone()
    };
    Authorization {
        meta: policy_resource("serverauthorization", &authorization.name),
        networks,
        authentication: match &authorization.authentication {
            ClientAuthentication::Unauthenticated => Authentication::Unauthenticated,
            ClientAuthentication::Tls => Authentication::TlsUnauthenticated,
            ClientAuthentication::Identities(clients) => identified(clients, settings),
        },
    }
}

fn identified(clients: &IdentitySet, settings: &PolicySettings) -> Authentication {
    let accounts = clients.service_accounts.iter();
    let accounts = accounts.filter_map(|name| account(name, settings));
    let namespaces = clients.namespaces.iter();
    let namespaces = namespaces.map(|namespace| namespace_suffix(namespace, settings));
    Authentication::TlsAuthenticated {
        identities: clients.identities.iter().cloned().chain(accounts).collect(),
        suffixes: clients.suffixes.iter().cloned().chain(namespaces).collect(),
    }
}

/// Returns the suffix of the identities of all ServiceAccounts of a namespace.
fn namespace_suffix(namespace: &str, settings: &PolicySettings) -> Suffix {
    let suffix = format!(
        "{namespace}.serviceaccount.identity.{}.{}",
        settings.control_namespace, settings.identity_domain
    );
    Suffix(suffix.split('.').map(Arc::from).collect())
}
