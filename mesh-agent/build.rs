//! Embeds the kernel programs that `cargo xtask ebpf` compiled. This script does not compile them:
//! that takes another compiler, and the agent must build without it. Without an object the agent
//! still builds and reports at run time that its eBPF tiers are unavailable.

use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    for name in ["mesh-ebpf.o", "mesh-ebpf-machine.o"] {
        let object = manifest.join("../target/bpf").join(name);
        println!("cargo::rerun-if-changed={}", object.display());
        let embedded = PathBuf::from(env::var("OUT_DIR")?).join(name);
        if object.exists() {
            fs::copy(&object, embedded)?;
        } else {
            fs::write(embedded, [])?;
        }
    }
    Ok(())
}
