//! The backends of outbound traffic: of routes, and of the filters that mirror requests.

use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::meta::Meta;
use crate::resilience::{PeakEwma, Queue};

/// A target with its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// The object that the target was created from.
    pub meta: Meta,
    /// The endpoints of the backend, if there are any.
    pub target: BackendTarget,
}

/// The target of a backend.
#[derive(Clone, Debug, PartialEq)]
pub enum BackendTarget {
    /// One fixed endpoint.
    Forward(Box<Endpoint>),
    /// Balances over the endpoints of `Destination.Get`.
    Balance {
        /// The authority to resolve.
        authority: Arc<str>,
        /// The load metric of the balancer.
        load: PeakEwma,
        /// The requests that wait for an endpoint.
        queue: Queue,
    },
    /// No target, because the Service does not exist.
    None,
}
