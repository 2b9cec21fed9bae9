//! House rules about Rust files: their first lines, their length, and the places where certain
//! things may stand.

use Places::{Below, Modules};

use super::Finding;
use super::source::has_word;
use super::tree::{File, Tree};

/// A file longer than this holds more than one subject.
const MOST_LINES: usize = 600;

/// The places that may write to standard output and standard error: the programs for the terminal,
/// code that tests share, and build scripts, whose output is their protocol with cargo.
const PRINTING_PLACES: [&str; 6] = [
    "bench/",
    "cli/src/output",
    "mesh-test-support/",
    "models/",
    "tests/demo",
    "xtask/",
];

/// Where `unsafe` may stand: the kernel programs, the types they share, one module per program
/// around the kernel's interfaces, and the allocator of simulations.
const UNSAFE_PLACES: [&str; 8] = [
    "mesh-ebpf/",
    "mesh-ebpf-common/",
    "mesh-agent/src/sys.rs",
    "mesh-agent/src/sys/",
    // Declares a function of the allocator.
    "mesh-proxy/src/limits/memory/allocator.rs",
    "mesh-proxy/src/time_slice.rs",
    "mesh-simnet/src/heap.rs",
    // An application independent of the mesh, which calls the kernel directly.
    "tests/probe/raw.rs",
];

/// A crate that only certain modules use, so that it can be replaced in one place.
struct ConfinedCrate {
    name: &'static str,
    /// Directories, files, or prefixes of paths; or the name of modules that may use it wherever
    /// they are.
    places: Places,
    instead: &'static str,
}

enum Places {
    Below(&'static [&'static str]),
    Modules(&'static str),
}

#[rustfmt::skip] // a table, one row a line
const CONFINED_CRATES: [ConfinedCrate; 8] = [
    confined("prometheus", Below(&["mesh-runtime/src/metrics"]), "use mesh_runtime::metrics"),
    confined("aya", Below(&["mesh-agent/src/ebpf", "mesh-agent/tests/privileged/world", "mesh-ebpf-common/"]), "go through mesh_agent::ebpf"),
    confined("aya_log", Below(&["mesh-agent/src/ebpf"]), "go through mesh_agent::ebpf"),
    confined("rustls", Modules("tls"), "go through the program's tls module"),
    confined("tokio_rustls", Modules("tls"), "go through the program's tls module"),
    confined("linkerd2_proxy_api", Below(&["mesh-api/"]), "use mesh_api, which re-exports the generated types and converts them"),
    confined("tonic::transport", Below(&["mesh-api/src/grpc.rs", "mesh-cluster/src/daemon.rs", "mesh-test-support/", "bench/"]), "use mesh_api::grpc and Daemon::serve_grpc, which show tonic no field of a peer that it would panic about"),
    confined("k8s_openapi", Below(&["mesh-k8s/", "mesh-cluster/src/", "control-plane/src/", "viz/src/", "mesh-agent/src/kubernetes", "mesh-local/src/", "cli/src/"]), "use mesh_core's types; Kubernetes' end in mesh-k8s and the code that reads or writes objects"),
];

const fn confined(name: &'static str, places: Places, instead: &'static str) -> ConfinedCrate {
    ConfinedCrate {
        name,
        places,
        instead,
    }
}

impl ConfinedCrate {
    fn admits(&self, file: &File) -> bool {
        match self.places {
            Below(places) => file.is_below(places),
            Modules(name) => file.is_module(name),
        }
    }
}

pub(crate) fn module_docs(tree: &Tree) -> Vec<Finding> {
    let has_docs = |file: &File| {
        let first = file.text.lines().find(|line| !line.is_empty());
        first.is_some_and(|line| line.starts_with("//!"))
    };
    let advice = "begin with `//!`: what this is, why it is here, who calls it";
    let without = tree.rust_files().filter(|file| !has_docs(file));
    without
        .map(|file| file.finding(1, "module-docs", advice))
        .collect()
}

pub(crate) fn length(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        let lines = file.production_code().count();
        if lines > MOST_LINES {
            let advice =
                format!("{lines} lines without tests, at most {MOST_LINES}: split it by subject");
            findings.push(file.finding(1, "file-length", advice));
        }
    }
    findings
}

pub(crate) fn file_names(tree: &Tree) -> Vec<Finding> {
    let advice = "name it for its module: `foo.rs` beside `foo/`, never `mod.rs`";
    let files = tree.rust_files();
    files
        .filter(|file| file.path.ends_with("/mod.rs"))
        .map(|file| file.finding(1, "file-names", advice))
        .collect()
}

/// A module that only tests compile is named `tests` or lies below it: its path must not look like
/// product code.
pub(crate) fn test_modules(tree: &Tree) -> Vec<Finding> {
    let advice = "only tests compile it: move it below `tests`";
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
        for (index, pair) in lines.windows(2).enumerate() {
            if pair[0] == "#[cfg(test)]" && declared_module(pair[1]).is_some_and(|it| it != "tests")
            {
                findings.push(file.finding(index + 2, "test-modules", advice));
            }
        }
    }
    findings
}

/// Returns the name in a declaration of a module that has a file of its own.
fn declared_module(line: &str) -> Option<&str> {
    let (visibility, name) = line.strip_suffix(';')?.rsplit_once(' ')?;
    (visibility == "mod" || visibility.starts_with("pub") && visibility.ends_with(" mod"))
        .then_some(name)
}

pub(crate) fn printing(tree: &Tree) -> Vec<Finding> {
    let macros = ["println", "eprintln", "print", "eprint"];
    let prints = |code: &str| {
        macros
            .iter()
            .any(|name| has_word(code, name) && code.contains(&format!("{name}!")))
    };
    code_findings(
        tree,
        |file| !file.is_below(&PRINTING_PLACES) && !file.path.ends_with("/build.rs"),
        prints,
        "printing",
        "only cli::output, mesh-bench, mesh-demo and xtask print; a daemon logs",
    )
}

pub(crate) fn unsafe_code(tree: &Tree) -> Vec<Finding> {
    let advice = format!("only below {}", UNSAFE_PLACES.join(", "));
    let mut findings = Vec::new();
    let files = tree.rust_files();
    for file in files.filter(|file| !file.is_below(&UNSAFE_PLACES)) {
        // Applies to test code as well.
        for (index, line) in file.code.iter().enumerate() {
            if has_word(&line.code, "unsafe") {
                findings.push(file.finding(index + 1, "unsafe-code", advice.as_str()));
            }
        }
    }
    findings
}

pub(crate) fn seams(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for confined in CONFINED_CRATES {
        let path = format!("{}::", confined.name);
        // A module of the same name follows `::`.
        let is_inside = |it: char| it == ':' || it == '_' || it.is_alphanumeric();
        let names_it = |code: &str| {
            let mut places = code.match_indices(&path);
            places.any(|(at, _)| !code[..at].ends_with(is_inside))
        };
        let applies = |file: &File| !confined.admits(file);
        let instead = confined.instead;
        findings.extend(code_findings(tree, applies, names_it, "seams", instead));
    }
    findings
}

pub(crate) fn open_ends(tree: &Tree) -> Vec<Finding> {
    let meant = |file: &File| file.is_rust() && !file.path.starts_with("xtask/src/tidy/");
    tree.each_line("open-ends", meant, |line| {
        let mut marks = ["TODO", "FIXME", "XXX"].iter();
        let open = marks.any(|mark| has_word(line, mark)) && !line.contains("TODO(#");
        open.then(|| "name the issue, `TODO(#123)`, or do it now".to_owned())
    })
}

/// One finding for each line of production code that `matches`, in the files that `applies` to.
fn code_findings(
    tree: &Tree,
    applies: impl Fn(&File) -> bool,
    matches: impl Fn(&str) -> bool,
    rule: &'static str,
    advice: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files().filter(|file| applies(file)) {
        let matching = file.production_code().filter(|(_, code)| matches(code));
        findings.extend(matching.map(|(line, _)| file.finding(line, rule, advice)));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn missing_module_doc_is_reported() {
        let tree = Tree::of(&[
            ("a.rs", "//! Why.\n"),
            ("b.rs", "\n//! Why.\n"),
            ("c.rs", "use x;\n"),
            ("d.rs", ""),
        ]);
        assert_eq!(places(&module_docs(&tree)), [("c.rs", 1), ("d.rs", 1)]);
    }

    #[test]
    fn test_lines_do_not_count_as_file_length() {
        let long = "fn f() {}\n".repeat(MOST_LINES);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let tree = Tree::of(&[
            ("a/src/fits.rs", &format!("{long}{tests}")),
            ("a/src/long.rs", &format!("{long}fn g() {{}}\n")),
            ("a/src/long/tests.rs", &long.repeat(2)),
        ]);
        assert_eq!(places(&length(&tree)), [("a/src/long.rs", 1)]);
    }

    #[test]
    fn mod_rs_is_reported() {
        let tree = Tree::of(&[("a/src/b/mod.rs", ""), ("a/src/modern.rs", "")]);
        assert_eq!(places(&file_names(&tree)), [("a/src/b/mod.rs", 1)]);
    }

    #[test]
    fn module_of_tests_with_the_name_of_a_product_module_is_reported() {
        let tree = Tree::of(&[
            ("a/src/lib.rs", "#[cfg(test)]\nmod fixture;\nmod other;\n"),
            ("a/src/b.rs", "#[cfg(test)]\npub(crate) mod scripted;\n"),
            ("a/src/c.rs", "#[cfg(test)]\npub(crate) mod tests;\n"),
            ("a/src/d.rs", "#[cfg(test)]\nuse super::mod_name;\n"),
        ]);
        let reported = [("a/src/lib.rs", 2), ("a/src/b.rs", 2)];
        assert_eq!(places(&test_modules(&tree)), reported);
    }

    #[test]
    fn printing_is_for_terminal_programs_and_tests() {
        let code = "//! x\nfn f() { println!(\"a\"); }\n// println!\n";
        let tree = Tree::of(&[
            ("mesh-proxy/src/a.rs", code),
            ("cli/src/output/table.rs", code),
            ("cli/src/commands/stat.rs", code),
            ("mesh-agent/build.rs", code),
            ("tests/it/a.rs", code),
            (
                "mesh-core/src/b.rs",
                "#[cfg(test)]\nmod tests { fn f() { print!(\"\"); } }\n",
            ),
        ]);
        assert_eq!(
            places(&printing(&tree)),
            [("mesh-proxy/src/a.rs", 2), ("cli/src/commands/stat.rs", 2)]
        );
    }

    #[test]
    fn unsafe_outside_listed_modules_is_reported() {
        let code = "fn f() {\n    unsafe { g() }\n}\n// unsafe\n";
        let tree = Tree::of(&[
            ("mesh-agent/src/sys/bpf.rs", code),
            ("mesh-ebpf/src/main.rs", code),
            ("mesh-agent/src/system.rs", code),
            ("tests/it/a.rs", code),
        ]);
        assert_eq!(
            places(&unsafe_code(&tree)),
            [("mesh-agent/src/system.rs", 2), ("tests/it/a.rs", 2)]
        );
    }

    #[test]
    fn crate_use_outside_listed_modules_is_reported() {
        let tree = Tree::of(&[
            (
                "mesh-runtime/src/metrics/registry.rs",
                "use prometheus::Registry;\n",
            ),
            (
                "mesh-proxy/src/tls/client.rs",
                "use rustls::ClientConfig;\nuse tokio_rustls::TlsConnector;\n",
            ),
            (
                "mesh-proxy/src/app.rs",
                "use prometheus::Registry;\nuse rustls_pki_types::ServerName;\nuse tokio_rustls::x;\n",
            ),
            (
                "cli/src/clients/grpc.rs",
                "use mesh_api::grpc::Channel;\nuse tonic::transport::Channel;\n",
            ),
        ]);
        assert_eq!(
            places(&seams(&tree)),
            [
                ("mesh-proxy/src/app.rs", 1),
                ("mesh-proxy/src/app.rs", 3),
                ("cli/src/clients/grpc.rs", 2)
            ]
        );
    }

    #[test]
    fn todo_without_issue_is_reported() {
        let tree = Tree::of(&[("a.rs", "// TODO later\n// TODO(#12): later\n// FIXME\n")]);
        assert_eq!(places(&open_ends(&tree)), [("a.rs", 1), ("a.rs", 3)]);
    }
}
