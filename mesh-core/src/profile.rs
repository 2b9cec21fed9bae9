//! What `GetProfile` tells about a destination: the ServiceProfile, or the single endpoint behind a pod's address.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{endpoint::Endpoint, meta::Meta, resilience::RetryBudget};

/// The profile of one destination.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The service's name, absent when the destination is no service.
    pub fqn: Option<Arc<str>>,
    pub opaque: bool,
    pub routes: Vec<ProfileRoute>,
    pub retry_budget: Option<RetryBudget>,
    /// Weighted split of the traffic among other authorities (`name:port`), none of weight 0.
    pub overrides: Vec<WeightedAuthority>,
    /// The endpoint itself when the destination is a pod or workload address. Its set labels are merged in.
    pub endpoint: Option<Endpoint>,
    pub parent: Option<Meta>,
    pub source: Option<Meta>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedAuthority {
    pub authority: Arc<str>,
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRoute {
    pub condition: RequestMatch,
    pub response_classes: Vec<ResponseClass>,
    /// Without the `rt_` prefix.
    pub labels: BTreeMap<String, String>,
    pub retryable: bool,
    pub timeout: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestMatch {
    All(Vec<RequestMatch>),
    Any(Vec<RequestMatch>),
    Not(Box<RequestMatch>),
    /// Anchored regular expression over the path.
    Path(crate::route::AnchoredRegex),
    Method(http::Method),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseClass {
    pub condition: ResponseMatch,
    pub is_failure: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseMatch {
    All(Vec<ResponseMatch>),
    Any(Vec<ResponseMatch>),
    Not(Box<ResponseMatch>),
    Status { min: u16, max: u16 },
}
