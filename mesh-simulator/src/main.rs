//! `mesh-simulate`, which `cargo xtask simulate` builds and runs: plays scripts, and reports every
//! difference that no row of the table allows. The exit code is 1 if there is one.

mod campaign;
mod sample;
mod search;
mod stepper;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use mesh_local::node_paths::Name;
use mesh_planted::Bug;
use mesh_simulator::check::{Features, MeshOptions, Place};
use mesh_simulator::script::Script;
use mesh_simulator::{corpus, differences, generate, planted};
use xtask::{print_lines, seed, workspace};

use campaign::{Campaign, CampaignOptions};

/// The most scripts that are played on a local node.
const SAMPLE: usize = 50;

const DIFFERENCES: &str = "docs/reference/differences.md";
const PLANTED_BUGS: &str = "docs/reference/planted-bugs.md";

/// Play scripts of a client and a server on a simulated network, and compare what they observe
/// (docs/simulation.md)
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask simulate")]
struct Options {
    /// The first seed of generated scripts; otherwise another one each time, which is printed
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// How many scripts to generate
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    count: u64,
    /// Generate scripts for this many minutes instead
    #[arg(long, value_name = "NUMBER", conflicts_with = "count")]
    minutes: Option<u64>,
    /// Play the scripts of mesh-simulator/corpus whose names match instead; `*` stands for any
    /// characters
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["count", "minutes"])]
    scripts: Option<String>,
    /// Play this script instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["count", "minutes", "scripts"])]
    script: Option<PathBuf>,
    /// Play only at this place: direct, outbound, inbound or both, or one of the last three with
    /// `-opaque`. May be repeated
    #[arg(long = "place", value_name = "NAME")]
    places: Vec<Place>,
    /// Give the mesh these features (docs/simulation.md), separated by commas, or `none`; otherwise
    /// the seed draws them
    #[arg(long, value_name = "NAMES")]
    features: Option<Features>,
    /// Play scripts of the corpus between pods of this local node, on sockets of the kernel, and
    /// compare them with simulated runs (docs/simulation.md)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["minutes", "script", "places", "features", "faults", "replay", "brief", "print"])]
    node: Option<Name>,
    /// End, restart or cut off the control plane of each mesh, or end its proxies, as the seed
    /// draws, when the server accepts its first connection
    #[arg(long)]
    faults: bool,
    /// Print the trace and both observations of each script, also if they agree, and shrink none
    #[arg(long)]
    replay: bool,
    /// Stop before each line of a trace, until a line is read: nothing or a number for that many
    /// lines, or `q`
    #[arg(long, requires = "replay")]
    step: bool,
    /// Print the name of each script
    #[arg(long)]
    verbose: bool,
    /// Name the scripts that differ, without shrinking and printing each
    #[arg(long, conflicts_with = "replay")]
    brief: bool,
    /// Print the script of the seed and play nothing
    #[arg(long, requires = "seed")]
    print: bool,
    /// Plant a bug, or each one in turn, and report the script that shows it (docs/simulation.md)
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    planted: Option<Option<Bug>>,
    /// Search for each planted bug for at most this many seconds of a processor
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 300,
        requires = "planted"
    )]
    limit: u64,
    /// Write docs/reference/differences.md and planted-bugs.md, and play nothing
    #[arg(long)]
    document: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let root = workspace::root()?;
    if options.document {
        let documents = [
            (DIFFERENCES, differences::render()),
            (PLANTED_BUGS, planted::render()),
        ];
        for (path, text) in documents {
            fs::write(root.join(path), text).with_context(|| format!("write {path}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(bug) = options.planted {
        let limit = Duration::from_secs(options.limit);
        let pattern = options.scripts.as_deref();
        return search::run(&root.join(corpus::DIRECTORY), pattern, bug, limit);
    }
    let seed = options.seed.map_or_else(seed::of_the_clock, Ok)?;
    if options.print {
        print_lines(&[generate::generate(seed).to_string()])?;
        return Ok(ExitCode::SUCCESS);
    }
    let places = if options.places.is_empty() {
        Place::ALL.to_vec()
    } else {
        options.places.clone()
    };
    if let Some(node) = &options.node {
        let pattern = options.scripts.as_deref().unwrap_or("*");
        let named = corpus::read(&root.join(corpus::DIRECTORY), pattern)?;
        let sample = sample::draw(named, SAMPLE, seed);
        return Ok(ExitCode::from(u8::from(!sample::play(
            node, &sample, seed,
        )?)));
    }
    let mut campaign = Campaign::new(CampaignOptions {
        places,
        mesh: MeshOptions {
            features: options.features.clone().unwrap_or(Features::Drawn),
            has_faults: options.faults,
        },
        replays: options.replay,
        walks: options.step,
        is_verbose: options.verbose,
        is_brief: options.brief,
    });
    if let Some(path) = &options.script {
        let script = corpus::read_file(path)?;
        campaign.play(&path.display().to_string(), &script, seed)?;
    } else if let Some(pattern) = &options.scripts {
        let named = corpus::read(&root.join(corpus::DIRECTORY), pattern)?;
        anyhow::ensure!(
            !named.is_empty(),
            "no script of the corpus is named {pattern}"
        );
        for named in named {
            campaign.play(&named.name, &named.script, seed)?;
        }
    } else {
        generated(&options, &mut campaign, seed)?;
    }
    print_lines(&[campaign.summary(seed)])?;
    Ok(ExitCode::from(u8::from(campaign.has_failed())))
}

/// Plays generated scripts from a seed on.
fn generated(options: &Options, campaign: &mut Campaign, first: u64) -> anyhow::Result<()> {
    for seed in seed::campaign(first, options.count, options.minutes) {
        let script: Script = generate::generate(seed);
        campaign.play(&format!("generated by seed {seed}"), &script, seed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        use clap::CommandFactory as _;
        Options::command().debug_assert();
    }
}
