//! Sets `cfg(loom)` for this package only: dependencies, tokio among them, are compiled as for the
//! product.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rustc-cfg=loom");
}
