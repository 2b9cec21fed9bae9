//! Certificates for workloads: a token authenticates the client, and this module builds the
//! certificate.
//!
//! ```text
//!   token ──▶ tokens::review ──▶ ServiceAccount ──▶ identity ─┐ must be equal
//!   CSR ────▶ csr::check ──────▶ DNS name ────────────────────┤
//!   request ───────────────────▶ identity ────────────────────┘──▶ issuer::issue ──▶ certificate
//! ```
//!
//! The certificate uses only the public key of the CSR. Cheap checks come first, so that the API
//! server only reviews tokens of requests that could succeed.

use std::sync::Arc;
use std::time::SystemTime;

use mesh_api::identity::IssuedCertificate;
use mesh_cluster::api_server::Rate;
use mesh_core::identity::service_account;
use parking_lot::RwLock;
use tokio::time::Instant;

use self::limits::CallerLimits;
use self::tokens::UnverifiedToken;

mod csr;
mod event_recorder;
mod files;
mod issuer;
mod limits;
mod tokens;

pub use self::{
    csr::CsrError,
    event_recorder::EventRecorder,
    files::{FileContents, Files, LoadError, LoadedIssuer},
    issuer::{IssueError, Issuer, IssuerError, Validity},
    tokens::{
        AccessError, Account, AuthenticatedAccount, KeyError, TokenError, TokenKey, TokenReviewer,
        TokenVerifier,
    },
};

/// Issues certificates. There is one per process; its issuer is replaced when the files change.
#[derive(Debug)]
pub struct CertificateAuthority {
    names: IdentitySuffix,
    tokens: TokenVerifier,
    limits: CallerLimits,
    // Written on rotation, read for every certificate.
    issuer: RwLock<Option<Arc<Issuer>>>,
}

/// The parts of the suffix of all identities.
#[derive(Clone, Debug)]
pub struct IdentitySuffix {
    pub control_namespace: String,
    pub trust_domain: String,
}

/// A request for a certificate.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub identity: &'a str,
    pub token: &'a [u8],
    pub csr: &'a [u8],
}

/// An issued certificate and the account that requested it.
#[derive(Clone, Debug)]
pub struct GrantedCertificate {
    pub issued: IssuedCertificate,
    pub authenticated: AuthenticatedAccount,
}

/// Why no certificate was issued.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    #[error("the {0} is missing from the request")]
    Missing(&'static str),
    #[error("no issuer is loaded")]
    NoIssuer,
    #[error("invalid certificate signing request")]
    Csr(#[source] CsrError),
    #[error("invalid token")]
    Token(#[source] TokenError),
    #[error("the token is of {actual}, but the requested identity is {requested}")]
    IdentityMismatch { requested: String, actual: String },
    #[error("ServiceAccount {} of namespace {} requests too many certificates; the limit is a few dozen per second", .0.name, .0.namespace)]
    RateLimited(Account),
    #[error("the certificate could not be issued")]
    Issue(#[source] IssueError),
}

impl CertificateAuthority {
    /// `rate` applies to each account.
    pub fn new(names: IdentitySuffix, tokens: TokenVerifier, rate: Rate) -> Self {
        Self {
            names,
            tokens,
            limits: CallerLimits::new(rate),
            issuer: RwLock::new(None),
        }
    }

    pub fn set_issuer(&self, issuer: Issuer) {
        *self.issuer.write() = Some(Arc::new(issuer));
    }

    pub fn set_token_key(&self, key: TokenKey) {
        self.tokens.set_key(key);
    }

    /// Returns the current issuer.
    pub fn issuer(&self) -> Option<Arc<Issuer>> {
        self.issuer.read().clone()
    }

    /// Issues a certificate if the token authenticates the account of the requested identity.
    pub async fn certify(
        &self,
        request: Request<'_>,
        now: SystemTime,
    ) -> Result<GrantedCertificate, CertifyError> {
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
        let token = UnverifiedToken::read(request.token).map_err(CertifyError::Token)?;
        let claimed_account = token.claimed_account().map_err(CertifyError::Token)?;
        self.check_identity(&request, &claimed_account)?;
        if !self.limits.admit(&claimed_account, Instant::now()) {
            return Err(CertifyError::RateLimited(claimed_account));
        }
        let authenticated = self
            .tokens
            .review(&token, now)
            .await
            .map_err(CertifyError::Token)?;
        // The account in the token was only a claim; this one is authenticated.
        self.check_identity(&request, &authenticated.account)?;
        let issued = issuer
            .issue(request.identity, &key, now)
            .map_err(CertifyError::Issue)?;
        Ok(GrantedCertificate {
            issued,
            authenticated,
        })
    }

    fn check_identity(&self, request: &Request<'_>, account: &Account) -> Result<(), CertifyError> {
        let actual = self.identity_of(account);
        if actual == request.identity {
            return Ok(());
        }
        Err(CertifyError::IdentityMismatch {
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
