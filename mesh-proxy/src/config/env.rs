//! Looks variables up, parses them and collects what is wrong, instead of failing at the first.

use std::cell::RefCell;
use std::fmt;

/// What all proxy variables start with.
const PREFIX: &str = "LINKERD2_PROXY_";

/// One pass over the environment.
pub(super) struct Env<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    errors: RefCell<Vec<VariableError>>,
}

/// Every variable that is wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct Errors(pub Vec<VariableError>);

/// One variable that is wrong and why.
#[derive(Debug, PartialEq, Eq)]
pub struct VariableError {
    pub variable: String,
    pub problem: String,
}

impl<'a> Env<'a> {
    pub(super) fn new(get: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            get,
            errors: RefCell::default(),
        }
    }

    /// A variable by its full name.
    pub(super) fn get(&self, full_name: &str) -> Option<String> {
        (self.get)(full_name)
    }

    /// A variable by its name without prefix, as it is.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(&full(name))
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// The parsed value; `None` when unset or bad, the latter being noted.
    pub(super) fn optional<T, E: fmt::Display>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        match parse(&self.text(name)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.fail(name, problem);
                None
            }
        }
    }

    /// As [`Env::optional`], for a variable of ours by its full name.
    pub(super) fn own<T, E: fmt::Display>(
        &self,
        full_name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        match parse(&self.get(full_name)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.note(full_name.to_owned(), problem);
                None
            }
        }
    }

    /// As [`Env::own`], or `default` when unset.
    pub(super) fn own_or<T, E: fmt::Display>(
        &self,
        full_name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
        default: T,
    ) -> T {
        self.own(full_name, parse).unwrap_or(default)
    }

    /// The parsed value, or `default` when unset.
    pub(super) fn or<T, E: fmt::Display>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
        default: T,
    ) -> T {
        self.optional(name, parse).unwrap_or(default)
    }

    /// The parsed value; being unset is noted too.
    pub(super) fn required<T, E: fmt::Display>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        if !self.is_set(name) {
            self.fail(name, "is required but not set");
            return None;
        }
        self.optional(name, parse)
    }

    /// The parsed value; a bad one is warned of and ignored.
    pub(super) fn lenient<T, E: fmt::Display>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        match parse(&self.text(name)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                tracing::warn!(variable = full(name), %problem, "Ignored an invalid variable");
                None
            }
        }
    }

    /// Notes a problem with a variable.
    pub(super) fn fail(&self, name: &str, problem: impl fmt::Display) {
        self.note(full(name), problem);
    }

    fn note(&self, variable: String, problem: impl fmt::Display) {
        let problem = problem.to_string();
        self.errors
            .borrow_mut()
            .push(VariableError { variable, problem });
    }

    /// The verdict: the value, unless something was noted.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<T, Errors> {
        let errors = self.errors.into_inner();
        match value {
            Some(value) if errors.is_empty() => Ok(value),
            _ => Err(Errors(errors)),
        }
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid configuration")?;
        for error in &self.0 {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

impl fmt::Display for VariableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, self.problem)
    }
}

fn full(name: &str) -> String {
    format!("{PREFIX}{name}")
}
