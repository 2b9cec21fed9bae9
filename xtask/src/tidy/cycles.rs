//! House rules: neither the modules of a package nor its folders import each other in a circle, so
//! that each can be read, tested and replaced without what builds on it. Imports are read as text:
//! from `use` statements and from other paths that begin with `crate`, `super`, a child or an
//! imported module.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Finding;
use super::source::has_word;
use super::tree::{File, Tree};

/// The files of all packages by module: the path without `.rs`.
type Modules<'a> = BTreeMap<&'a str, &'a File>;

/// The imports of a module, by the module that they are from.
type Imports = BTreeMap<String, Import>;

#[derive(Clone, Default)]
struct Import {
    /// The first line that imports or uses one of the names.
    line: usize,
    names: BTreeSet<String>,
}

/// A path in a file.
struct Path {
    line: usize,
    text: String,
    statement: Statement,
}

/// The statement that a path is part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Statement {
    Use,
    PubUse,
    Other,
}

/// The names in the `use` statements of a file.
struct Uses {
    imported: BTreeSet<String>,
    /// The names that the file does not use otherwise.
    passed_on: BTreeSet<String>,
}

/// One import between two parts of a folder.
struct Example<'a> {
    importer: &'a str,
    imported: &'a str,
    import: Import,
}

/// The imports between the parts of a folder: its children, each with all below it, and its own
/// file.
type Parts<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Example<'a>>>;

const ADVICE: &str = "move what they share to a module that imports none of them";

/// Reports modules that import each other, the shortest circle of each. An import from an ancestor
/// does not count, because a module is part of its ancestors; [`folder_cycles`] counts it.
pub(crate) fn import_cycles(tree: &Tree) -> Vec<Finding> {
    let modules = modules(tree);
    let mut all = all_imports(&modules);
    for (module, imports) in &mut all {
        imports.retain(|imported, _| !is_within(module, imported));
    }
    let graph = all.iter().map(|(module, imports)| {
        let imported = imports.keys().map(String::as_str);
        (*module, imported.collect())
    });
    let graph: BTreeMap<&str, Vec<&str>> = graph.collect();
    let mut findings = Vec::new();
    let mut reported = BTreeSet::new();
    for (start, file) in &modules {
        let cycle = shortest_cycle(start, &graph);
        if cycle.is_empty() || cycle.iter().any(|module| reported.contains(module)) {
            continue;
        }
        let pairs = pairs(&cycle);
        let parts =
            pairs.map(|(module, imported)| describe(module, imported, &all[module][imported]));
        let parts: Vec<String> = parts.collect();
        let line = all[start][*cycle.get(1).unwrap_or(start)].line;
        let advice = format!("{}: {ADVICE}", parts.join("; "));
        findings.push(file.finding(line, "import-cycles", advice));
        reported.extend(cycle);
    }
    findings
}

/// Reports folders that import each other, the shortest circle of each. At every level, the parts
/// of a folder are its children, each with all below it, and its own file (`a.rs` of `a/`). That
/// file and a child without a folder may import each other, because both are code of one folder.
/// Names that a file imports itself, whether or not it passes them on, are not its own.
pub(crate) fn folder_cycles(tree: &Tree) -> Vec<Finding> {
    let modules = modules(tree);
    let all = all_imports(&modules);
    let uses = modules
        .iter()
        .map(|(module, file)| (*module, Uses::of(file)));
    let uses: BTreeMap<&str, Uses> = uses.collect();
    let mut folders: BTreeMap<&str, Parts<'_>> = BTreeMap::new();
    for (importer, imports) in &all {
        for (imported, import) in imports {
            let Some((imported, _)) = modules.get_key_value(imported.as_str()) else {
                continue;
            };
            let mut import = import.clone();
            if is_within(importer, imported) {
                let uses = &uses[imported];
                import.names.retain(|name| !uses.imported.contains(name));
            } else if is_within(imported, importer) {
                let uses = &uses[importer];
                import.names.retain(|name| !uses.passed_on.contains(name));
            }
            if import.names.is_empty() {
                continue;
            }
            let folder = common_folder(importer, imported);
            let parts = folders.entry(folder).or_default();
            let importing = parts.entry(part(folder, importer)).or_default();
            importing.entry(part(folder, imported)).or_insert(Example {
                importer,
                imported,
                import,
            });
        }
    }
    let mut findings = Vec::new();
    for (folder, parts) in &folders {
        let graph = parts.iter().map(|(part, imports)| {
            let imported = imports.keys().copied();
            (*part, imported.collect())
        });
        let graph: BTreeMap<&str, Vec<&str>> = graph.collect();
        let mut reported = BTreeSet::new();
        for start in parts.keys().filter(|part| *part != folder) {
            let has_folder = modules.keys().any(|it| it != start && is_within(it, start));
            let cycle = if has_folder {
                shortest_cycle(start, &graph)
            } else {
                Vec::new()
            };
            if cycle.is_empty() || cycle.iter().any(|part| reported.contains(part)) {
                continue;
            }
            let examples = pairs(&cycle).map(|(part, imported)| &parts[part][imported]);
            let examples: Vec<&Example<'_>> = examples.collect();
            let lines = examples
                .iter()
                .map(|it| describe(it.importer, it.imported, &it.import));
            let lines: Vec<String> = lines.collect();
            let first = examples[0];
            let advice = format!("{}: {ADVICE}", lines.join("; "));
            findings.push(modules[first.importer].finding(
                first.import.line,
                "folder-cycles",
                advice,
            ));
            reported.extend(cycle.into_iter().filter(|part| part != folder));
        }
    }
    findings
}

/// Returns the production code of all packages.
fn modules(tree: &Tree) -> Modules<'_> {
    let production = tree.rust_files().filter(|file| !file.is_test());
    production
        .filter_map(|file| Some((module(&file.path)?, file)))
        .collect()
}

fn all_imports<'a>(modules: &Modules<'a>) -> BTreeMap<&'a str, Imports> {
    let imports = modules
        .iter()
        .map(|(module, file)| (*module, imports(module, file, modules)));
    imports.collect()
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

/// Returns whether a module is the other one or below it.
fn is_within(module: &str, ancestor: &str) -> bool {
    let below = module.strip_prefix(ancestor);
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// Returns the deepest folder that both modules are in, or one of them if the other is below it.
fn common_folder<'a>(module: &'a str, other: &str) -> &'a str {
    let mut folder = module;
    while !is_within(other, folder) {
        folder = split(folder).0;
    }
    folder
}

/// Returns the child of a folder that a module is or is below, or the folder's own file.
fn part<'a>(folder: &str, module: &'a str) -> &'a str {
    let below = module[folder.len()..].strip_prefix('/').unwrap_or_default();
    let end = below
        .find('/')
        .map_or(module.len(), |at| folder.len() + 1 + at);
    &module[..end]
}

/// Returns each module of a circle with the one that it imports.
fn pairs<'a>(cycle: &[&'a str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    let imported = cycle.iter().skip(1).chain(&cycle[..1]);
    cycle.iter().copied().zip(imported.copied())
}

fn describe(importer: &str, imported: &str, import: &Import) -> String {
    let names: Vec<&str> = import.names.iter().map(String::as_str).collect();
    format!(
        "{importer}.rs imports {} from {imported}.rs",
        names.join(", ")
    )
}

/// Returns the imports of a module, also those from its ancestors.
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
    for path in &paths {
        if let Some((imported, None)) = resolve(&path.text, &known, modules) {
            known.insert(split(&imported).1.to_owned(), imported);
        }
    }
    let mut imports = Imports::new();
    for path in &paths {
        let Some((imported, name)) = resolve(&path.text, &known, modules) else {
            continue;
        };
        if imported == module {
            continue;
        }
        let import = imports.entry(imported).or_insert_with(|| Import {
            line: path.line,
            ..Import::default()
        });
        import.names.extend(name.map(ToOwned::to_owned));
    }
    // An ancestor without names is a visibility, as `pub(in crate::a)`.
    imports.retain(|imported, import| !import.names.is_empty() || !is_within(module, imported));
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

impl Uses {
    fn of(file: &File) -> Self {
        let mut paths = paths(file);
        paths.retain(|path| path.statement != Statement::Other);
        let names = |only: Option<Statement>| {
            let paths = paths.iter();
            let chosen = paths.filter(move |path| only.is_none_or(|only| path.statement == only));
            let names = chosen.filter_map(|path| Some(path.text.rsplit_once("::")?.1.to_owned()));
            names.collect::<BTreeSet<String>>()
        };
        let lines: BTreeSet<usize> = paths.iter().map(|path| path.line).collect();
        let is_used = |name: &String| {
            let mut code = file.production_code();
            code.any(|(line, code)| !lines.contains(&line) && has_word(code, name))
        };
        let mut passed_on = names(Some(Statement::PubUse));
        passed_on.retain(|name| !is_used(name));
        Self {
            imported: names(None),
            passed_on,
        }
    }
}

/// Returns the paths in a file with their lines; those in the braces of a `use` are completed.
fn paths(file: &File) -> Vec<Path> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut paths = Vec::new();
    let mut groups: Vec<String> = Vec::new();
    let mut statement = Statement::Other;
    for (line, code) in file.production_code() {
        let start = code.trim_start();
        if start.starts_with("use ") {
            statement = Statement::Use;
        } else if start.starts_with("pub") && has_word(start, "use") {
            statement = Statement::PubUse;
        }
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
            } else if path.contains("::") && !path.ends_with("::as") {
                paths.push(Path {
                    line,
                    text: path,
                    statement,
                });
            }
        }
        if code.contains(';') {
            statement = Statement::Other;
        }
    }
    paths
}

/// Returns the shortest circle of imports that begins with a module; empty if there is none.
fn shortest_cycle<'a>(start: &'a str, imports: &BTreeMap<&'a str, Vec<&'a str>>) -> Vec<&'a str> {
    let mut importers = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(importer) = queue.pop_front() {
        for imported in imports.get(importer).into_iter().flatten().copied() {
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

    fn found_folders(files: &[(&str, &str)]) -> Vec<String> {
        let findings = folder_cycles(&Tree::of(files));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn folders_that_import_each_other_through_different_files_are_reported() {
        let files = [
            ("p/src/a.rs", "mod x;\nmod y;\n"),
            ("p/src/a/x.rs", "use crate::b::z::Z;\n"),
            ("p/src/a/y.rs", "pub struct Y;\n"),
            ("p/src/b.rs", "mod w;\nmod z;\n"),
            ("p/src/b/w.rs", "\nuse crate::a::y::Y;\n"),
            ("p/src/b/z.rs", "pub struct Z;\n"),
        ];
        assert_eq!(found(&files), [""; 0]);
        assert_eq!(
            found_folders(&files),
            [
                "p/src/a/x.rs:1: folder-cycles: p/src/a/x.rs imports Z from p/src/b/z.rs; p/src/b/w.rs imports Y from p/src/a/y.rs: move what they share to a module that imports none of them"
            ]
        );
        assert_eq!(found_folders(&files[..4]), [""; 0]);
    }

    #[test]
    fn cycle_of_folders_below_other_folders_or_through_a_file_is_reported() {
        let findings = found_folders(&[
            ("p/src/t.rs", ""),
            ("p/src/t/a.rs", ""),
            ("p/src/t/a/x.rs", "use crate::t::b::B;\n"),
            ("p/src/t/b.rs", "use super::c::y::C;\n"),
            ("p/src/t/c.rs", ""),
            ("p/src/t/c/y.rs", "use crate::t::a::z::A;\n"),
            ("p/src/t/a/z.rs", ""),
        ]);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings[0].contains("A from p/src/t/a/z.rs"),
            "{findings:?}"
        );
    }

    #[test]
    fn module_and_folder_below_it_that_import_each_other_are_reported() {
        let files = |register: &'static str| {
            [
                ("p/src/check.rs", register),
                ("p/src/check/pods.rs", "mod names;\nuse super::Check;\n"),
                ("p/src/check/pods/names.rs", ""),
            ]
        };
        let findings = found_folders(&files("mod pods;\npub struct Check;\nuse pods::CHECKS;\n"));
        assert_eq!(
            findings,
            [
                "p/src/check/pods.rs:2: folder-cycles: p/src/check/pods.rs imports Check from p/src/check.rs; p/src/check.rs imports CHECKS from p/src/check/pods.rs: move what they share to a module that imports none of them"
            ]
        );
        let passed_on = "mod pods;\npub struct Check;\npub(crate) use pods::CHECKS;\n";
        assert_eq!(found_folders(&files(passed_on)), [""; 0]);
        let used =
            "mod pods;\npub struct Check;\npub(crate) use pods::CHECKS;\nfn f() { CHECKS }\n";
        assert_eq!(found_folders(&files(used)).len(), 1);
    }

    #[test]
    fn module_and_child_without_a_folder_are_one_folder() {
        let findings = found_folders(&[
            ("p/src/a.rs", "mod x;\npub struct A;\nuse x::X;\n"),
            ("p/src/a/x.rs", "use super::A;\n"),
        ]);
        assert_eq!(findings, [""; 0]);
    }

    #[test]
    fn names_that_an_ancestor_imports_are_not_its_own() {
        let findings = found_folders(&[
            (
                "p/src/a.rs",
                "mod x;\nmod y;\npub use x::X;\nuse y::z::Z;\n",
            ),
            ("p/src/a/x.rs", ""),
            ("p/src/a/y.rs", "mod z;\nuse super::X;\n"),
            ("p/src/a/y/z.rs", "pub struct Z;\n"),
        ]);
        assert_eq!(findings, [""; 0]);
        let findings = found_folders(&[
            ("p/src/a.rs", "mod x;\nmod y;\nuse x::X;\nuse y::z::Z;\n"),
            ("p/src/a/x.rs", ""),
            ("p/src/a/y.rs", "mod z;\nuse super::X;\n"),
            ("p/src/a/y/z.rs", "pub struct Z;\n"),
        ]);
        assert_eq!(findings, [""; 0]);
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
