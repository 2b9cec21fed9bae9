//! Runs every kept input through its target, without instrumentation: what a fuzzer has found once
//! is found again by the ordinary tests.
//!
//! One test for all: the targets measure what the process holds, so they must not run beside each
//! other.

use std::fs;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Panics so far, those of tasks included: the runtime keeps them to itself.
static PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn kept_inputs() {
    let told = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        told(info);
    }));
    let mut failed = Vec::new();
    for target in &mesh_fuzz::TARGETS {
        let files = files(target.name);
        assert!(!files.is_empty(), "no inputs for {}", target.name);
        (target.run)(&[]);
        for file in files {
            let input = fs::read(&file).unwrap();
            let before = PANICS.load(Ordering::SeqCst);
            let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
            if ended.is_err() || PANICS.load(Ordering::SeqCst) != before {
                eprintln!("failed: {}", file.display());
                failed.push(file);
            }
        }
    }
    // The harness has its own.
    drop(panic::take_hook());
    assert!(
        failed.is_empty(),
        "what each of these shows is printed above its name: {failed:#?}"
    );
}

/// A folder without a target holds inputs that nobody replays.
#[test]
fn every_folder_has_a_target() {
    for folder in fs::read_dir(corpus()).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        assert!(mesh_fuzz::find(&name).is_some(), "{name} is no target");
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// In order, so that two runs are alike. None when there is no folder.
fn files(target: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(corpus().join(target)).into_iter().flatten();
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}
