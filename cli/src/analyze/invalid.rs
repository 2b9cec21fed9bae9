//! Objects that the webhooks of the mesh deny.

use mesh_k8s::validate::{self, Denied, Submission};

use super::finding::Finding;
use super::objects::{GATEWAY, Object, Objects, POLICY};

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    let validated = |object: &&Object| [POLICY, GATEWAY].contains(&&*object.group);
    for object in objects.iter().filter(validated) {
        let submission = Submission {
            group: &object.group,
            kind: &object.kind,
            namespace: &object.namespace,
            object: &object.json,
        };
        // Kinds of the Gateway API without rules belong to other controllers.
        let Err(Denied::Invalid(invalid)) = validate::policy(submission) else {
            continue;
        };
        findings.extend(invalid.errors.iter().map(|error| {
            let problem = match &error.value {
                Some(value) => format!("{value} {}", error.problem),
                None => error.problem.clone(),
            };
            Finding::new(object, &*error.field, "invalid", problem, &*error.fix)
        }));
    }
}
