//! Compares requests with and without a retry policy. None of them fails.
//!
//! The policy is the one that `retry.linkerd.io/http: 5xx` makes of a route. The control plane
//! sends it for an address of its own, which leads to the same server.

use anyhow::bail;

use super::Run;
use super::load::Outcome;
use super::row::{Row, Sample};
use super::system::System;
use super::with_and_without::{Feature, Variant, compare, restart};
use super::workload::Load;
use crate::testbed::proxies::{self, ProxySettings};

const CONNECTIONS: u32 = 64;
/// Exported, with the value zero, for each route that has a retry policy.
const RETRIES: &str = "outbound_http_route_retry_requests_total";

struct Retries<'r> {
    run: Run<'r>,
}

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    compare(run, Retries { run })
}

impl Feature for Retries<'_> {
    fn load(&self, variant: Variant) -> Load {
        match variant {
            Variant::With => Load::Retried {
                connections: CONNECTIONS,
            },
            Variant::Without => Load::Wrk {
                connections: CONNECTIONS,
            },
        }
    }

    fn start(&mut self, system: &mut System, variant: Variant) -> anyhow::Result<()> {
        let load = self.load(variant);
        restart(self.run, system, &ProxySettings::default(), load)
    }

    fn finish(
        &mut self,
        system: &mut System,
        variant: Variant,
        _: &Outcome,
        _: &mut Sample,
    ) -> anyhow::Result<()> {
        let metrics = proxies::metrics(&system.pods.client)?;
        check(variant, proxies::counter(&metrics, RETRIES))
    }
}

/// Fails if the policy was not in force, or not only with it, or if requests were retried. No route
/// has a policy if there is no counter of retries.
fn check(variant: Variant, retries: Option<f64>) -> anyhow::Result<()> {
    match (variant, retries) {
        (Variant::With, Some(0.0)) | (Variant::Without, None) => Ok(()),
        (Variant::With, None) => bail!("the client's proxy exports no {RETRIES}"),
        (_, Some(count)) => bail!("the client's proxy counts {count} retries"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_without_their_policy_or_with_retries_fail() {
        assert!(check(Variant::With, Some(0.0)).is_ok());
        assert!(check(Variant::With, Some(1.0)).is_err());
        assert!(check(Variant::With, None).is_err());
        assert!(check(Variant::Without, None).is_ok());
        assert!(check(Variant::Without, Some(0.0)).is_err());
    }
}
