//! The node agent: does it run, which tier did it take and why.

use mesh_core::node::{NodeStatus, SelfTestOutcome, Tier};

use super::{Category, Check, Look, Outcome, Subject};
use crate::node::agent;

pub(crate) const CATEGORY: Category = Category {
    name: "node agent",
    needs_node: true,
    checks: &[
        Check {
            anchor: "agent-answers",
            description: "node agent answers",
            fatal: true,
            look: answers,
        },
        Check {
            anchor: "tier",
            description: "connections are redirected by the best tier",
            fatal: false,
            look: tier,
        },
        Check {
            anchor: "self-test",
            description: "redirection works on this kernel",
            fatal: false,
            look: self_test,
        },
        Check {
            anchor: "agent-warnings",
            description: "nothing on this machine disturbs the redirection",
            fatal: false,
            look: warnings,
        },
    ],
};

fn answers(subject: &Subject) -> Look<'_> {
    ask(subject, |status| {
        Outcome::Ok(format!("version {}", status.agent_version))
    })
}

fn tier(subject: &Subject) -> Look<'_> {
    ask(subject, |status| {
        let text = format!("{}: {}", status.tier, status.reason);
        if status.tier == Tier::Full {
            Outcome::Ok(text)
        } else {
            Outcome::Warn(text)
        }
    })
}

fn self_test(subject: &Subject) -> Look<'_> {
    ask(subject, |status| {
        let count = |outcome| {
            status
                .self_test
                .iter()
                .filter(|case| case.outcome == outcome)
                .count()
        };
        let failed: Vec<String> = status
            .self_test
            .iter()
            .filter(|case| case.outcome == SelfTestOutcome::Failed)
            .map(|case| format!("{} ({})", case.name, case.detail))
            .collect();
        let skipped = count(SelfTestOutcome::Skipped);
        let skipped = if skipped == 0 {
            String::new()
        } else {
            format!(", {skipped} not possible on this kernel")
        };
        match (failed.is_empty(), status.self_test.is_empty()) {
            (true, false) => Outcome::Ok(format!(
                "{} cases passed{skipped}",
                count(SelfTestOutcome::Passed)
            )),
            (true, true) => Outcome::Ok(format!("no eBPF to test on tier {}", status.tier)),
            (false, _) => Outcome::Warn(failed.join("; ")),
        }
    })
}

fn warnings(subject: &Subject) -> Look<'_> {
    ask(subject, |status| {
        if status.warnings.is_empty() {
            Outcome::Ok(String::new())
        } else {
            Outcome::Warn(status.warnings.join("; "))
        }
    })
}

fn ask<'a>(subject: &'a Subject, judge: impl Fn(&NodeStatus) -> Outcome + 'a) -> Look<'a> {
    Box::pin(async move {
        let Some(node) = &subject.node else {
            return Outcome::Fail("no node".to_owned());
        };
        Outcome::of(
            agent::status(&node.instance.agent_socket())
                .await
                .map(|status| judge(&status)),
        )
    })
}
