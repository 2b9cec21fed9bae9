//! The test programs of the workspace: builds them, and finds the one and the name in it of a test
//! that the table names by its file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;
use xtask::{command, workspace};

use crate::fault::Test;

/// A test program.
struct Program {
    executable: PathBuf,
    /// The directory of its package, where cargo runs it.
    directory: PathBuf,
    /// Its main file, relative to the checkout.
    source: PathBuf,
}

pub(crate) struct Programs {
    root: PathBuf,
    programs: Vec<Program>,
}

/// The packages that are built for the tests of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// As by `cargo xtask test`, so that tests and the programs they start are from one build.
    Workspace,
    /// The packages in these directories, whose tests start programs of their own package at most.
    Packages(BTreeSet<&'static str>),
}

/// The directories of such packages.
const SELF_CONTAINED: [&str; 7] = [
    "control-plane",
    "mesh-cluster",
    "mesh-core",
    "mesh-http2",
    "mesh-k8s",
    "mesh-proxy",
    "mesh-runtime",
];

impl Scope {
    pub(crate) fn of<'a>(tests: impl IntoIterator<Item = &'a Test>) -> Self {
        let directories = tests.into_iter().map(|test| {
            let (file, _) = test.parts();
            file.split_once('/')
                .map_or(file, |(directory, _)| directory)
        });
        let directories: BTreeSet<&'static str> = directories.collect();
        if directories.iter().all(|it| SELF_CONTAINED.contains(it)) {
            Self::Packages(directories)
        } else {
            Self::Workspace
        }
    }
}

impl Programs {
    /// Builds the test programs, and with the whole workspace the programs that they start.
    pub(crate) fn build(root: &Path, scope: &Scope) -> anyhow::Result<Self> {
        let mut cargo = workspace::cargo(root);
        cargo.args(["test", "--no-run", "--message-format=json"]);
        match scope {
            Scope::Workspace => {
                let mut all = workspace::cargo(root);
                let all = all.args(["build", "--workspace", "--all-targets"]);
                command::run("build", all)?;
                cargo.arg("--workspace");
            }
            // Without a package, cargo would build all.
            Scope::Packages(directories) if directories.is_empty() => {
                return Ok(Self {
                    root: root.to_owned(),
                    programs: Vec::new(),
                });
            }
            Scope::Packages(directories) => {
                for directory in directories {
                    // By its directory, whose name the package need not have.
                    let package = root.join(directory);
                    cargo.arg(format!("--package=path+file://{}", package.display()));
                }
            }
        }
        let finished = command::observe("test programs", &mut cargo, |_| ())?;
        if !finished.status.success() {
            bail!("`{}`: {}", command::shown(&cargo), finished.status);
        }
        let messages = finished.lines.iter();
        let messages = messages.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let programs = messages.filter_map(|message| Program::read(root, &message));
        Ok(Self {
            root: root.to_owned(),
            programs: programs.collect(),
        })
    }

    /// Returns the command that runs this test only.
    pub(crate) fn command(&self, test: &Test) -> anyhow::Result<Command> {
        let (file, name) = test.parts();
        let candidates = self.containing(Path::new(file));
        for program in &candidates {
            let mut command = program.command();
            if program.has_own_main(&self.root)? {
                command.arg(name);
                return Ok(command);
            }
            if let Some(full) = program.full_name(file, name)? {
                command.args(["--exact", &full, "--show-output"]);
                return Ok(command);
            }
        }
        bail!(
            "{}: none of {} test programs has it",
            test.path,
            candidates.len()
        )
    }

    /// The programs whose main file is in the directory of `file` or the nearest one above it.
    fn containing(&self, file: &Path) -> Vec<&Program> {
        let mut by_depth: BTreeMap<usize, Vec<&Program>> = BTreeMap::new();
        for program in &self.programs {
            let Some(directory) = program.source.parent() else {
                continue;
            };
            if program.source == file {
                return vec![program];
            }
            if file.starts_with(directory) {
                let depth = directory.components().count();
                by_depth.entry(depth).or_default().push(program);
            }
        }
        by_depth
            .pop_last()
            .map_or(Vec::new(), |(_, deepest)| deepest)
    }
}

impl Program {
    /// Reads a message of cargo about a test program it has built.
    fn read(root: &Path, message: &Value) -> Option<Self> {
        let is_test = message["profile"]["test"] == true;
        let executable = message["executable"].as_str().filter(|_| is_test)?;
        let source = Path::new(message["target"]["src_path"].as_str()?);
        let manifest = Path::new(message["manifest_path"].as_str()?);
        Some(Self {
            executable: executable.into(),
            directory: manifest.parent()?.to_owned(),
            source: source.strip_prefix(root).ok()?.to_owned(),
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }

    /// Whether it runs cases of its own, whose names are sentences, instead of Rust's test harness.
    fn has_own_main(&self, root: &Path) -> anyhow::Result<bool> {
        let source = root.join(&self.source);
        let text = std::fs::read_to_string(&source)
            .with_context(|| format!("read {}", source.display()))?;
        Ok(text.contains("Case = (&'static str, fn())"))
    }

    /// Returns the name that the test has in this program, if it is there.
    fn full_name(&self, file: &str, name: &str) -> anyhow::Result<Option<String>> {
        let mut command = self.command();
        command.args(["--list", "--format", "terse"]);
        let listed = command::captured_stdout(&mut command)
            .with_context(|| format!("list the tests of {}", self.executable.display()))?;
        let module = module(&self.source, Path::new(file));
        let names = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        Ok(find(names, &module, name).map(str::to_owned))
    }
}

/// Finds the test `name` in a module or one of its submodules, such as `tests` in the same file.
fn find<'a>(names: impl Iterator<Item = &'a str>, module: &str, name: &str) -> Option<&'a str> {
    let is_it = |full: &&str| {
        let rest = if module.is_empty() {
            Some(*full)
        } else {
            full.strip_prefix(module)
                .and_then(|rest| rest.strip_prefix("::"))
        };
        rest.is_some_and(|rest| rest == name || rest.rsplit("::").next() == Some(name))
    };
    // The shortest is the one of the file itself, not of a file below it.
    names.filter(is_it).min_by_key(|full| full.len())
}

/// Returns the module of a file in the program with this main file.
fn module(source: &Path, file: &Path) -> String {
    if source == file {
        return String::new();
    }
    let directory = source.parent().unwrap_or(Path::new(""));
    let inside = file.strip_prefix(directory).unwrap_or(file);
    let parts: Vec<String> = inside
        .with_extension("")
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    parts.join("::")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::local;

    fn program(source: &str) -> Program {
        Program {
            executable: source.into(),
            directory: PathBuf::new(),
            source: source.into(),
        }
    }

    #[test]
    fn everything_is_built_if_a_test_starts_programs_of_other_packages() {
        let proxy = local("mesh-proxy/tests/it/load.rs::a");
        let core = local("mesh-core/src/route.rs::b");
        let whole = local("tests/it/mesh/faults.rs::c");
        let packages = Scope::Packages(["mesh-core", "mesh-proxy"].into());
        assert_eq!(Scope::of([&proxy, &core, &proxy]), packages);
        assert_eq!(Scope::of([&proxy, &whole]), Scope::Workspace);
    }

    #[test]
    fn program_of_a_file_is_the_nearest() {
        let sources = [
            "tests/it/main.rs",
            "tests/src/lib.rs",
            "mesh-proxy/src/lib.rs",
            "mesh-proxy/src/main.rs",
            "fuzz/tests/replay.rs",
            "fuzz/tests/silent.rs",
        ];
        let programs = Programs {
            root: PathBuf::new(),
            programs: sources.map(program).into(),
        };
        let of = |file: &str| -> Vec<&Path> {
            let found = programs.containing(Path::new(file));
            found
                .iter()
                .map(|program| program.source.as_path())
                .collect()
        };
        let paths = |paths: &[&'static str]| -> Vec<&Path> {
            paths.iter().map(|path| Path::new(*path)).collect()
        };
        assert_eq!(of("tests/it/mesh/faults.rs"), paths(&sources[..1]));
        assert_eq!(of("mesh-proxy/src/tls/tests.rs"), paths(&sources[2..4]));
        assert_eq!(of("fuzz/tests/silent.rs"), paths(&sources[5..]));
        assert_eq!(of("cli/tests/local.rs"), paths(&[]));
    }

    #[test]
    fn test_is_found_in_its_file_before_those_below() {
        let names = [
            "tls::tests::openssl::works",
            "tls::tests::works",
            "transport::tls::tests::works",
            "worker::works",
        ];
        let find_in = |module: &str, name: &str| find(names.into_iter(), module, name);
        assert_eq!(find_in("tls::tests", "works"), Some("tls::tests::works"));
        assert_eq!(find_in("tls", "works"), Some("tls::tests::works"));
        assert_eq!(find_in("worker", "works"), Some("worker::works"));
        assert_eq!(find_in("work", "works"), None);
        assert_eq!(find_in("", "absent"), None);
    }

    #[test]
    fn module_follows_from_the_path() {
        let of = |source, file| module(Path::new(source), Path::new(file));
        assert_eq!(of("a/src/lib.rs", "a/src/tls/tests.rs"), "tls::tests");
        assert_eq!(of("a/tests/it/main.rs", "a/tests/it/load.rs"), "load");
        assert_eq!(of("a/tests/local.rs", "a/tests/local.rs"), "");
    }

    #[test]
    fn messages_of_cargo_about_tests_are_read() {
        let message = |is_test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "manifest_path": "/src/tests/Cargo.toml",
                "target": {"kind": ["test"], "name": "it", "src_path": "/src/tests/it/main.rs"},
                "profile": {"test": is_test},
                "executable": "/src/target/debug/deps/it-1",
            })
        };
        let read = Program::read(Path::new("/src"), &message(true)).expect("a test program");
        assert_eq!(read.source, Path::new("tests/it/main.rs"));
        assert_eq!(read.directory, Path::new("/src/tests"));
        assert!(Program::read(Path::new("/src"), &message(false)).is_none());
    }
}
