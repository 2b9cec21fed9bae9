//! docs/reference/planted-bugs.md.

use mesh_planted::Bug;

use super::KNOWN;

const HEAD: &str = "\
# Planted bugs

`cargo xtask simulate --planted` plants each of these bugs into the proxies, and finds the ones with a script
([simulation.md](../simulation.md#planted-bugs)). The page is written by `cargo xtask simulate --document` from
mesh-planted and from the table in `mesh-simulator/src/planted/known.rs`; a test plays the scripts, and another fails if
the page differs.

| bug | what is wrong | script that shows it | place |
|---|---|---|---|
";

/// The text of the document.
pub fn render() -> String {
    let rows = Bug::ALL.iter().map(|bug| {
        let known = KNOWN.iter().find(|known| known.bug == *bug);
        let (script, place) = match known {
            Some(known) => (format!("`{}`", known.script), known.place),
            None => ("not found".to_owned(), "–"),
        };
        let (name, what) = (bug.name(), bug.description());
        format!("| {name} | {what} | {script} | {place} |\n")
    });
    HEAD.to_owned() + &rows.collect::<String>()
}
