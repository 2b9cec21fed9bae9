//! Errors of the API server in words.

use std::error::Error as _;

/// Formats an error of the API server in one line. The texts of kube repeat themselves and contain
/// structs.
pub fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.is_forbidden() => format!(
            "{}; check that the roles of the chart are installed and bound to this ServiceAccount",
            status.message
        ),
        kube::Error::Api(status) if status.message.is_empty() => {
            format!(
                "the API server responded with {} {}",
                status.code, status.reason
            )
        }
        kube::Error::Api(status) => status.message.trim().to_owned(),
        // The cause is at the end of the chain: "connection refused", "certificate expired".
        error => {
            let mut causes = error.to_string();
            let mut cause = error.source();
            while let Some(inner) = cause {
                let text = inner.to_string();
                if !causes.contains(&text) {
                    causes = format!("{causes}: {text}");
                }
                cause = inner.source();
            }
            causes
        }
    }
}
