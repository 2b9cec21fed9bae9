//! The parts of a category: checks, their outcomes and findings. Categories build on this file,
//! [`super::register`] lists them, and [`super::evaluate`] runs them.

use crate::facts::{Environment, Facts};

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No problem; the text may have details, such as a version.
    Ok(String),
    /// The mesh works, but an operator should look into it.
    Warn(Vec<Finding>),
    Fail(Vec<Finding>),
}

/// One problem that a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(super) text: String,
    /// A repair for this problem with all names filled in; replaces the advice of the check.
    pub(super) fix: Option<String>,
    /// No failure of another check explains this problem.
    pub(super) is_root_cause: bool,
}

/// The outcome of a check, or why its facts are unknown.
pub(crate) type CheckResult = Result<Outcome, String>;

pub(crate) struct Check {
    /// The section of the guide and the name in JSON. Checks of Linkerd keep their IDs.
    pub(crate) id: &'static str,
    pub(crate) description: &'static str,
    /// The first step of a repair, with the command. `{ns}` is replaced by the control plane's
    /// namespace, `{viz}` and `{mc}` by the extensions' namespaces, `{upgrade}` by the upgrade
    /// command.
    pub(crate) advice: &'static str,
    /// The checks whose failure explains the failure of this one; the best explanation comes first.
    pub(crate) explained_by: &'static [&'static [&'static str]],
    /// Which checks are skipped after a failure, because they would only repeat it.
    pub(crate) on_failure: OnFailure,
    /// The environments that the check applies to.
    pub(crate) applies_to: AppliesTo,
    pub(crate) run: fn(&Facts) -> CheckResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    Continue,
    SkipCategory,
    Abort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppliesTo {
    Everywhere,
    Cluster,
    Machine,
}

pub(crate) struct Category {
    /// Categories of Linkerd keep their names.
    pub(crate) name: &'static str,
    /// Whether the category applies to the environment and the mode.
    pub(crate) applies: fn(&Facts) -> bool,
    pub(crate) checks: &'static [Check],
}

impl Check {
    /// Creates a check of a cluster. No other check explains its failure, and the next ones run
    /// after it.
    pub(crate) const fn new(
        id: &'static str,
        description: &'static str,
        advice: &'static str,
        run: fn(&Facts) -> CheckResult,
    ) -> Self {
        Self {
            id,
            description,
            advice,
            explained_by: &[],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run,
        }
    }

    pub(super) const fn explained_by(
        self,
        explained_by: &'static [&'static [&'static str]],
    ) -> Self {
        Self {
            explained_by,
            ..self
        }
    }

    pub(super) const fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    pub(super) const fn applies_to(self, applies_to: AppliesTo) -> Self {
        Self { applies_to, ..self }
    }
}

impl AppliesTo {
    pub(super) fn matches(self, facts: &Facts) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Cluster => facts.environment == Environment::Cluster,
            Self::Machine => facts.environment != Environment::Cluster,
        }
    }
}

impl Finding {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            fix: None,
            is_root_cause: false,
        }
    }

    /// Adds the command that repairs the problem.
    pub(crate) fn with_fix(self, fix: impl Into<String>) -> Self {
        Self {
            fix: Some(fix.into()),
            ..self
        }
    }

    /// Marks the problem as a root cause, whatever other checks report.
    pub(crate) fn into_root_cause(self) -> Self {
        Self {
            is_root_cause: true,
            ..self
        }
    }
}

impl<T: Into<String>> From<T> for Finding {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

impl Outcome {
    pub(crate) fn ok(text: impl Into<String>) -> Self {
        Self::Ok(text.into())
    }

    pub(crate) fn warn(line: impl Into<Finding>) -> Self {
        Self::Warn(vec![line.into()])
    }

    pub(crate) fn fail(line: impl Into<Finding>) -> Self {
        Self::Fail(vec![line.into()])
    }

    /// Returns a failure if there are any findings.
    pub(crate) fn fail_if(
        wrong: impl IntoIterator<Item: Into<Finding>>,
        ok: impl Into<String>,
    ) -> Self {
        let wrong: Vec<Finding> = wrong.into_iter().map(Into::into).collect();
        if wrong.is_empty() {
            Self::Ok(ok.into())
        } else {
            Self::Fail(wrong)
        }
    }

    /// Returns a warning if there are any findings.
    pub(crate) fn warn_if(
        wrong: impl IntoIterator<Item: Into<Finding>>,
        ok: impl Into<String>,
    ) -> Self {
        Self::fail_if(wrong, ok).into_warning()
    }

    /// Turns a failure into a warning.
    pub(crate) fn into_warning(self) -> Self {
        match self {
            Self::Fail(findings) => Self::Warn(findings),
            other => other,
        }
    }
}
