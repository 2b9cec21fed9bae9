//! Looks up and parses variables, and collects all errors instead of failing at the first.

use std::cell::RefCell;
use std::fmt;

/// The prefix of Linkerd's proxy variables.
const PREFIX: &str = "LINKERD2_PROXY_";

/// One pass over the environment.
pub(super) struct Env<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    errors: RefCell<Vec<VariableError>>,
}

/// All invalid variables.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct Errors(pub Vec<VariableError>);

/// An invalid variable. `problem` is a clause whose subject is the variable.
#[derive(Debug, PartialEq, Eq)]
pub struct VariableError {
    pub(crate) variable: String,
    pub(crate) problem: String,
}

impl<'a> Env<'a> {
    pub(super) fn new(get: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            get,
            errors: RefCell::default(),
        }
    }

    /// Returns a variable by its full name.
    pub(super) fn get(&self, full_name: &str) -> Option<String> {
        (self.get)(full_name)
    }

    /// Returns a variable by its name without prefix.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(&full_name(name))
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// Returns the parsed value, or `None` if it is unset or invalid. Records invalid values.
    pub(super) fn optional<T, E: fmt::Display>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.own(&full_name(name), parse)
    }

    /// As [`Env::optional`], for a `MESH_PROXY_` variable by its full name.
    pub(super) fn own<T, E: fmt::Display>(
        &self,
        full_name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        match parse(&self.get(full_name)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.record(full_name.to_owned(), problem);
                None
            }
        }
    }

    /// As [`Env::own`], with a default.
    pub(super) fn own_or<T, E: fmt::Display>(
        &self,
        full_name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
        default: T,
    ) -> T {
        self.own(full_name, parse).unwrap_or(default)
    }

    /// Returns the parsed value, or `default`.
    pub(super) fn or<T, E: fmt::Display>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
        default: T,
    ) -> T {
        self.optional(name, parse).unwrap_or(default)
    }

    /// Returns the parsed value. Records an unset variable as an error.
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

    /// Returns the parsed value. Logs and ignores invalid values.
    pub(super) fn lenient<T, E: fmt::Display>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        match parse(&self.text(name)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                tracing::warn!(variable = full_name(name), %problem, "Ignored an invalid variable");
                None
            }
        }
    }

    /// Records a variable as invalid.
    pub(super) fn fail(&self, name: &str, problem: impl fmt::Display) {
        self.record(full_name(name), problem);
    }

    fn record(&self, variable: String, problem: impl fmt::Display) {
        let problem = problem.to_string();
        self.errors
            .borrow_mut()
            .push(VariableError { variable, problem });
    }

    /// Returns the value, or the recorded errors.
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

fn full_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}
