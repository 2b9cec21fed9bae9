//! Reads docs/operations/checks.md.

use std::collections::BTreeMap;

use super::Fault;

pub(super) struct Guide {
    /// The text before the first section.
    beginning: String,
    sections: BTreeMap<String, String>,
}

/// How a hint refers to [`UPGRADE`]; the command is at the guide's beginning.
pub(super) const UPGRADE_STEP: &str = "pgrade";
const UPGRADE: &str =
    "helm upgrade linkerd-control-plane helm/linkerd-control-plane -n linkerd --reuse-values";

impl Guide {
    pub(super) fn read() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations/checks.md");
        let text = std::fs::read_to_string(path).expect("read the guide");
        let mut parts = text.split("\n### ");
        let beginning = one_line(parts.next().unwrap_or_default());
        let section = |part: &str| {
            let (name, text) = part.split_once('\n').unwrap_or((part, ""));
            (name.to_owned(), one_line(text))
        };
        Self {
            beginning,
            sections: parts.map(section).collect(),
        }
    }

    /// Panics unless every step of the repair is in the advice, in the check's section, or in a
    /// section that this one links to.
    pub(super) fn assert_covers(&self, fault: &Fault, advice: &str) {
        let own = self.section(fault.check);
        let pointed_to = own.split("](#").skip(1).filter_map(|rest| {
            let (name, _) = rest.split_once(')')?;
            Some(self.section(name))
        });
        let mut texts = vec![advice, own];
        texts.extend(pointed_to);
        for step in fault.repair_steps {
            assert!(
                texts.iter().any(|text| text.contains(step)),
                "{}: neither the advice nor the guide has {step:?}\nadvice: {advice}",
                fault.name
            );
        }
        assert!(
            self.beginning.contains(UPGRADE),
            "the guide has the upgrade command"
        );
    }

    fn section(&self, check: &str) -> &str {
        let section = self.sections.get(check);
        section.unwrap_or_else(|| panic!("the guide has no section {check}"))
    }
}

/// Returns the command for a step: the step with names substituted, or the fault's command for a
/// sentence.
pub(super) fn command(step: &str, fault: &Fault) -> String {
    if step == UPGRADE_STEP {
        return UPGRADE.to_owned();
    }
    let meaning = |word: &str| {
        let found = fault.substitutions.iter().find(|(name, _)| *name == word);
        found.map(|(_, meaning)| *meaning)
    };
    if let Some(command) = meaning(step) {
        return command.to_owned();
    }
    // Placeholders are in capitals.
    let words = step.split_inclusive(|letter: char| !letter.is_ascii_uppercase());
    words
        .map(|word| {
            let name = word.trim_end_matches(|letter: char| !letter.is_ascii_uppercase());
            let rest = &word[name.len()..];
            format!("{}{rest}", meaning(name).unwrap_or(name))
        })
        .collect()
}

/// Joins the lines of a paragraph or of a command that continues after a backslash.
fn one_line(text: &str) -> String {
    let joined = text.replace("\\\n", "\n");
    joined.split_whitespace().collect::<Vec<_>>().join(" ")
}
