//! `cargo xtask mutants`: changes the code of a module in one place at a time, and counts how many
//! of these mutants the module's own tests find. CONTRIBUTING.md has the results.
//!
//! cargo-mutants lists the mutants (`tool`), and a seed draws a sample of them (`sample`). They are
//! built together in a copy of the checkout (`switched`, `tree`), or one by one by cargo-mutants,
//! and survivors are judged (`explained`).

mod explained;
mod modules;
mod sample;
mod switched;
mod tool;
mod tree;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::stage;
use explained::Explained;
use modules::{MODULES, Module};
use tool::{Mutant, Tool, Verdict};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct MutantsOptions {
    /// Module whose code is changed; may be repeated; all by default
    #[arg(long, value_name = "NAME")]
    pub(crate) module: Vec<String>,
    /// Seed of the sample: the same seed draws the same mutants of the same code
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Size of the sample of each module
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) count: usize,
    /// Only list the modules
    #[arg(long)]
    pub(crate) list: bool,
}

/// The share of mutants that the tests of a module must find.
const REQUIRED_PERCENT: usize = 90;

/// The result of one module.
struct Score {
    mutants: usize,
    found: usize,
    unviable: usize,
    explained: usize,
    survivors: Vec<Mutant>,
}

/// Runs the command. Fails if the tests of a module find too few mutants.
pub(crate) fn run(root: &Path, options: &MutantsOptions) -> anyhow::Result<ExitCode> {
    if options.list {
        let lines = MODULES.iter().map(ToString::to_string).collect::<Vec<_>>();
        crate::print_lines(&lines)?;
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = choose(&options.module)?;
    let explained = Explained::read(root)?;
    let tool = Tool::ready(root)?;
    let mut is_enough = true;
    for module in chosen {
        let score = stage::run(module.name, "mutants", || {
            measure(root, &tool, module, &explained, options)
        })?;
        println!("{:<10}  seed {}: {score}", module.name, options.seed);
        is_enough &= score.is_enough();
    }
    Ok(u8::from(!is_enough).into())
}

fn choose(asked: &[String]) -> anyhow::Result<Vec<&'static Module>> {
    let is_known = |name: &String| MODULES.iter().any(|module| module.name == name);
    if let Some(unknown) = asked.iter().find(|name| !is_known(name)) {
        let known: Vec<&str> = MODULES.iter().map(|module| module.name).collect();
        bail!(
            "there is no module {unknown:?}; there are {}",
            known.join(", ")
        );
    }
    let is_asked = |module: &&Module| asked.is_empty() || asked.iter().any(|it| it == module.name);
    Ok(MODULES.iter().filter(is_asked).collect())
}

fn measure(
    root: &Path,
    tool: &Tool,
    module: &Module,
    explained: &Explained,
    options: &MutantsOptions,
) -> anyhow::Result<Score> {
    let all = tool.list(module)?;
    explained.check(module, root, &all)?;
    let drawn = sample::draw(all, options.count, options.seed);
    let switched = switched::test(root, module, &drawn)?;
    let mut verdicts = switched.verdicts;
    verdicts.extend(tool.test(module, &switched.others)?);
    judge(drawn, &verdicts, |mutant| {
        explained.has(mutant, &mutant.source_line(root))
    })
}

/// Counts the verdicts about a sample.
fn judge(
    drawn: Vec<Mutant>,
    verdicts: &[(String, Verdict)],
    is_explained: impl Fn(&Mutant) -> bool,
) -> anyhow::Result<Score> {
    let mut score = Score {
        mutants: drawn.len(),
        found: 0,
        unviable: 0,
        explained: 0,
        survivors: Vec::new(),
    };
    for mutant in drawn {
        let verdict = verdicts.iter().find(|(name, _)| *name == mutant.name);
        let (_, verdict) =
            verdict.with_context(|| format!("cargo-mutants did not test {}", mutant.name))?;
        match verdict {
            Verdict::Found => score.found += 1,
            Verdict::Unviable => score.unviable += 1,
            Verdict::Survived if is_explained(&mutant) => score.explained += 1,
            Verdict::Survived => score.survivors.push(mutant),
        }
    }
    Ok(score)
}

impl Score {
    /// The mutants that a test can find: they compile, and none is explained.
    fn judged(&self) -> usize {
        self.found + self.survivors.len()
    }

    fn is_enough(&self) -> bool {
        self.found * 100 >= self.judged() * REQUIRED_PERCENT
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = (self.found * 100).checked_div(self.judged()).unwrap_or(100);
        write!(
            f,
            "{} of {} found ({percent} %); of {} mutants, {} did not compile and {} survivors are explained",
            self.found,
            self.judged(),
            self.mutants,
            self.unviable,
            self.explained
        )?;
        for mutant in &self.survivors {
            write!(f, "\n    survived  {}", mutant.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(name: &str) -> Mutant {
        Mutant::new(name, "BinaryOperator", "-").expect("a name")
    }

    fn judged(verdicts: &[Verdict], is_explained: bool) -> anyhow::Result<Score> {
        let name = |at: usize| format!("a.rs:{at}:1: replace + with - in f");
        let drawn = (0..verdicts.len()).map(|at| mutant(&name(at)));
        let named = verdicts.iter().enumerate();
        let named: Vec<_> = named.map(|(at, it)| (name(at), *it)).collect();
        judge(drawn.collect(), &named, |_| is_explained)
    }

    #[test]
    fn ninety_percent_of_mutants_that_compile_must_be_found() {
        use Verdict::{Found, Survived, Unviable};
        let found = |number: usize, others: &[Verdict]| [&vec![Found; number], others].concat();
        for (verdicts, is_explained, expected) in [
            (found(9, &[Survived]), false, true),
            (found(9, &[Survived, Unviable]), false, true),
            (found(8, &[Survived]), false, false),
            (found(8, &[Survived, Survived]), true, true),
            (Vec::new(), false, true),
        ] {
            let score = judged(&verdicts, is_explained).expect("all have a verdict");
            assert_eq!(score.is_enough(), expected, "{verdicts:?} {is_explained}");
        }
    }

    #[test]
    fn survivors_are_named_unless_explained() {
        let verdicts = [Verdict::Found, Verdict::Survived];
        let score = judged(&verdicts, false).expect("all have a verdict");
        let text = score.to_string();
        assert!(text.starts_with("1 of 2 found (50 %); of 2"), "{text}");
        assert!(text.ends_with("survived  a.rs:1:1: replace + with - in f"));
        let score = judged(&verdicts, true).expect("all have a verdict");
        assert!(score.to_string().ends_with("1 survivors are explained"));
    }

    #[test]
    fn mutant_without_verdict_is_an_error() {
        let drawn = vec![mutant("a.rs:1:1: replace + with - in f")];
        assert!(judge(drawn, &[], |_| false).is_err());
    }

    #[test]
    fn unknown_module_is_rejected() {
        assert_eq!(choose(&[]).expect("all").len(), MODULES.len());
        let http2 = choose(&["http2".to_owned()]).expect("one");
        assert_eq!(http2.len(), 1);
        assert!(choose(&["http3".to_owned()]).is_err());
    }
}
