//! Chooses the node's tier: the best one that works on this node, found by trying.
//!
//! The kernel version is not a criterion: distributions backport features and regressions. Each
//! tier has to redirect a connection in a scratch network namespace, and its failure is recorded,
//! logged and shown. The agent does this once, when it starts.

mod cgroup;
mod packet_filter;

use std::fmt;
use std::path::{Path, PathBuf};

use mesh_core::node::{SelfTestCase, SelfTestOutcome, TierAttempt};
use mesh_runtime::log;

use crate::ebpf::{self, Loaded, Object, Programs};
use crate::redirect::{GuardMode, Tier};
use crate::selftest::{self, CheckResult, Outcome};

pub use cgroup::{CgroupError, cgroup2_mount};

#[derive(Clone, Debug)]
pub struct Settings {
    pub forced: Option<Tier>,
    /// Searched in the usual locations when not configured.
    pub cgroup_root: Option<PathBuf>,
    pub pin_dir: PathBuf,
    /// Used instead of the embedded programs.
    pub bpf_object: Option<PathBuf>,
    /// What the kernel programs do with connections that bypass the proxy.
    pub guard: GuardMode,
    /// This program's file; the self-test runs it again.
    pub program: PathBuf,
    /// Why pins would not outlive the agent, if so; then the eBPF tiers are not tried.
    pub pin_problem: Option<String>,
}

#[derive(Debug)]
pub struct TierChoice {
    pub tier: Tier,
    /// One sentence for the log, the metric and `meshctl check`.
    pub reason: String,
    pub forced: bool,
    pub trials: Vec<TierAttempt>,
    pub self_test: Vec<SelfTestCase>,
    /// Loaded for a tier that uses them.
    pub attached: Option<AttachedPrograms>,
    pub guard: GuardChoice,
}

/// The guard's mode in effect, and why it differs from the configured one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardChoice {
    pub mode: GuardMode,
    pub problem: Option<String>,
}

/// The loaded kernel programs, and the inputs to attach them again.
#[derive(Clone)]
pub struct AttachedPrograms {
    pub programs: Programs,
    pub loaded: Loaded,
    pub cgroup_root: PathBuf,
    object: Object,
    pin_dir: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum TierError {
    #[error("required tier {tier} is unavailable: {reason}")]
    Forced { tier: Tier, reason: String },
    #[error("no tier works on this node, so no pod can be redirected: {0}")]
    None(String),
}

/// The result of the self-test, shared by both tiers that use eBPF.
struct EbpfTrial {
    best: Option<Tier>,
    self_test: Vec<CheckResult>,
    inputs: LoadInputs,
}

struct LoadInputs {
    object: Object,
    cgroup_root: PathBuf,
}

/// A test whether systemd units can be redirected. There is no choice between tiers: nftables
/// matches a cgroup by the id that it has when the rule is written, and each start of a unit gives
/// another one.
#[derive(Clone, Debug)]
pub struct UnitTrial {
    pub object: Object,
    /// This program's file; the self-test runs it again.
    pub program: PathBuf,
    pub pin_dir: PathBuf,
    pub unit_root: PathBuf,
}

impl UnitTrial {
    /// Runs the self-test of the kernel programs in a cgroup and a network namespace of its own.
    /// The error is one sentence.
    pub fn run(&self) -> Result<Vec<SelfTestCase>, String> {
        let conflicts = ebpf::conflicts(&self.unit_root).map_err(|error| log::chain(&error))?;
        if let Some(conflict) = conflicts.first() {
            return Err(conflict.to_string());
        }
        let settings = selftest::Settings {
            program: self.program.clone(),
            pin_dir: self_test_pin_dir(&self.pin_dir),
            cgroup_parent: self.unit_root.clone(),
        };
        let results = selftest::run(&self.object, &settings).map_err(|error| log::chain(&error))?;
        if selftest::best_tier(&results) != Some(Tier::Full) {
            return Err(failures(&results));
        }
        Ok(results.into_iter().map(self_test_case).collect())
    }
}

/// Tries the tiers from the best on (full, split, nft, iptables), or only the configured one.
pub fn choose(settings: &Settings) -> Result<TierChoice, TierError> {
    let candidates = match settings.forced {
        Some(tier) => vec![tier],
        None => Tier::ALL.to_vec(),
    };
    let ebpf = if candidates.iter().any(|tier| tier.uses_ebpf()) {
        try_ebpf(settings)
    } else {
        Err("it was not tried".to_owned())
    };
    let mut attached = None;
    let mut trials = Vec::new();
    let tier = first_working(&candidates, &mut trials, |tier| {
        try_tier(tier, &ebpf)?;
        if let (true, Ok(ebpf)) = (tier.uses_ebpf(), &ebpf) {
            attached = Some(ebpf.inputs.attach(&settings.pin_dir)?);
        }
        Ok(())
    });
    let reasons = reasons(&trials);
    let Some(tier) = tier else {
        return Err(match settings.forced {
            Some(tier) => TierError::Forced {
                tier,
                reason: trials.remove(0).reason,
            },
            None => TierError::None(reasons),
        });
    };
    let self_test = ebpf.map(|ebpf| ebpf.self_test).unwrap_or_default();
    let guard = guard(settings.guard, tier, attached.as_ref());
    Ok(TierChoice {
        tier,
        reason: match settings.forced {
            Some(_) => "it is required by --tier, and works".to_owned(),
            None if reasons.is_empty() => {
                "it is the best tier, and passed the self-test".to_owned()
            }
            None => format!("it is the best tier that works; {reasons}"),
        },
        forced: settings.forced.is_some(),
        trials,
        self_test: self_test.into_iter().map(self_test_case).collect(),
        attached,
        guard,
    })
}

/// Sets the guard's mode. The guard is a second line of defence: pods are redirected without it, so
/// that their start does not depend on it.
fn guard(requested: GuardMode, tier: Tier, attached: Option<&AttachedPrograms>) -> GuardChoice {
    let problem = match (attached, requested) {
        (None, GuardMode::Off) => None,
        (None, GuardMode::Count | GuardMode::Drop) => {
            Some(format!("tier {tier} has no kernel programs for a guard"))
        }
        (Some(attached), _) => {
            let result = attached.programs.set_guard(requested);
            result.err().map(|error| log::chain(&error))
        }
    };
    match problem {
        None => GuardChoice {
            mode: requested,
            problem: None,
        },
        Some(problem) => GuardChoice {
            mode: GuardMode::Off,
            problem: Some(format!(
                "--guard {} is not in effect: {problem}",
                requested.as_str()
            )),
        },
    }
}

/// Tries the candidates in order, records each result, and stops at the first that works.
fn first_working(
    candidates: &[Tier],
    trials: &mut Vec<TierAttempt>,
    mut try_tier: impl FnMut(Tier) -> Result<(), String>,
) -> Option<Tier> {
    candidates.iter().copied().find(|tier| {
        let result = try_tier(*tier);
        trials.push(TierAttempt {
            tier: *tier,
            works: result.is_ok(),
            reason: result.err().unwrap_or_default(),
        });
        trials.last().is_some_and(|trial| trial.works)
    })
}

/// Joins the failures of the tiers; adjacent tiers with the same failure share one sentence.
fn reasons(trials: &[TierAttempt]) -> String {
    let failed = trials.iter().filter(|trial| !trial.works);
    let mut reasons: Vec<(String, &str)> = Vec::new();
    for trial in failed {
        match reasons.last_mut() {
            Some((tiers, reason)) if *reason == trial.reason => {
                tiers.push_str(&format!(" and {}", trial.tier));
            }
            _ => reasons.push((trial.tier.to_string(), &trial.reason)),
        }
    }
    let sentences: Vec<String> = reasons
        .into_iter()
        .map(|(tiers, reason)| format!("{tiers}: {reason}"))
        .collect();
    sentences.join("; ")
}

fn try_tier(tier: Tier, ebpf: &Result<EbpfTrial, String>) -> Result<(), String> {
    match tier {
        Tier::Full => match ebpf {
            Ok(ebpf) if ebpf.best == Some(Tier::Full) => Ok(()),
            Ok(ebpf) => Err(ebpf.failures()),
            Err(reason) => Err(reason.clone()),
        },
        Tier::Split => {
            match ebpf {
                Ok(ebpf) if ebpf.best.is_some() => {}
                Ok(ebpf) => return Err(ebpf.failures()),
                Err(reason) => return Err(reason.clone()),
            }
            packet_filter::try_nft()
        }
        Tier::Nft => packet_filter::try_nft(),
        Tier::Iptables => packet_filter::try_iptables(),
    }
}

/// Tests the kernel programs on this node. Each failure is one sentence.
fn try_ebpf(settings: &Settings) -> Result<EbpfTrial, String> {
    if let Some(reason) = &settings.pin_problem {
        return Err(reason.clone());
    }
    let object =
        Object::open(settings.bpf_object.as_deref()).map_err(|error| log::chain(&error))?;
    let cgroup_root =
        cgroup::pods_parent(settings.cgroup_root.as_deref()).map_err(|error| log::chain(&error))?;
    let conflicts = ebpf::conflicts(&cgroup_root).map_err(|error| log::chain(&error))?;
    if let Some(conflict) = conflicts.first() {
        return Err(conflict.to_string());
    }
    let self_test = selftest::run(
        &object,
        &selftest::Settings {
            program: settings.program.clone(),
            pin_dir: self_test_pin_dir(&settings.pin_dir),
            cgroup_parent: cgroup_root.clone(),
        },
    )
    .map_err(|error| log::chain(&error))?;
    Ok(EbpfTrial {
        best: selftest::best_tier(&self_test),
        self_test,
        inputs: LoadInputs {
            object,
            cgroup_root,
        },
    })
}

/// Removes the remains of a self-test whose agent was killed. The scratch cgroups can be found only
/// where the pods' parent can.
pub fn clear_self_test(pin_dir: &Path, cgroup_root: Option<&Path>) -> Result<(), selftest::Error> {
    let parent = cgroup::pods_parent(cgroup_root).ok();
    selftest::clear(&self_test_pin_dir(pin_dir), parent.as_deref())
}

/// Returns a directory next to the production pins, on the same bpffs.
fn self_test_pin_dir(pin_dir: &Path) -> PathBuf {
    let name = pin_dir.file_name().unwrap_or_default().to_string_lossy();
    pin_dir.with_file_name(format!("{name}-selftest"))
}

impl EbpfTrial {
    fn failures(&self) -> String {
        failures(&self.self_test)
    }
}

fn failures(self_test: &[CheckResult]) -> String {
    let failed: Vec<String> = self_test
        .iter()
        .filter_map(|check| match &check.outcome {
            Outcome::Failed(why) => Some(format!("{} ({why})", check.name)),
            _ => None,
        })
        .collect();
    if failed.is_empty() {
        "the self-test returned no result".to_owned()
    } else {
        format!("the self-test failed in {}", failed.join(", "))
    }
}

impl LoadInputs {
    fn attach(&self, pin_dir: &Path) -> Result<AttachedPrograms, String> {
        let (programs, loaded) = ebpf::load(&self.object, pin_dir, &self.cgroup_root)
            .map_err(|error| log::chain(&error))?;
        Ok(AttachedPrograms {
            programs,
            loaded,
            cgroup_root: self.cgroup_root.clone(),
            object: self.object.clone(),
            pin_dir: pin_dir.to_owned(),
        })
    }
}

impl AttachedPrograms {
    /// Attaches programs again that were detached. Does nothing when all are attached.
    pub fn reattach(&self) -> Result<Loaded, ebpf::Error> {
        ebpf::load(&self.object, &self.pin_dir, &self.cgroup_root).map(|(_, loaded)| loaded)
    }
}

/// Omits the bytes of the programs.
impl fmt::Debug for AttachedPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedPrograms")
            .field("loaded", &self.loaded)
            .field("cgroup_root", &self.cgroup_root)
            .field("pin_dir", &self.pin_dir)
            .finish_non_exhaustive()
    }
}

fn self_test_case(check: CheckResult) -> SelfTestCase {
    let (outcome, detail) = match check.outcome {
        Outcome::Passed => (SelfTestOutcome::Passed, String::new()),
        Outcome::Failed(why) => (SelfTestOutcome::Failed, why),
        Outcome::Unsupported(why) => (SelfTestOutcome::Skipped, why),
    };
    SelfTestCase {
        name: check.name,
        outcome,
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose_among(candidates: &[Tier], works: &[Tier]) -> (Option<Tier>, String) {
        let mut trials = Vec::new();
        let tier = first_working(candidates, &mut trials, |tier| {
            if works.contains(&tier) {
                Ok(())
            } else if tier.uses_ebpf() {
                Err("no BTF".to_owned())
            } else {
                Err(format!("no {tier}"))
            }
        });
        (tier, reasons(&trials))
    }

    #[test]
    fn first_working_tier_is_chosen_with_failures_of_better_ones() {
        use Tier::{Full, Iptables, Nft, Split};
        let check = |works: &[Tier], tier: Option<Tier>, reasons: &str| {
            let found = choose_among(&Tier::ALL, works);
            assert_eq!(found, (tier, reasons.to_owned()), "{works:?}");
        };
        check(&[Full, Nft], Some(Full), "");
        check(&[Split, Nft], Some(Split), "full: no BTF");
        check(&[Nft, Iptables], Some(Nft), "full and split: no BTF");
        let no_nft = "full and split: no BTF; nft: no nft";
        check(&[Iptables], Some(Iptables), no_nft);
        check(&[], None, &format!("{no_nft}; iptables: no iptables"));
    }

    #[test]
    fn forced_tier_has_no_fallback() {
        let found = choose_among(&[Tier::Split], &[Tier::Full, Tier::Nft]);
        assert_eq!(found, (None, "split: no BTF".to_owned()));
    }

    #[test]
    fn self_test_pin_dir_is_next_to_production_pins() {
        let found = self_test_pin_dir(Path::new("/sys/fs/bpf/mesh"));
        assert_eq!(found, Path::new("/sys/fs/bpf/mesh-selftest"));
    }
}
