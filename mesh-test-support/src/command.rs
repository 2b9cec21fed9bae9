//! Programs that run to their end, and command lines.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A command line: a text whose words have spaces between them, or a list of words that may contain
/// spaces.
pub trait Words {
    fn words(&self) -> Vec<&str>;
}

impl Words for str {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl Words for String {
    fn words(&self) -> Vec<&str> {
        self.as_str().words()
    }
}

impl<S: AsRef<str>> Words for [S] {
    fn words(&self) -> Vec<&str> {
        self.iter().map(S::as_ref).collect()
    }
}

impl<S: AsRef<str>> Words for Vec<S> {
    fn words(&self) -> Vec<&str> {
        self.as_slice().words()
    }
}

impl<S: AsRef<str>, const N: usize> Words for [S; N] {
    fn words(&self) -> Vec<&str> {
        self.as_slice().words()
    }
}

impl<W: Words + ?Sized> Words for &W {
    fn words(&self) -> Vec<&str> {
        (**self).words()
    }
}

/// Returns the command of a command line.
pub fn command(line: impl Words) -> Command {
    let words = line.words();
    let (program, arguments) = words.split_first().expect("a program");
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Runs a command line that must succeed and returns its standard output.
pub fn run(line: impl Words) -> String {
    succeed(&mut command(line))
}

/// The same; a failure is returned with the output.
pub fn try_run(line: impl Words) -> Result<String, String> {
    attempt(&mut command(line))
}

/// Runs a command that must succeed and returns its standard output.
///
/// # Panics
///
/// It does not start or fails. The message has its output.
pub fn succeed(command: &mut Command) -> String {
    attempt(command).unwrap_or_else(|failure| panic!("{failure}"))
}

fn attempt(command: &mut Command) -> Result<String, String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(text(&output.stdout)),
        Ok(output) => Err(format!("{command:?}: {}", output_text(&output))),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Runs a command to its end with this text as standard input and returns its output.
pub fn feed(command: &mut Command, input: &str) -> Output {
    let spawned = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // Fails where the program does not read its input. The end of the statement closes the pipe.
    let _written = child
        .stdin
        .take()
        .map(|mut pipe| pipe.write_all(input.as_bytes()));
    child.wait_with_output().expect("the program ends")
}

/// Returns the exit status and all output, for messages.
pub fn output_text(output: &Output) -> String {
    let (status, stdout, stderr) = (output.status, text(&output.stdout), text(&output.stderr));
    format!("{status}\n{stdout}{stderr}")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns a program of this workspace, which was built next to the test
/// (`cargo build --workspace --bins`; `cargo xtask test` runs that first).
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let directory = test.parent().and_then(|deps| deps.parent());
    let path = directory
        .expect("the test is in target/<profile>/deps")
        .join(name);
    assert!(
        path.exists(),
        "{} is not built: run `cargo build --workspace --bins`",
        path.display()
    );
    path
}

/// Returns whether all these programs are on `PATH`; otherwise prints the skipped test and the
/// missing program.
pub fn are_installed(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let is_missing = |name: &&&str| !directories.iter().any(|path| path.join(name).exists());
    let missing = programs.iter().find(is_missing);
    if let Some(name) = missing {
        println!("skipped: {name} is not installed");
    }
    missing.is_none()
}

/// Returns whether this process may create namespaces and cgroups and load kernel programs;
/// otherwise prints that the test is skipped. [`require_root`](crate::require_root) uses it.
pub fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        println!("skipped: network namespaces, cgroups and BPF need root");
    }
    is_root
}

/// Returns from a test that needs root and does not have it.
#[macro_export]
macro_rules! require_root {
    () => {
        if !$crate::command::is_root() {
            return;
        }
    };
}
