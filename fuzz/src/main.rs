//! The fuzzer: libFuzzer around one target, which `MESH_FUZZ_TARGET` names. `cargo xtask fuzz`
//! builds it with instrumentation and starts it; one program for all targets, because linking takes
//! longer than anything else.

#![no_main]

use std::sync::OnceLock;

use mesh_fuzz::Target;

static TARGET: OnceLock<&Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(init: choose(), |input: &[u8]| {
    if let Some(target) = TARGET.get() {
        (target.run)(input);
    }
});

/// Called once, before the first input.
fn choose() {
    let name = std::env::var("MESH_FUZZ_TARGET").unwrap_or_default();
    let Some(target) = mesh_fuzz::find(&name) else {
        panic!(
            "MESH_FUZZ_TARGET is {name:?}, which is no target; `cargo xtask fuzz --list` names them"
        );
    };
    TARGET.get_or_init(|| target);
}
