//! Why a machine does not join, or its membership cannot be used.

use mesh_core::machine::InvalidJoinFile;
use mesh_core::node::RefusalReason;
use mesh_runtime::file::FileError;
use tonic::Code;

use super::identity_service::ServiceError;
use super::key::KeyError;
use super::member::TokenError;
use crate::registry::RegistryError;

#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    #[error(transparent)]
    JoinFile(#[from] InvalidJoinFile),
    #[error("field mesh.trustAnchors of the join file has no valid certificates in PEM")]
    Anchors,
    #[error("field tokenExpires of the join file is {0:?}, expected 2026-01-02T03:04:05Z")]
    TokenTime(String),
    #[error(
        "the token of the join file for machine {machine} has expired at {expired}, and the clock of this machine says {now}; check the clock, then admit the machine again with `meshctl machine admit {machine} --key-sha256 {key}` and join with the new file"
    )]
    TokenExpired {
        machine: String,
        key: String,
        expired: String,
        now: String,
    },
    #[error(
        "this machine has no key; run `meshctl machine key` first, and admit the machine with the fingerprint that it prints"
    )]
    NoKey,
    #[error(
        "field keySha256 of the join file is {of_file}, but the key of this machine is {own}: the file is for another machine, or the key was made anew; admit this machine with `meshctl machine admit NAME --key-sha256 {own}`"
    )]
    OtherKey { of_file: String, own: String },
    #[error(
        "this machine has joined trust domain {trust_domain} as {machine} already, with a certificate until {expires}; `meshctl machine leave` ends that"
    )]
    Joined {
        machine: String,
        trust_domain: String,
        expires: String,
    },
    #[error(
        "the identity service refused machine {machine} with the key {key}: {message}; check `meshctl machine admissions` at a workstation, and admit the machine again with `meshctl machine admit {machine} --key-sha256 {key}`"
    )]
    Refused {
        machine: String,
        key: String,
        code: Code,
        message: String,
    },
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(
        "the record of the membership cannot be used; restore it, or admit the machine again and join with the new file"
    )]
    Record(#[source] RegistryError),
    #[error("the membership cannot be stored")]
    Store(#[from] FileError),
    #[error("the machine has left its mesh, or joined another one, meanwhile")]
    Changed,
}

impl MembershipError {
    /// Names machine and key in a refusal of the identity service.
    pub(super) fn of_service(machine: &str, key: &str, error: ServiceError) -> Self {
        match error {
            ServiceError::Refused { code, message } if !is_temporary(code) => Self::Refused {
                machine: machine.to_owned(),
                key: key.to_owned(),
                code,
                message,
            },
            other => Self::Service(other),
        }
    }

    /// Returns the reason that the agent's refusal carries.
    pub(crate) fn reason(&self) -> RefusalReason {
        match self {
            Self::JoinFile(_)
            | Self::Anchors
            | Self::TokenTime(_)
            | Self::TokenExpired { .. }
            | Self::NoKey
            | Self::OtherKey { .. }
            | Self::Joined { .. }
            | Self::Refused { .. } => RefusalReason::Invalid,
            Self::Service(error) if error.is_temporary() => RefusalReason::TryAgain,
            Self::Changed => RefusalReason::TryAgain,
            Self::Service(_) | Self::Key(_) | Self::Token(_) | Self::Record(_) | Self::Store(_) => {
                RefusalReason::Failed
            }
        }
    }
}

fn is_temporary(code: Code) -> bool {
    matches!(
        code,
        Code::ResourceExhausted | Code::Unavailable | Code::Internal | Code::Unknown
    )
}
