//! The report of `inject` and `uninject`: one line for each changed object.

use mesh_k8s::manifest::{Outcome, Report};

use crate::output::count;

pub(crate) fn report(reports: &[Report]) -> String {
    let mut lines = Vec::new();
    let (unchanged, changed): (Vec<&Report>, Vec<&Report>) = reports
        .iter()
        .partition(|report| report.outcome == Outcome::Unchanged && report.warnings.is_empty());
    for report in changed {
        let object = name(report);
        let outcome = match &report.outcome {
            Outcome::Injected => "injected".to_owned(),
            Outcome::Annotated => "annotated".to_owned(),
            Outcome::Uninjected => "uninjected".to_owned(),
            Outcome::Skipped(reasons) => {
                let reasons: Vec<&str> = reasons.iter().map(|reason| reason.text()).collect();
                format!("skipped: {}", reasons.join("; "))
            }
            Outcome::Refused(problems) => format!("refused: {}", problems.join("; ")),
            Outcome::Unchanged => "unchanged".to_owned(),
        };
        lines.push(format!("{object} {outcome}"));
        for warning in &report.warnings {
            lines.push(format!("  warning: {warning}"));
        }
    }
    match (unchanged.len(), lines.is_empty()) {
        (0, true) => lines.push("the input has no objects".to_owned()),
        (0, false) => {}
        (others, _) => lines.push(format!(
            "{} unchanged",
            count(others, "other object", "other objects")
        )),
    }
    lines.join("\n")
}

fn name(report: &Report) -> String {
    let kind = match report.kind.as_str() {
        "" => "document",
        kind => kind,
    };
    match &report.namespace {
        Some(namespace) => format!("{kind} {namespace}/{}", report.name),
        None => format!("{kind} {}", report.name),
    }
}

#[cfg(test)]
mod tests {
    use mesh_k8s::inject::SkipReason;

    use super::*;

    fn one(kind: &str, outcome: Outcome, warnings: &[&str]) -> Report {
        Report {
            kind: kind.to_owned(),
            namespace: Some("shop".to_owned()),
            name: "web".to_owned(),
            outcome,
            warnings: warnings.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    #[test]
    fn report_has_a_line_for_each_changed_object() {
        let reports = [
            one("deployment", Outcome::Injected, &["it has UDP ports"]),
            one(
                "daemonset",
                Outcome::Skipped(vec![SkipReason::HostNetwork]),
                &[],
            ),
            one("configmap", Outcome::Unchanged, &[]),
        ];
        let expect = "deployment shop/web injected\n  warning: it has UDP ports\ndaemonset shop/web skipped: hostNetwork is enabled\n1 other object unchanged";
        assert_eq!(report(&reports), expect);
    }
}
