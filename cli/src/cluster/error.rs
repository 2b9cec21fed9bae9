//! What the API server's refusals mean for the person who asked.

use kube::Error;

use crate::exit::Failure;

/// The error of an operation, with the exit code that fits.
pub(crate) fn failed(what: &str, error: Error) -> anyhow::Error {
    let text = format!("cannot {what}: {}", explain(&error));
    match &error {
        Error::Api(_) => anyhow::anyhow!(text),
        _ if is_unreachable(&error) => Failure::Unreachable(text).into(),
        _ => anyhow::Error::from(error).context(format!("cannot {what}")),
    }
}

/// One sentence.
pub(crate) fn explain(error: &Error) -> String {
    match error {
        Error::Api(status) if status.code == 401 => {
            "the API server does not know you (401): log in again".to_owned()
        }
        Error::Api(status) => status.message.clone(),
        Error::UpgradeConnection(refusal) => {
            format!("the kubelet refused ({refusal}): is the pod running?")
        }
        error if is_unreachable(error) => format!(
            "the API server does not answer: {}; is the cluster up, and is the kubeconfig's address right?",
            innermost(error)
        ),
        error => innermost(error),
    }
}

pub(crate) fn is_forbidden(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 403)
}

pub(crate) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

fn is_unreachable(error: &Error) -> bool {
    matches!(error, Error::HyperError(_) | Error::Service(_))
}

/// The last cause has the reason; those above it say only that something went wrong.
fn innermost(error: &Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
