//! The fuzzer: libFuzzer with the target that `MESH_FUZZ_TARGET` names. `cargo xtask fuzz` builds
//! it with instrumentation and starts it. One program contains all targets, because linking takes
//! most of the build time.

#![no_main]

use std::sync::OnceLock;

use mesh_fuzz::Target;

static TARGET: OnceLock<&Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(init: choose(), |input: &[u8]| {
    if let Some(target) = TARGET.get() {
        (target.run)(input);
    }
});

/// Chooses the target, once, before the first input.
fn choose() {
    let name = std::env::var("MESH_FUZZ_TARGET").unwrap_or_default();
    let Some(target) = mesh_fuzz::find(&name) else {
        panic!("invalid MESH_FUZZ_TARGET {name:?}, expected a target of `cargo xtask fuzz --list`");
    };
    TARGET.get_or_init(|| target);
}
