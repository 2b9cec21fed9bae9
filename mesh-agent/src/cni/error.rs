//! The error result of a command, which the runtime shows as the reason why a pod does not start.

use serde_json::{Value, json};

use super::Version;

/// The specification's codes, and from 100 on this plugin's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    IncompatibleVersion = 1,
    InvalidEnvironment = 4,
    Io = 5,
    Undecodable = 6,
    InvalidConfig = 7,
    TryAgainLater = 11,
    /// STATUS: the plugin cannot serve ADD.
    NotAvailable = 50,
    /// The pod is meshed and cannot be redirected.
    NotEnrollable = 100,
    /// CHECK: the pod's redirection is not in place.
    NotInPlace = 101,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CniError {
    pub code: Code,
    pub message: String,
    /// Why, and what to do about it.
    pub details: String,
}

impl CniError {
    pub fn new(code: Code, message: impl Into<String>, details: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: details.into(),
        }
    }

    pub(super) fn to_json(&self, version: Version) -> Value {
        let mut error = json!({
            "cniVersion": version.as_str(),
            "code": self.code as u32,
            "msg": format!("mesh-cni: {}", self.message),
        });
        if !self.details.is_empty() {
            error["details"] = self.details.clone().into();
        }
        error
    }
}
