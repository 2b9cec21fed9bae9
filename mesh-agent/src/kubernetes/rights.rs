//! What the agent may do at the API server. The roles of the chart grant the same: the test below
//! compares them in both directions.

use mesh_core::rights::{self, Right};

/// The chart has the same names.
pub(super) fn of_agent() -> Vec<Right> {
    let read = &["list", "watch"];
    // The meshed pods of the node that are not enrolled.
    rights::all("", "pods", read)
        // Repairs and failures.
        .chain(rights::all("events.k8s.io", "events", &["create", "patch"]))
        // The container runtime of its node, and the removal of the start-up taint.
        .chain(rights::all("", "nodes", read))
        .chain(rights::all("", "nodes", &["patch"]))
        // Whether the agent is restarted, uninstalled or replaced.
        .chain(rights::named("apps", "daemonsets", read, "mesh-agent"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mesh_test_support::rights::{by_account, granted};

    use super::*;

    /// A test of mesh-k8s compares it with the rendered chart.
    const CHART: &str = include_str!("../../../mesh-k8s/testdata/chart/rights.txt");

    #[test]
    fn roles_of_the_chart_are_the_rights_that_the_code_lists() {
        let mut chart = granted(CHART, &[]);
        chart.retain(|account, _| *account == "linkerd-agent/mesh-agent");
        let accounts = BTreeMap::from([("linkerd-agent/mesh-agent", of_agent())]);
        assert_eq!(chart, by_account(accounts));
    }
}
