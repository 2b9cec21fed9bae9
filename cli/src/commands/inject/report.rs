//! What became of each object of the manifests, one line each.

use mesh_k8s::manifest::{Outcome, Report};

use crate::output::count;

pub(crate) fn report(reports: &[Report]) -> String {
    let mut lines = Vec::new();
    let (untouched, told): (Vec<&Report>, Vec<&Report>) = reports
        .iter()
        .partition(|report| report.outcome == Outcome::Untouched && report.warnings.is_empty());
    for report in told {
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
            Outcome::Untouched => "left as it is".to_owned(),
        };
        lines.push(format!("{object} {outcome}"));
        for warning in &report.warnings {
            lines.push(format!("  warning: {warning}"));
        }
    }
    match (untouched.len(), lines.is_empty()) {
        (0, true) => lines.push("there is no object in the input".to_owned()),
        (0, false) => {}
        (others, _) => lines.push(format!(
            "{} as before",
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
    fn every_object_has_a_line() {
        let reports = [
            one("deployment", Outcome::Injected, &["it has UDP ports"]),
            one(
                "daemonset",
                Outcome::Skipped(vec![SkipReason::HostNetwork]),
                &[],
            ),
            one("configmap", Outcome::Untouched, &[]),
        ];
        let expect = "deployment shop/web injected\n  warning: it has UDP ports\ndaemonset shop/web skipped: hostNetwork is enabled\n1 other object as before";
        assert_eq!(report(&reports), expect);
    }
}
