//! The runs of the table show their bugs: what `cargo xtask simulate --planted` searches for, in
//! some seconds.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use mesh_planted::Bug;
use mesh_simulator::planted::{self, Finder, KNOWN, REQUIRED};
use parking_lot::Mutex;

#[test]
fn each_known_run_shows_its_bug() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let scripts = planted::scripts(&directory, "*").expect("the corpus is valid");
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let confirm = || {
        let mut finder = Finder::new(&scripts, false);
        while let Some(known) = KNOWN.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !finder.confirm(known).expect("a set-up") {
                missed.lock().push(known.bug);
            }
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads {
            scope.spawn(confirm);
        }
    });
    let missed = missed.into_inner();
    assert_eq!(missed, Vec::<Bug>::new());
}

#[test]
fn enough_bugs_have_a_known_run() {
    assert!(KNOWN.is_sorted_by_key(|known| known.bug));
    let mut bugs: Vec<Bug> = KNOWN.iter().map(|known| known.bug).collect();
    bugs.dedup();
    assert_eq!(bugs.len(), KNOWN.len());
    assert!(
        bugs.len() * 100 >= Bug::ALL.len() * REQUIRED,
        "{}",
        bugs.len()
    );
}

#[test]
fn document_is_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/planted-bugs.md");
    let text = fs::read_to_string(path).expect("the document");
    assert!(
        text == planted::render(),
        "run `cargo xtask simulate --document`"
    );
}
