//! `mesh-demo`, which `cargo xtask demo` builds and runs: demonstrates a whole mesh on this
//! machine.
//!
//! Starts a local node with the manifests of examples/demo, sends traffic through it with
//! third-party programs, and measures each claim on the running system: `claims` has one function
//! per claim. The node is removed at the end, also after a failure, unless `--keep` is given; then
//! `--down` removes it. The exit code is 1 if a claim does not hold. `--kubernetes` measures the
//! same claims on a cluster.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal: results on stdout, errors on stderr"
)]

mod capture;
mod claims;
mod mesh;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use xtask::interrupt::Interrupt;
use xtask::{binaries, workspace};

use claims::Claim;
use mesh::{Cluster, Environment, Local, Mesh};

/// Run a mesh on this machine or on a cluster and measure the claims about it
#[derive(Debug, Parser)]
struct Options {
    /// Keep the mesh running and print commands to inspect it
    #[arg(long)]
    keep: bool,
    /// Only remove the mesh that --keep left running
    #[arg(long, conflicts_with = "keep")]
    down: bool,
    /// Run on a cluster instead of this machine: the cluster of a kubeconfig context, or of the
    /// current one
    #[arg(long, value_name = "CONTEXT", num_args = 0..=1, require_equals = true)]
    kubernetes: Option<Option<String>>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match workspace::root().and_then(|root| run(&root, &options)) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    if options.down {
        mesh(root, options)?.environment.down()?;
        println!("the demo's mesh was removed");
        return Ok(ExitCode::SUCCESS);
    }
    let interrupt = Interrupt::watch()?;
    let mesh = mesh(root, options)?;
    // Remains of an earlier run, after --keep or a crash, would distort the measurements.
    mesh.environment
        .down()
        .context("remove the remains of an earlier demo")?;

    let shown = show(root, &mesh, &interrupt);
    if let (Ok(claims), true) = (&shown, options.keep) {
        let end = summary(claims);
        print_inspection_hints(&mesh, options);
        return Ok(end);
    }
    let down = mesh.environment.down().context("remove the demo's mesh");
    let claims = shown.map_err(|error| {
        if interrupt.wanted() {
            anyhow::anyhow!("interrupted; the mesh was removed")
        } else {
            error
        }
    })?;
    down?;
    Ok(summary(&claims))
}

/// Returns the mesh to demonstrate. Its programs must have been built.
fn mesh(root: &Path, options: &Options) -> anyhow::Result<Mesh> {
    let meshctl = binaries::directory(root, true).join("meshctl");
    if !meshctl.exists() {
        bail!(
            "{} does not exist: run `cargo xtask build --dev` first",
            meshctl.display()
        );
    }
    let environment: Box<dyn Environment> = match &options.kubernetes {
        None => Box::new(Local::new(&meshctl)),
        Some(context) => Box::new(Cluster::new(root, &meshctl, context.clone())?),
    };
    Ok(Mesh::new(meshctl, environment))
}

/// Measures every claim; later claims depend on the state left by earlier ones.
fn show(root: &Path, mesh: &Mesh, interrupt: &Interrupt) -> anyhow::Result<Vec<Claim>> {
    mesh.environment.prepare(&root.join("examples/demo"))?;
    let mut claims = Vec::new();
    let mut step = |title: &str, claim: &dyn Fn() -> anyhow::Result<Claim>| -> anyhow::Result<()> {
        if interrupt.wanted() {
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
    step("Client and server have an identity", &|| {
        claims::identified(mesh)
    })?;
    step("Requests spread over the backends", &|| {
        claims::spread(mesh)
    })?;
    step("A backend dies under load", &|| {
        claims::survives_dead_backend(mesh)
    })?;
    step("Opaque TCP: redis-benchmark", &|| claims::opaque(mesh))?;
    step("gRPC: etcdctl and etcd", &|| claims::grpc(mesh))?;
    step("Latency and success rate", &|| claims::golden_numbers(mesh))?;
    step("A policy denies access", &|| {
        claims::authorized(mesh, &root.join("examples/policy"))
    })?;
    step("A refusal is explained", &|| {
        claims::explained(mesh, &root.join("examples/policy"))
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

fn print_inspection_hints(mesh: &Mesh, options: &Options) {
    let which = match &options.kubernetes {
        None => String::new(),
        Some(None) => " --kubernetes".to_owned(),
        Some(Some(context)) => format!(" --kubernetes={context}"),
    };
    println!(
        "\nThe mesh keeps running. Inspect it with:\n{}\nRemove it with `cargo xtask demo --down{which}`.",
        mesh.inspection_hints()
    );
}
