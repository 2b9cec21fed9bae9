//! Certificates for workloads: who asks is proved by a token, what is signed is built here.
//!
//! ```text
//!   token ──▶ tokens::review ──▶ ServiceAccount ──▶ identity ─┐ must be one and the same
//!   CSR ────▶ csr::check ──────▶ DNS name ────────────────────┤
//!   request ───────────────────▶ identity ────────────────────┘──▶ issuer::issue ──▶ certificate
//! ```
//!
//! Nothing of the CSR but its public key goes into the certificate. What costs nothing is checked
//! first, so that the API server is only asked about requests that could succeed.

use std::{sync::Arc, time::SystemTime};

use mesh_api::identity::Issued;
use mesh_core::identity::service_account;
use parking_lot::RwLock;
use tokio::time::Instant;

use self::{limits::Limits, tokens::Token};
use crate::cluster::Rate;

mod csr;
mod files;
mod issuer;
mod limits;
mod record;
mod tokens;

pub use self::{
    csr::CsrError,
    files::{Contents, Files, LoadError, Loaded},
    issuer::{IssueError, Issuer, IssuerError, Validity},
    record::Record,
    tokens::{
        AccessError, Account, KeyError, Proved, Reviews, TokenError, TokenKey, Tokens, is_dns_label,
    },
};

/// Issues certificates. One per process; the issuer inside is replaced when its files change.
#[derive(Debug)]
pub struct Authority {
    names: Names,
    tokens: Tokens,
    limits: Limits,
    // Written on rotation, read for every certificate.
    issuer: RwLock<Option<Arc<Issuer>>>,
}

/// What all identities of the mesh end with.
#[derive(Clone, Debug)]
pub struct Names {
    pub control_namespace: String,
    pub trust_domain: String,
}

/// How the files, or the keys of a Secret, are called that hold an issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IssuerNames {
    pub certificate: &'static str,
    pub key: &'static str,
    /// The type of the Secret.
    pub secret_type: &'static str,
}

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub identity: &'a str,
    pub token: &'a [u8],
    pub csr: &'a [u8],
}

/// A certificate and who it is for.
#[derive(Clone, Debug)]
pub struct Certified {
    pub issued: Issued,
    pub proved: Proved,
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
    #[error("ServiceAccount {} of namespace {} asks for too many certificates; the limit is a few dozen a second", .0.name, .0.namespace)]
    TooMany(Account),
    #[error("the certificate could not be issued")]
    Issue(#[source] IssueError),
}

/// The scheme under which Linkerd's own chart stores the issuer.
const LINKERD_SCHEME: &str = "linkerd.io/tls";

impl IssuerNames {
    /// Anything but Linkerd's own scheme means Kubernetes' type of TLS Secrets.
    pub fn of_scheme(scheme: &str) -> Self {
        if scheme == LINKERD_SCHEME {
            Self {
                certificate: "crt.pem",
                key: "key.pem",
                secret_type: "Opaque",
            }
        } else {
            Self {
                certificate: "tls.crt",
                key: "tls.key",
                secret_type: "kubernetes.io/tls",
            }
        }
    }
}

impl Authority {
    /// `rate` is that of each caller.
    pub fn new(names: Names, tokens: Tokens, rate: Rate) -> Self {
        Self {
            names,
            tokens,
            limits: Limits::new(rate),
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
    pub async fn certify(
        &self,
        request: Request<'_>,
        now: SystemTime,
    ) -> Result<Certified, CertifyError> {
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
        let token = Token::read(request.token).map_err(CertifyError::Token)?;
        let claimed = token.claimed().map_err(CertifyError::Token)?;
        self.check_identity(&request, &claimed)?;
        if !self.limits.admit(&claimed, Instant::now()) {
            return Err(CertifyError::TooMany(claimed));
        }
        let proved = self
            .tokens
            .review(&token, now)
            .await
            .map_err(CertifyError::Token)?;
        // What the token says of itself was a claim; this is what counts.
        self.check_identity(&request, &proved.account)?;
        let issued = issuer
            .issue(request.identity, &key, now)
            .map_err(CertifyError::Issue)?;
        Ok(Certified { issued, proved })
    }

    fn check_identity(&self, request: &Request<'_>, account: &Account) -> Result<(), CertifyError> {
        let actual = self.identity_of(account);
        if actual == request.identity {
            return Ok(());
        }
        Err(CertifyError::OtherIdentity {
            requested: request.identity.to_owned(),
            actual,
        })
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
