//! Label selectors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Node;

const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

/// Checks a label selector. An unknown operator would match nothing.
pub(super) fn label_selector(node: &Node<'_>) {
    let fix = "write matchLabels, matchExpressions or both";
    if node.read::<LabelSelector>(fix).is_none() {
        return;
    }
    for expression in node.items_of("matchExpressions") {
        if let Some(operator) = expression.require("operator", "set the operator") {
            operator.one_of(&OPERATORS);
        }
    }
}

/// Checks that exactly one of two fields is present, and returns it with its name.
pub(super) fn exactly_one<'a>(node: &Node<'a>, names: [&str; 2], what: &str) -> Option<Node<'a>> {
    let [first, second] = names;
    match (node.get(first), node.get(second)) {
        (Some(_), Some(_)) => {
            node.malformed(
                &format!("has both {first} and {second}"),
                &format!("remove one of them: {what}"),
            );
            None
        }
        (None, None) => {
            node.malformed(
                &format!("has neither {first} nor {second}"),
                &format!("set one of them: {what}"),
            );
            None
        }
        (found, other) => found.or(other),
    }
}
