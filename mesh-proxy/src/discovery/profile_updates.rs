//! A subscription to the profile of a name. Inbound requests read the routes in it.

use std::sync::Arc;

use mesh_core::profile::ProfileRoute;

use super::merge::ProfileResponse;
use crate::watch;

/// The current profile of a name, and its changes. Discovery follows the name while it exists.
pub(crate) struct ProfileUpdates(watch::Receiver<Option<ProfileResponse>>);

/// The routes of a Service's profile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceRoutes {
    /// The name of the Service.
    pub(crate) service: Arc<str>,
    pub(crate) routes: Arc<[ProfileRoute]>,
}

impl ProfileUpdates {
    pub(super) fn new(updates: watch::Receiver<Option<ProfileResponse>>) -> Self {
        let mut updates = updates;
        updates.mark_changed();
        Self(updates)
    }

    /// Returns the routes if they may have changed since the last call: `Some(None)` if the name
    /// does not belong to a Service with routes, or if its profile has not arrived.
    pub(crate) fn changed(&mut self) -> Option<Option<ServiceRoutes>> {
        if !self.0.has_changed().unwrap_or(false) {
            return None;
        }
        let response = self.0.borrow_and_update();
        let Some(ProfileResponse::Profile(profile)) = &*response else {
            return Some(None);
        };
        let service = profile.fqn.clone().filter(|_| !profile.routes.is_empty());
        Some(service.map(|service| ServiceRoutes {
            service,
            routes: profile.routes.clone(),
        }))
    }
}
