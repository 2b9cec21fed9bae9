//! `check explain ID`: prints a section of the guide, which is embedded in the program.

use super::register;

/// docs/operations/checks.md at build time.
const TEXT: &str = include_str!("../../../docs/operations/checks.md");

/// Returns the sections with the IDs of their checks.
pub(crate) fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    TEXT.split("\n### ").skip(1).map(|part| {
        let (id, text) = part.split_once('\n').unwrap_or((part, ""));
        // The heading of the next chapter ends the section.
        let text = text.split("\n## ").next().unwrap_or_default();
        (id, text.trim())
    })
}

/// Returns the IDs of all checks, in the order of the output.
pub(crate) fn ids() -> Vec<&'static str> {
    let mut ids = Vec::new();
    for check in register::checks() {
        if !ids.contains(&check.id) {
            ids.push(check.id);
        }
    }
    ids
}

/// Returns the section of a check as plain text. The error names checks with similar IDs.
pub(crate) fn explain(id: &str) -> Result<String, String> {
    let id = id.rsplit('#').next().unwrap_or(id);
    let found = sections().find(|(name, _)| *name == id);
    let (_, text) = found.ok_or_else(|| unknown(id))?;
    let description = register::checks()
        .find(|check| check.id == id)
        .map_or("", |check| check.description);
    Ok(format!("{id}: {description}\n\n{}\n", plain(text)))
}

fn unknown(id: &str) -> String {
    let similar: Vec<&str> = ids()
        .into_iter()
        .filter(|known| !id.is_empty() && known.contains(id))
        .collect();
    match similar.as_slice() {
        [] => format!(
            "unknown check {id:?}; `meshctl check` prints the ID of every row with a problem. All IDs: {}",
            ids().join(", ")
        ),
        similar => format!(
            "unknown check {id:?}; did you mean {}?",
            similar.join(" or ")
        ),
    }
}

/// Replaces links to sections by the command that prints them, and other links by their text.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let parts = link
            .split_once("](")
            .and_then(|(label, after)| Some((label, after.split_once(')')?)));
        let Some((label, (target, after))) = parts.filter(|(label, _)| !label.contains('[')) else {
            plain += before;
            plain.push('[');
            rest = link;
            continue;
        };
        plain += before;
        plain += label;
        if let Some(id) = target.strip_prefix('#') {
            plain += &format!(" (meshctl check explain {id})");
        }
        rest = after;
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explain_prints_the_section_of_a_check() {
        let text = explain("l5d-identity-issuer-cert-is-time-valid").unwrap();
        assert!(
            text.starts_with("l5d-identity-issuer-cert-is-time-valid: the issuer is valid now\n\n")
        );
        assert!(text.contains("kubectl -n linkerd create secret generic linkerd-identity-issuer"));
        assert!(!text.contains("## "), "{text}");
        assert_eq!(explain("docs/operations/checks.md#tier"), explain("tier"));
    }

    #[test]
    fn unknown_id_suggests_similar_ids() {
        let error = explain("webhook-cert-valid").unwrap_err();
        assert!(
            error.contains("did you mean l5d-proxy-injector-webhook-cert-valid"),
            "{error}"
        );
        assert!(explain("").unwrap_err().contains("agent-ready"));
    }

    #[test]
    fn section_links_become_commands() {
        assert_eq!(
            plain("see [that](#tier), [agent.md](agent.md), and a[0]"),
            "see that (meshctl check explain tier), agent.md, and a[0]"
        );
    }
}
