//! `cargo xtask demo`: a whole mesh on this machine, shown at work.
//!
//! Builds the programs, starts a local node with the manifests of examples/demo, sends traffic through it with programs nobody here wrote, and measures each
//! claim on the running system: `claims` has one function per claim. Whatever happens, the node is taken down again, unless `--keep` asks to look around;
//! then `--down` does it. The exit code is 1 when a claim does not hold.

mod capture;
mod claims;
mod mesh;

use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, bail};

use crate::{args::DemoOptions, binaries, workspace};
use claims::Claim;
use mesh::Mesh;

pub(crate) fn run(root: &Path, options: DemoOptions) -> anyhow::Result<ExitCode> {
    if !workspace::is_root() {
        bail!(
            "the demo makes network namespaces, cgroups and BPF programs, which needs root: run it with sudo. \
             Without root, `cargo xtask test` still runs every test that needs no privileges"
        );
    }
    if options.down {
        Mesh::of_programs(&binaries::folder(root, true))?.down()?;
        println!("the demo's mesh is down");
        return Ok(ExitCode::SUCCESS);
    }
    binaries::run(root, true)?;
    let interrupted = watch_for_interrupt()?;
    let mesh = Mesh::of_programs(&binaries::folder(root, true))?;
    // What an earlier run left behind, by --keep or by a crash, would make this one's numbers wrong.
    mesh.down().context("clear what an earlier demo left")?;

    let shown = show(root, &mesh, &interrupted);
    if let (Ok(claims), true) = (&shown, options.keep) {
        let end = summary(claims);
        print_ways_to_look(&mesh);
        return Ok(end);
    }
    let down = mesh.down().context("take the demo's mesh down");
    let claims = shown.map_err(|error| match interrupted.load(Ordering::Relaxed) {
        true => anyhow::anyhow!("interrupted; the mesh was taken down"),
        false => error,
    })?;
    down?;
    Ok(summary(&claims))
}

/// Set by Ctrl-C and SIGTERM. The programs of the step at hand get the signal too and end; the step then fails, and the mesh is taken down.
fn watch_for_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("handle Ctrl-C")?;
    Ok(interrupted)
}

/// Every claim, measured in an order that lets each build on the one before.
fn show(root: &Path, mesh: &Mesh, interrupted: &AtomicBool) -> anyhow::Result<Vec<Claim>> {
    mesh.write_manifests(&root.join("examples/demo"))?;
    let mut claims = Vec::new();
    let mut step = |title: &str, claim: &dyn Fn() -> anyhow::Result<Claim>| -> anyhow::Result<()> {
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        println!("\n== {title}");
        let claim = claim().with_context(|| title.to_owned())?;
        println!("{claim}");
        claims.push(claim);
        Ok(())
    };
    step("The application without the mesh", &|| {
        claims::clear_text_without_mesh(mesh)
    })?;
    step("The same application in the mesh", &|| {
        claims::encrypted_in_mesh(mesh)
    })?;
    step("Redirected by eBPF", &|| claims::redirected(mesh))?;
    step("Both ends have an identity", &|| claims::identified(mesh))?;
    step("Requests spread over the backends", &|| {
        claims::spread(mesh)
    })?;
    step("A backend dies under load", &|| {
        claims::survives_dead_backend(mesh)
    })?;
    step("Opaque TCP: redis-benchmark", &|| claims::opaque(mesh))?;
    step("gRPC: etcdctl and etcd", &|| claims::grpc(mesh))?;
    step("Latency and success rate", &|| claims::golden_numbers(mesh))?;
    step("A policy closes the door", &|| {
        claims::authorized(mesh, &root.join("examples/policy"))
    })?;
    Ok(claims)
}

fn summary(claims: &[Claim]) -> ExitCode {
    println!("\n== Summary");
    let width = claims
        .iter()
        .map(|claim| claim.what.chars().count())
        .max()
        .unwrap_or(0);
    for claim in claims {
        println!(
            "{}  {:<width$}  {}",
            if claim.holds { "holds " } else { "BROKEN" },
            claim.what,
            claim.measured
        );
    }
    match claims.iter().filter(|claim| !claim.holds).count() {
        0 => ExitCode::SUCCESS,
        broken => {
            println!("\n{broken} of {} claims do not hold", claims.len());
            ExitCode::FAILURE
        }
    }
}

fn print_ways_to_look(mesh: &Mesh) {
    let meshctl = mesh.meshctl.display();
    println!(
        "\nThe mesh stays up. Look around:\n  \
         {meshctl} check\n  \
         {meshctl} stat --watch\n  \
         {meshctl} identity client\n  \
         {meshctl} local exec client -- bash        a shell in a pod\n  \
         {meshctl} diagnostics redirection\n\
         Its manifests are in {}; change them and run `{meshctl} local apply {}`.\n\
         Take it down with `cargo xtask demo --down`.",
        mesh.dir().display(),
        mesh.dir().display(),
    );
}
