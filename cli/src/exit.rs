//! Exit codes, and the last words of a command that failed.
//!
//! 0 done; 1 the verdict is negative or the operation failed; 2 unexpected; 64 wrong usage; 65 a
//! file that cannot be used; 69 the node or the control plane does not answer; 75 timed out, trying
//! again may help; 130 interrupted. Scripts may rely on them.

use std::process::ExitCode;

use crate::output;

/// Why a command did not do what it was asked, as far as its caller can act on it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command worked and its answer is no; everything was printed already.
    #[error("the verdict is negative")]
    Negative,
    #[error("{0}")]
    Input(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("timed out: {0}")]
    TimedOut(String),
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::Negative => 1,
            Self::Input(_) => 65,
            Self::Unreachable(_) => 69,
            Self::TimedOut(_) => 75,
        }
    }
}

/// What clap says: help and version are answers, the rest is wrong usage.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // The only error is a closed pipe, and then nobody reads.
    let _unread = error.print();
    if error.use_stderr() {
        ExitCode::from(64)
    } else {
        ExitCode::SUCCESS
    }
}

pub(crate) fn report(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    if output::is_closed_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    let failure = error.downcast_ref::<Failure>();
    if !matches!(failure, Some(Failure::Negative)) {
        output::error(&error);
    }
    ExitCode::from(failure.map_or(1, Failure::code))
}
