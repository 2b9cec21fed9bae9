//! Compares requests with and without a retry policy, none of which fails.
//!
//! The policy is the one that `retry.linkerd.io/http: 5xx` makes of a route. The control plane
//! sends it for an address of its own, behind which the same server stands.

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
const RETRIES: &str = "outbound_http_route_retry_requests_total{";

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
        check(variant, retries(&proxies::metrics(&system.pods.client)?))
    }
}

/// Returns the retries that a proxy has counted. `None`: no route has a policy.
fn retries(metrics: &str) -> Option<f64> {
    let counters = metrics.lines().filter(|line| line.starts_with(RETRIES));
    let values = counters.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.reduce(|sum, value| sum + value)
}

/// Fails if the policy was not in force, or not only with it, or if requests were retried.
fn check(variant: Variant, retries: Option<f64>) -> anyhow::Result<()> {
    match (variant, retries) {
        (Variant::With, Some(0.0)) | (Variant::Without, None) => Ok(()),
        (Variant::With, None) => bail!("the client's proxy exports no {RETRIES}...}}"),
        (_, Some(count)) => bail!("the client's proxy counts {count} retries"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_without_their_policy_or_with_retries_fail() {
        let one = "outbound_http_route_retry_requests_total{route_name=\"http\"} 0\n";
        assert_eq!(retries(&format!("# TYPE x counter\n{one}x 1\n")), Some(0.0));
        assert_eq!(retries("x 1\n"), None);
        assert!(check(Variant::With, Some(0.0)).is_ok());
        assert!(check(Variant::With, Some(1.0)).is_err());
        assert!(check(Variant::With, None).is_err());
        assert!(check(Variant::Without, None).is_ok());
        assert!(check(Variant::Without, Some(0.0)).is_err());
    }
}
