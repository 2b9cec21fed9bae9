//! [`ScriptError`]: where a text is not a script, and how to change it.

/// A place where a text is not a script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}; {remedy}")]
pub struct ScriptError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub problem: String,
    pub remedy: String,
}

/// A problem in a line, whose number the caller knows.
#[derive(Debug)]
pub(super) struct Problem {
    column: usize,
    problem: String,
    remedy: String,
}

impl Problem {
    /// `column` is from 1.
    pub(super) fn new(
        column: usize,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            column,
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    pub(super) fn at_line(self, line: usize) -> ScriptError {
        ScriptError {
            line,
            column: self.column,
            problem: self.problem,
            remedy: self.remedy,
        }
    }
}
