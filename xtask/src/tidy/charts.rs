//! House rules about the Helm charts: every value is explained, versions agree, and two renders of
//! the same values give the same objects.

use super::Finding;
use super::source::has_word;
use super::tree::{File, Tree};

const DIRECTORY: &str = "helm/";

/// Template functions whose result changes with each render: an upgrade would replace keys that
/// proxies trust, or restart unchanged pods.
const UNSTEADY: &str = "\
    derivePassword genCA genCAWithKey genPrivateKey genSelfSignedCert genSignedCert htpasswd now \
    randAlpha randAlphaNum randBytes randNumeric uuidv4";

/// Reports tabs, which YAML forbids, and trailing white space.
pub(crate) fn white_space(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, number, line) in lines(tree, "") {
        let mut add = |advice: &str| findings.push(file.finding(number, "chart-space", advice));
        if line.contains('\t') {
            add("indent with spaces, not with a tab");
        }
        if line.ends_with(' ') {
            add("remove the space at the end of the line");
        }
    }
    findings
}

/// Reports chart values without a comment in helm-docs format (`# -- …`).
pub(crate) fn documented_values(tree: &Tree) -> Vec<Finding> {
    let values = charts(tree).filter(|file| file.path.ends_with("/values.yaml"));
    let mut findings = Vec::new();
    for file in values {
        findings.extend(undocumented(&file.text).map(|(line, key)| {
            let advice = format!("say above it what `{key}` does: `# -- …`");
            file.finding(line, "chart-values", advice)
        }));
    }
    findings
}

/// Reports charts whose version differs from the programs'.
pub(crate) fn versions(tree: &Tree) -> Vec<Finding> {
    let Some(version) = tree
        .file("Cargo.toml")
        .and_then(|file| value(&file.text, "version", " = "))
    else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for chart in charts(tree).filter(|file| file.path.ends_with("/Chart.yaml")) {
        for key in ["version", "appVersion"] {
            if value(&chart.text, key, ": ") != Some(version) {
                let advice = format!("`{key}` is that of the workspace, {version}");
                findings.push(chart.finding(1, "chart-version", advice));
            }
        }
    }
    findings
}

/// Reports template functions that make renders differ.
pub(crate) fn steady_templates(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, number, line) in lines(tree, "/templates/") {
        for action in actions(line) {
            let action = without_texts(action);
            let unsteady = UNSTEADY.split(' ').find(|name| has_word(&action, name));
            findings.extend(unsteady.map(|name| {
                let advice = format!(
                    "`{name}` gives another result at every render; let a program of the control plane make it once"
                );
                file.finding(number, "chart-render", advice)
            }));
        }
    }
    findings
}

fn charts(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.files
        .iter()
        .filter(|file| file.path.starts_with(DIRECTORY))
}

fn lines<'a>(tree: &'a Tree, below: &'a str) -> impl Iterator<Item = (&'a File, usize, &'a str)> {
    let files = charts(tree).filter(move |file| file.path.contains(below));
    files.flat_map(|file| {
        let numbered = file.text.lines().enumerate();
        numbered.map(move |(index, line)| (file, index + 1, line))
    })
}

/// The text between `{{` and `}}` on a line; comments are not actions.
fn actions(line: &str) -> impl Iterator<Item = &str> {
    line.split("{{")
        .skip(1)
        .filter_map(|rest| rest.split("}}").next())
        .filter(|action| {
            !action
                .trim_start_matches('-')
                .trim_start()
                .starts_with("/*")
        })
}

/// An action without its quoted strings.
fn without_texts(action: &str) -> String {
    action.split('"').step_by(2).collect()
}

/// The first value of a key at the beginning of a line, without quotes.
fn value<'a>(text: &'a str, key: &str, separator: &str) -> Option<&'a str> {
    let found = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(separator))?;
    Some(found.trim().trim_matches('"'))
}

/// The keys without a `# --` comment above them. Keys in a list, and keys that are labels or
/// annotations of Kubernetes (`kubernetes.io/os`), are parts of a value and no values.
fn undocumented(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut documented = false;
    let mut list: Option<usize> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if let Some(comment) = content.strip_prefix('#') {
            documented |= comment.trim_start().starts_with("-- ");
            return None;
        }
        let had_comment = std::mem::take(&mut documented);
        if content.is_empty() {
            return None;
        }
        if content.starts_with("- ") {
            list = Some(indent);
            return None;
        }
        if list.is_some_and(|list| indent > list) {
            return None;
        }
        list = None;
        let (key, _) = content.split_once(':')?;
        (!had_comment && !key.contains('/')).then_some((index + 1, key))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn undocumented_chart_value_is_reported() {
        let text = "\
# Values of the chart.

# -- The agent
agent:
  # -- Tolerations, of which
  # there are many
  tolerations:
  - operator: Exists
    effect: NoSchedule
  nodeSelector:
    kubernetes.io/os: linux
proxy: {}
";
        let found: Vec<_> = undocumented(text).collect();
        assert_eq!(found, [(10, "nodeSelector"), (12, "proxy")]);
    }

    #[test]
    fn value_comments_are_required_only_in_values_yaml() {
        let tree = Tree::of(&[
            ("helm/a/values.yaml", "a: 1\n"),
            ("helm/a/values-ha.yaml", "a: 1\n"),
            ("examples/values.yaml", "a: 1\n"),
        ]);
        let found = documented_values(&tree);
        assert_eq!(places(&found), [("helm/a/values.yaml", 1)]);
    }

    #[test]
    fn chart_version_must_match_workspace() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace.package]\nversion = \"0.2.0\"\n"),
            (
                "helm/a/Chart.yaml",
                "version: 0.2.0\nappVersion: \"0.2.0\"\n",
            ),
            ("helm/b/Chart.yaml", "version: 0.2.0\nappVersion: 0.1.0\n"),
        ]);
        assert_eq!(places(&versions(&tree)), [("helm/b/Chart.yaml", 1)]);
    }

    #[test]
    fn random_template_functions_are_reported() {
        let tree = Tree::of(&[(
            "helm/a/templates/secret.yaml",
            "{{- /* not genCA */}}\nkey: {{ genCA \"x\" 1 }}\nnow: {{ fail \"do it now\" }}\n",
        )]);
        let found = steady_templates(&tree);
        assert_eq!(places(&found), [("helm/a/templates/secret.yaml", 2)]);
    }

    #[test]
    fn tabs_and_trailing_spaces_are_reported() {
        let tree = Tree::of(&[("helm/a/values.yaml", "a:\n\tb: 1\nc: 2 \n")]);
        let file = "helm/a/values.yaml";
        assert_eq!(places(&white_space(&tree)), [(file, 2), (file, 3)]);
    }
}
