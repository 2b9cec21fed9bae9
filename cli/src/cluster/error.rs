//! Explains errors of the API server to users.

use kube::Error;

use crate::exit::Failure;

/// Converts the error of an operation to an error with a suitable exit code.
pub(crate) fn failed(what: &str, error: Error) -> anyhow::Error {
    let text = format!("cannot {what}: {}", explain(&error));
    match &error {
        Error::Api(_) => anyhow::anyhow!(text),
        _ if is_unreachable(&error) => Failure::Unreachable(text).into(),
        _ => anyhow::Error::from(error).context(format!("cannot {what}")),
    }
}

/// Describes an error in one sentence.
pub(crate) fn explain(error: &Error) -> String {
    match error {
        Error::Api(status) if status.code == 401 => {
            "the API server rejected your credentials (401): log in again".to_owned()
        }
        Error::Api(status) => status.message.clone(),
        Error::UpgradeConnection(refusal) => {
            format!("the kubelet rejected the connection ({refusal}): is the pod running?")
        }
        error if is_unreachable(error) => format!(
            "the API server is unreachable: {}; is the cluster up, and is the address in the kubeconfig correct?",
            root_cause(error)
        ),
        error => root_cause(error),
    }
}

/// Converts the result of a request; the reason of a failure names the operation.
pub(crate) fn to_fact<T>(what: &str, result: kube::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("cannot {what}: {}", explain(&error)))
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

/// Returns the text of the last source, which is the only one that has the reason.
fn root_cause(error: &Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
