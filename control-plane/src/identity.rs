//! Certificates for workloads: who asks is proved by a token, what is signed is built here.
//!
//! ```text
//!   token ──▶ tokens::review ──▶ ServiceAccount ──▶ identity ─┐ must be one and the same
//!   CSR ────▶ csr::check ──────▶ DNS name ────────────────────┤
//!   request ───────────────────▶ identity ────────────────────┘──▶ issuer::issue ──▶ certificate
//! ```
//!
//! Nothing of the CSR but its public key goes into the certificate.

use std::{sync::Arc, time::SystemTime};

use mesh_api::identity::Issued;
use mesh_core::identity::service_account;
use parking_lot::RwLock;

mod csr;
mod files;
mod issuer;
mod tokens;

pub use self::{
    csr::CsrError,
    files::{Contents, Files, LoadError, Loaded},
    issuer::{IssueError, Issuer, IssuerError, Validity},
    tokens::{Account, KeyError, TokenError, TokenKey, Tokens, is_dns_label},
};

/// Issues certificates. One per process; the issuer inside is replaced when its files change.
#[derive(Debug)]
pub struct Authority {
    names: Names,
    tokens: Tokens,
    // Written on rotation, read for every certificate.
    issuer: RwLock<Option<Arc<Issuer>>>,
}

/// What all identities of the mesh end with.
#[derive(Clone, Debug)]
pub struct Names {
    pub control_namespace: String,
    pub trust_domain: String,
}

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub identity: &'a str,
    pub token: &'a [u8],
    pub csr: &'a [u8],
}

/// Why no certificate was issued.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    #[error("the {0} is missing from the request")]
    Missing(&'static str),
    #[error("no issuer is loaded")]
    NoIssuer,
    #[error("the certificate signing request was refused")]
    Csr(#[source] CsrError),
    #[error("the token was refused")]
    Token(#[source] TokenError),
    #[error("the token belongs to {actual}, but a certificate of {requested} was requested")]
    OtherIdentity { requested: String, actual: String },
    #[error("the certificate could not be issued")]
    Issue(#[source] IssueError),
}

impl Authority {
    pub fn new(names: Names, tokens: Tokens) -> Self {
        Self {
            names,
            tokens,
            issuer: RwLock::new(None),
        }
    }

    pub fn set_issuer(&self, issuer: Issuer) {
        *self.issuer.write() = Some(Arc::new(issuer));
    }

    pub fn set_token_key(&self, key: TokenKey) {
        self.tokens.set_key(key);
    }

    /// The issuer in force.
    pub fn issuer(&self) -> Option<Arc<Issuer>> {
        self.issuer.read().clone()
    }

    /// Issues a certificate to who proves to be entitled to it.
    pub fn certify(&self, request: Request<'_>, now: SystemTime) -> Result<Issued, CertifyError> {
        for (name, empty) in [
            ("identity", request.identity.is_empty()),
            ("token", request.token.is_empty()),
            ("certificate signing request", request.csr.is_empty()),
        ] {
            if empty {
                return Err(CertifyError::Missing(name));
            }
        }
        let issuer = self.issuer().ok_or(CertifyError::NoIssuer)?;
        let key = csr::check(request.csr, request.identity).map_err(CertifyError::Csr)?;
        let account = self
            .tokens
            .review(request.token, now)
            .map_err(CertifyError::Token)?;
        let actual = self.identity_of(&account);
        if actual != request.identity {
            return Err(CertifyError::OtherIdentity {
                requested: request.identity.to_owned(),
                actual,
            });
        }
        issuer
            .issue(&actual, &key, now)
            .map_err(CertifyError::Issue)
    }

    fn identity_of(&self, account: &Account) -> String {
        service_account(
            &account.name,
            &account.namespace,
            &self.names.control_namespace,
            &self.names.trust_domain,
        )
    }
}

#[cfg(test)]
mod tests;
