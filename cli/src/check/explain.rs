//! `check explain ID`: the section of the guide, which is part of the program.

use super::CATEGORIES;

/// docs/operations/checks.md, as it was when this program was built.
const TEXT: &str = include_str!("../../../docs/operations/checks.md");

/// The sections, by the check that each is about.
pub(crate) fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    TEXT.split("\n### ").skip(1).map(|part| {
        let (id, text) = part.split_once('\n').unwrap_or((part, ""));
        // The next chapter is not part of the section.
        let text = text.split("\n## ").next().unwrap_or_default();
        (id, text.trim())
    })
}

/// Every check by its ID, in the order in which they are shown.
pub(crate) fn ids() -> Vec<&'static str> {
    let mut ids = Vec::new();
    for check in CATEGORIES.iter().flat_map(|category| category.checks) {
        if !ids.contains(&check.anchor) {
            ids.push(check.anchor);
        }
    }
    ids
}

/// What the guide says of a check, for a terminal; the error names the checks that the ID may have
/// meant.
pub(crate) fn explain(id: &str) -> Result<String, String> {
    let id = id.rsplit('#').next().unwrap_or(id);
    let found = sections().find(|(name, _)| *name == id);
    let (_, text) = found.ok_or_else(|| unknown(id))?;
    let mut checks = CATEGORIES.iter().flat_map(|category| category.checks);
    let description = checks
        .find(|check| check.anchor == id)
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
            "there is no check {id:?}; `meshctl check` names the ID of every row that is not in order. All of them: {}",
            ids().join(", ")
        ),
        similar => format!(
            "there is no check {id:?}; did you mean {}?",
            similar.join(" or ")
        ),
    }
}

/// Links to other sections become the command that shows them; other links keep their text.
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
    fn a_section_is_explained_by_its_id() {
        let text = explain("l5d-identity-issuer-cert-is-time-valid").unwrap();
        assert!(
            text.starts_with("l5d-identity-issuer-cert-is-time-valid: the issuer is valid now\n\n")
        );
        assert!(text.contains("kubectl -n linkerd create secret generic linkerd-identity-issuer"));
        assert!(!text.contains("## "), "{text}");
        assert_eq!(explain("docs/operations/checks.md#tier"), explain("tier"));
    }

    #[test]
    fn an_unknown_id_names_those_that_it_may_have_meant() {
        let error = explain("webhook-cert-valid").unwrap_err();
        assert!(
            error.contains("did you mean l5d-proxy-injector-webhook-cert-valid?"),
            "{error}"
        );
        assert!(explain("").unwrap_err().contains("agent-ready"));
    }

    #[test]
    fn links_become_commands() {
        assert_eq!(
            plain("see [that](#tier), [agent.md](agent.md), and a[0]"),
            "see that (meshctl check explain tier), agent.md, and a[0]"
        );
    }
}
