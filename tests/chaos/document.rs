//! docs/reliability.md: written from the table of faults, with the last result of each. Results of
//! faults that a run leaves out stay as they are in the document.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::fault::{self, Fault};
use crate::outcome::FaultResult;
use crate::table::GROUPS;

/// Where the document is in a checkout.
pub(crate) const PATH: &str = "docs/reliability.md";
/// The entry in the document of a fault that no run has judged.
const NO_RESULT: &str = "none yet";

const HEAD: &str = "\
# Faults and what the mesh promises under them

`cargo xtask chaos` plants the faults of this page and judges the promise under each, by the numbers that load
generators counted themselves. This page is written by it from the table in `tests/chaos/table`, which names the tests
of each fault; a test of that program fails if one of them is renamed, or if this page differs from the table.

```
cargo xtask chaos --list                 # the faults and their tests
cargo xtask chaos                        # all of them on this machine
cargo xtask chaos --fault 39 --seed 7    # one, with what tests choose at random repeated
cargo xtask chaos --long                 # also those that take minutes
cargo xtask chaos --out                  # and the results into this page
cargo xtask chaos --document             # only this page, after a change of the table
```

It needs root, and the packages of `cargo xtask setup`. Tests that need a cluster run when `MESH_TEST_CLUSTER` names the
context of one (CONTRIBUTING.md), and are skipped otherwise. Results go to `target/chaos`: `results.txt`,
`results.json`, and the output of each test that failed. The exit code is 1 if a promise did not hold. Tests that are
not long are part of `cargo xtask test`, too.

*0 lost* means no failed request, no reset stream and no changed byte, in the records of the clients. A fault *held* if
at least one of its tests ran and none failed; where a result names fewer tests than the fault has, the others have not
run. A result names the day, the commit and the seed; then follows what load generators counted. What is not planted,
and which promises do not hold, is in the [limits](#limits) under the same number.
";

const LIMITS: &str = "
## Limits

What is not planted, is planted smaller, or does not hold, and why.
";

/// Writes the document, with these results.
pub(crate) fn update(root: &Path, results: &[FaultResult]) -> anyhow::Result<()> {
    let path = root.join(PATH);
    let mut known = fs::read_to_string(&path).map_or_else(|_| BTreeMap::new(), |text| read(&text));
    for result in results.iter().filter(|result| result.is_judged()) {
        known.insert(result.fault.number, result.summary());
    }
    fs::write(&path, render(&known)).with_context(|| format!("write {PATH}"))
}

fn render(results: &BTreeMap<u8, String>) -> String {
    let mut text = HEAD.to_owned();
    for group in &GROUPS {
        text.push_str(&format!(
            "\n## {}\n\n| # | fault | how it is planted here | promise | last result | tests |\n|---|---|---|---|---|---|\n",
            group.title
        ));
        for fault in group.faults {
            let result = results.get(&fault.number).map_or(NO_RESULT, String::as_str);
            text.push_str(&row(fault, result));
        }
    }
    text.push_str(LIMITS);
    text.push_str("\n| # | limit |\n|---|---|\n");
    for fault in fault::all().filter(|fault| !fault.limit.is_empty()) {
        text.push_str(&format!("| {} | {} |\n", fault.number, fault.limit));
    }
    text
}

fn row(fault: &Fault, result: &str) -> String {
    let tests = fault.tests.iter().map(|test| match test.place.note() {
        "" => format!("`{}`", test.path),
        note => format!("`{}` ({note})", test.path),
    });
    let tests = match tests.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "none, see limits".to_owned(),
        tests => tests,
    };
    format!(
        "| {} | {} | {} | {} | {} | {tests} |\n",
        fault.number,
        fault.name,
        fault.planted,
        fault.promise,
        result.replace('|', "/"),
    )
}

/// Reads the results of a document by number.
fn read(text: &str) -> BTreeMap<u8, String> {
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split(" | ").collect();
        let number = cells.first()?.strip_prefix("| ")?.parse().ok()?;
        let result = cells.get(4).filter(|_| cells.len() == 6)?;
        (*result != NO_RESULT).then(|| (number, (*result).to_owned()))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_is_what_the_table_says() {
        let root = xtask::workspace::root().expect("the test runs in a checkout");
        let text = fs::read_to_string(root.join(PATH)).expect("the document");
        let rendered = render(&read(&text));
        let differing = text
            .lines()
            .zip(rendered.lines())
            .find(|(is, was)| is != was);
        assert!(
            text == rendered,
            "run `cargo xtask chaos --document`: {differing:?}"
        );
    }

    #[test]
    fn results_of_other_runs_stay() {
        let results = BTreeMap::from([(7, "2026-11-26: held; a | b".to_owned())]);
        let text = render(&results);
        let read = read(&text);
        assert_eq!(read.len(), 1);
        assert_eq!(read[&7], "2026-11-26: held; a / b");
        assert_eq!(render(&read), text);
    }

    #[test]
    fn no_cell_of_the_table_breaks_its_row() {
        for fault in fault::all() {
            for cell in [fault.name, fault.planted, fault.promise, fault.limit] {
                assert!(!cell.contains(['|', '\n']), "{}: {cell}", fault.number);
            }
        }
    }
}
