//! What models use that check the product in every order of steps (docs/adr/0213).
//!
//! Models of shared state compile files of the product with their module `sync` replaced by
//! [`sync`], and are the `models.rs` beside these files. loom runs each in every order of the
//! threads' steps, and lets a relaxed load return every value that the memory model of C++
//! permits.
//!
//! Models of protocols between processes are tests of this package, which call the decisions of
//! the product. stateright reaches every state of them.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model, Path};

pub mod sync;

/// Checks a model in every order of its steps.
pub fn check(model: impl Fn() + Send + Sync + 'static) {
    loom::model(model);
}

/// Checks a model whose orders are too many: those where threads are interrupted at most
/// `preemptions` times. A thread that waits or ends is not interrupted.
pub fn check_with(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Runs both functions at the same time, and returns their results.
///
/// If one only reads, it must be the first. loom runs the second one first, and finds other orders
/// from each access and the last one before it, to the same atomic. A thread that reads it before
/// it writes would hide what the other one has read.
///
/// # Panics
///
/// One of them panicked, which fails the model anyway.
pub fn join<A: 'static, B>(
    other: impl FnOnce() -> A + 'static,
    here: impl FnOnce() -> B,
) -> (A, B) {
    let other = loom::thread::spawn(other);
    let here = here();
    match other.join() {
        Ok(other) => (other, here),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Checks a model of a protocol in every order of its steps, until one violates a property. Returns
/// the names of the properties that do not hold, and prints an example of each and the number of
/// states.
pub fn violated<M>(model: M) -> Vec<&'static str>
where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync> + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let properties = model.properties();
    let checker = model.checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    let mut violated = Vec::new();
    let mut missing = Vec::new();
    for property in properties {
        let example = checker.discovery(property.name).map(Path::into_actions);
        let is_failure = property.expectation.discovery_is_failure();
        match (example, is_failure) {
            (Some(actions), true) => {
                println!("{}: {actions:#?}", property.name);
                violated.push(property.name);
            }
            (None, false) => missing.push(property.name),
            (Some(_), false) | (None, true) => {}
        }
    }
    // The search ended before it has seen all states, unless no property is violated.
    if violated.is_empty() {
        violated = missing;
    }
    violated
}
