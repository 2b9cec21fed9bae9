//! House rule: the modules of a package do not import each other in a circle, so that each can be
//! read, tested and replaced without the modules that build on it. Imports are read as text: from
//! `use` statements and from other paths that begin with `crate`, `super`, a child or an imported
//! module.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Finding;
use super::tree::{File, Tree};

/// The files of all packages by module: the path without `.rs`.
type Modules<'a> = BTreeMap<&'a str, &'a File>;

/// The imports of a module, by the module that they are from.
type Imports = BTreeMap<String, Import>;

#[derive(Default)]
struct Import {
    /// The first line that imports or uses one of the names.
    line: usize,
    names: BTreeSet<String>,
}

/// Reports modules that import each other, the shortest circle of each. An import from an ancestor
/// does not count, because a module is part of its ancestors.
pub(crate) fn import_cycles(tree: &Tree) -> Vec<Finding> {
    let production = tree.rust_files().filter(|file| !file.is_test());
    let modules: Modules<'_> = production
        .filter_map(|file| Some((module(&file.path)?, file)))
        .collect();
    let imports: BTreeMap<&str, Imports> = modules
        .iter()
        .map(|(module, file)| (*module, imports(module, file, &modules)))
        .collect();
    let mut findings = Vec::new();
    let mut reported = BTreeSet::new();
    for (start, file) in &modules {
        let cycle = shortest_cycle(start, &imports);
        if cycle.is_empty() || cycle.iter().any(|module| reported.contains(module)) {
            continue;
        }
        let imported = cycle.iter().skip(1).chain(&cycle[..1]);
        let pairs = cycle.iter().zip(imported);
        let parts = pairs.clone().map(|(module, imported)| {
            let names = imports[module][*imported].names.iter();
            let names: Vec<&str> = names.map(String::as_str).collect();
            format!(
                "{module}.rs imports {} from {imported}.rs",
                names.join(", ")
            )
        });
        let parts: Vec<String> = parts.collect();
        let mut lines = pairs.map(|(module, imported)| imports[module][*imported].line);
        let advice = "move what they share to a module that imports none of them";
        let advice = format!("{}: {advice}", parts.join("; "));
        findings.push(file.finding(lines.next().unwrap_or(1), "import-cycles", advice));
        reported.extend(cycle);
    }
    findings
}

/// Returns the module of a file, unless it is the root of a crate.
fn module(path: &str) -> Option<&str> {
    let module = path.strip_suffix(".rs")?;
    let (_, name) = module.split_once("/src/")?;
    (!matches!(name, "lib" | "main") && !name.starts_with("bin/")).then_some(module)
}

/// Splits the module's name from its parent.
fn split(module: &str) -> (&str, &str) {
    module.rsplit_once('/').unwrap_or(("", module))
}

fn imports(module: &str, file: &File, modules: &Modules<'_>) -> Imports {
    let root = module.split_inclusive("/src").next().unwrap_or_default();
    let starts = [
        ("crate", root),
        ("self", module),
        ("super", split(module).0),
    ];
    let mut known = starts
        .map(|(name, module)| (name.to_owned(), module.to_owned()))
        .into();
    let paths = paths(file);
    for (_, path) in &paths {
        if let Some((imported, None)) = resolve(path, &known, modules) {
            known.insert(split(&imported).1.to_owned(), imported);
        }
    }
    let mut imports = Imports::new();
    for (line, path) in &paths {
        let Some((imported, name)) = resolve(path, &known, modules) else {
            continue;
        };
        if format!("{module}/").starts_with(&format!("{imported}/")) {
            continue;
        }
        let import = imports.entry(imported).or_insert_with(|| Import {
            line: *line,
            ..Import::default()
        });
        import.names.extend(name.map(ToOwned::to_owned));
    }
    // All of a module is imported, and none of its names is used in a path.
    for (imported, import) in &mut imports {
        if import.names.is_empty() {
            import.names.insert(split(imported).1.to_owned());
        }
    }
    imports
}

/// Returns the module of a path, and the name in it that the path begins with. Paths of other
/// crates have none.
fn resolve<'a>(
    path: &'a str,
    known: &BTreeMap<String, String>,
    modules: &Modules<'_>,
) -> Option<(String, Option<&'a str>)> {
    let child = |module: &str, name: &str| {
        let child = format!("{module}/{name}");
        modules.contains_key(child.as_str()).then_some(child)
    };
    let (first, mut rest) = path.split_once("::")?;
    let mut module = known
        .get(first)
        .cloned()
        .or_else(|| child(&known["self"], first))?;
    loop {
        let (name, after) = rest.split_once("::").unwrap_or((rest, ""));
        module = match name {
            "" | "self" => return Some((module, None)),
            "super" => split(&module).0.to_owned(),
            _ => match child(&module, name) {
                Some(child) => child,
                None => return Some((module, Some(name))),
            },
        };
        rest = after;
    }
}

/// Returns the paths in a file with their lines; those in the braces of a `use` are completed.
fn paths(file: &File) -> Vec<(usize, String)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut paths = Vec::new();
    let mut groups: Vec<String> = Vec::new();
    for (line, code) in file.production_code() {
        if groups.is_empty() && !code.contains("::") {
            continue;
        }
        let mut rest = code;
        while let Some(start) = rest.find(|c: char| is_word(c) || c == '}') {
            rest = &rest[start..];
            if let Some(after) = rest.strip_prefix('}') {
                groups.pop();
                rest = after;
                continue;
            }
            let end = rest
                .find(|c: char| !is_word(c) && c != ':')
                .unwrap_or(rest.len());
            let path = groups.last().cloned().unwrap_or_default() + &rest[..end];
            rest = &rest[end..];
            if path.ends_with("::") && rest.starts_with('{') {
                groups.push(path);
            } else if path.contains("::") {
                paths.push((line, path));
            }
        }
    }
    paths
}

/// Returns the shortest circle of imports that begins with a module; empty if there is none.
fn shortest_cycle<'a>(start: &'a str, imports: &'a BTreeMap<&str, Imports>) -> Vec<&'a str> {
    let mut importers = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(importer) = queue.pop_front() {
        for imported in imports[importer].keys().map(String::as_str) {
            if imported == start {
                let mut cycle = vec![importer];
                while let Some(importer) = importers.get(cycle[cycle.len() - 1]) {
                    cycle.push(*importer);
                }
                cycle.reverse();
                return cycle;
            }
            importers.entry(imported).or_insert_with(|| {
                queue.push_back(imported);
                importer
            });
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let findings = import_cycles(&Tree::of(files));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn cycle_is_reported_once_with_its_files_and_names() {
        let findings = found(&[
            (
                "p/src/a.rs",
                "//! A.\n\nuse std::fs;\nuse super::b::{\n    self,\n    One,\n};\nfn f() { b::two() }\n",
            ),
            (
                "p/src/b.rs",
                "use crate::c;\nfn f() -> c::Three { c::four::<u8>() }\n",
            ),
            ("p/src/c.rs", "fn f() { super::a::five() }\n"),
            ("q/src/a.rs", "use super::b::X;\n"),
            ("q/src/b.rs", "use p::a::X;\n"),
        ]);
        assert_eq!(
            findings,
            [
                "p/src/a.rs:5: import-cycles: p/src/a.rs imports One, two from p/src/b.rs; p/src/b.rs imports Three, four from p/src/c.rs; p/src/c.rs imports five from p/src/a.rs: move what they share to a module that imports none of them"
            ]
        );
    }

    #[test]
    fn module_and_its_descendants_are_not_a_cycle() {
        let findings = found(&[
            ("p/src/lib.rs", "mod a;\nuse a::A;\n"),
            ("p/src/a.rs", "mod b;\nuse b::B;\nuse crate::X;\n"),
            ("p/src/a/b.rs", "mod c;\nuse super::A;\nuse c::C;\n"),
            ("p/src/a/b/c.rs", "use crate::a::A;\nuse super::super::Y;\n"),
        ]);
        assert_eq!(findings, [""; 0]);
    }

    #[test]
    fn cycle_through_a_child_is_reported() {
        let findings = found(&[
            ("p/src/a.rs", "mod child;\nuse child::X;\n"),
            ("p/src/a/child.rs", "use crate::b::Y;\n"),
            ("p/src/b.rs", "use crate::a::Z;\n"),
        ]);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("p/src/a.rs:2: "), "{findings:?}");
    }

    #[test]
    fn tests_comments_and_literals_do_not_import() {
        let findings = found(&[
            ("p/src/a.rs", "use super::b::X;\n#[cfg(test)]\nmod tests;\n"),
            ("p/src/a/tests.rs", "use crate::b::X;\n"),
            (
                "p/src/b.rs",
                "// crate::a::X\nconst A: &str = \"crate::a::X\";\n#[cfg(test)]\nmod tests {\n    use crate::a::X;\n}\n",
            ),
        ]);
        assert_eq!(findings, [""; 0]);
    }
}
