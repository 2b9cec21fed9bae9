//! Exit codes of commands, which `main` reports. 0 success; 1 negative result or failed
//! operation; 2 unexpected error; 64 wrong usage; 65 invalid input; 69 the node, the API server or
//! the control plane is unreachable; 75 timed out, a retry may succeed; 130 interrupted. Scripts
//! may rely on them.

use std::process::ExitCode;

/// A failure that has an exit code of its own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command worked, and its result is negative. The command has printed all details.
    #[error("the result is negative")]
    NegativeResult,
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
            Self::NegativeResult => 1,
            Self::Input(_) => 65,
            Self::Unreachable(_) => 69,
            Self::TimedOut(_) => 75,
        }
    }
}

/// Prints clap's message. Help and version are requested output; everything else is wrong usage.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // The only possible error is a closed pipe, and then the message has no reader.
    let _unread = error.print();
    if error.use_stderr() {
        ExitCode::from(64)
    } else {
        ExitCode::SUCCESS
    }
}

/// Returns the exit code of a failed command.
pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(error.downcast_ref().map_or(1, Failure::code))
}

/// Returns whether the command has printed all that there is to say about its failure.
pub(crate) fn is_printed(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::NegativeResult))
}
