//! Which authorizations apply to a Server or a route.

use crate::model::{
    Authentication, AuthenticationRef, AuthorizationPolicy, AuthorizationTarget, Kind, RouteId,
    Server, ServerAuthorization,
};
use crate::store::Store;

impl AuthorizationPolicy {
    /// Returns whether it authorizes clients to connect to the Server, for all of its routes.
    pub fn is_for_server(&self, server: &Server) -> bool {
        let is_target = match &self.target {
            AuthorizationTarget::Server(name) => *name == server.name.name,
            AuthorizationTarget::Namespace => true,
            AuthorizationTarget::PolicyHttpRoute(_)
            | AuthorizationTarget::GatewayHttpRoute(_)
            | AuthorizationTarget::GatewayGrpcRoute(_) => false,
        };
        is_target && self.name.namespace == server.name.namespace
    }

    /// Returns whether it authorizes clients to send requests that the route matches, beside the
    /// authorizations of the Server.
    pub fn is_for_route(&self, route: &RouteId) -> bool {
        match (route.kind, &self.target) {
            (Kind::PolicyHttpRoute, AuthorizationTarget::PolicyHttpRoute(target))
            | (Kind::GatewayHttpRoute, AuthorizationTarget::GatewayHttpRoute(target))
            | (Kind::GatewayGrpcRoute, AuthorizationTarget::GatewayGrpcRoute(target)) => {
                *target == route.name.name && self.name.namespace == route.name.namespace
            }
            _ => false,
        }
    }

    /// Returns the required authentications.
    ///
    /// # Errors
    ///
    /// The first that does not exist. No client satisfies it, so the policy authorizes none.
    pub fn authentications<'a>(
        &'a self,
        store: &'a Store,
    ) -> Result<Vec<Authentication<'a>>, &'a AuthenticationRef> {
        let required = self.required.iter();
        required
            .map(|reference| store.authentication(reference).ok_or(reference))
            .collect()
    }
}

impl ServerAuthorization {
    /// Returns whether it authorizes clients to connect to the Server.
    pub fn is_for_server(&self, server: &Server) -> bool {
        self.name.namespace == server.name.namespace && self.servers.matches(server)
    }
}
