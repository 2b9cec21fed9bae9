//! Runs every input of the corpora through its target, without instrumentation, so that ordinary
//! tests detect regressions of earlier findings.
//!
//! A single test, because the targets measure the memory of the process and must not run
//! concurrently.

use std::fs;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of panics, including panics of tasks, which the runtime catches.
static PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn corpus_inputs_cause_no_findings() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        hook(info);
    }));
    let mut failed = Vec::new();
    for target in &mesh_fuzz::TARGETS {
        let files = files(target.name);
        assert!(!files.is_empty(), "no inputs for {}", target.name);
        (target.run)(&[]);
        for file in files {
            let input = fs::read(&file).unwrap();
            let before = PANICS.load(Ordering::SeqCst);
            let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
            if outcome.is_err() || PANICS.load(Ordering::SeqCst) != before {
                eprintln!("failed: {}", file.display());
                failed.push(file);
            }
        }
    }
    // Restores the default hook.
    drop(panic::take_hook());
    assert!(
        failed.is_empty(),
        "the panic of each input is printed above its name: {failed:#?}"
    );
}

/// Inputs in a directory without a target would never be replayed.
#[test]
fn every_corpus_directory_has_a_target() {
    for directory in fs::read_dir(corpus()).unwrap() {
        let name = directory.unwrap().file_name().into_string().unwrap();
        assert!(mesh_fuzz::find(&name).is_some(), "{name} is not a target");
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Returns the inputs of a target in sorted order, so that all runs are alike.
fn files(target: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(corpus().join(target)).into_iter().flatten();
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}
