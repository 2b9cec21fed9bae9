//! Which HTTPLocalRateLimitPolicy applies to a Server.

use super::age::Age;
use crate::model::{Name, RateLimitPolicy, ReportedObject, ReportedSpec, Server};

/// A rate limit, or its status.
pub trait RateLimited {
    fn name(&self) -> &Name;

    fn created(&self) -> Option<i64>;

    /// Returns the name of the Server; `None` for a limit without effect.
    fn server(&self) -> Option<&str>;
}

impl RateLimited for RateLimitPolicy {
    fn name(&self) -> &Name {
        &self.name
    }

    fn created(&self) -> Option<i64> {
        self.created
    }

    fn server(&self) -> Option<&str> {
        Some(&self.server)
    }
}

impl RateLimited for ReportedObject {
    fn name(&self) -> &Name {
        &self.name
    }

    fn created(&self) -> Option<i64> {
        self.created
    }

    fn server(&self) -> Option<&str> {
        match &self.spec {
            ReportedSpec::RateLimit(target) if target.is_server() && self.problem.is_none() => {
                Some(&target.name)
            }
            _ => None,
        }
    }
}

/// Returns the rate limit of a Server: the oldest. The others have no effect. A status is not read
/// (docs/adr/0136).
pub fn rate_limit_of_server<'a, P: RateLimited>(
    server: &Server,
    candidates: impl IntoIterator<Item = &'a P>,
) -> Option<&'a P> {
    let limits = candidates.into_iter().filter(|limit| {
        limit.name().namespace == server.name.namespace
            && limit.server() == Some(&*server.name.name)
    });
    limits.min_by_key(|limit| Age::new(limit.created(), limit.name()))
}
