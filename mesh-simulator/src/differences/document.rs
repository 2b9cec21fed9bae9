//! docs/reference/differences.md.

use super::{Difference, all};

const HEAD: &str = "\
# Differences between direct and through the mesh

The mesh changes nothing that a client or a server can observe, except for the rows of this page. `cargo xtask
simulate` plays scripts direct and through the proxies, and fails for every other difference
([simulation.md](../simulation.md)). The page is written by `cargo xtask simulate --document` from the table in
`mesh-simulator/src/differences`, which the comparison uses; a test fails if they differ.

Each row is a debt to users: the last column says what it would take to remove it.

| name | difference | reason | affected | script that shows it | what it would take to remove it |
|---|---|---|---|---|---|
";

/// The text of the document.
pub fn render() -> String {
    let rows = all().map(row);
    HEAD.to_owned() + &rows.collect::<String>()
}

fn row(row: &Difference) -> String {
    let Difference {
        name,
        what,
        why,
        affected,
        script,
        removal,
        ..
    } = row;
    format!("| {name} | {what} | {why} | {affected} | `{script}` | {removal} |\n")
}
