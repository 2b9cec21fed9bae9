//! Certificates for workloads: a token authenticates the client, and this module builds the
//! certificate.
//!
//! ```text
//!   token ──▶ authenticate ────▶ ServiceAccount ──▶ identity ─┐ must be equal
//!   CSR ────▶ csr::check ──────▶ DNS name ────────────────────┤
//!   request ───────────────────▶ identity ────────────────────┘──▶ issuer::issue ──▶ certificate
//! ```
//!
//! A machine outside Kubernetes signs the tokens of its ServiceAccounts (docs/adr/0229).
//!
//! The certificate uses only the public key of the CSR. Cheap checks come first, so that the API
//! server only reviews tokens of requests that could succeed.

use std::sync::Arc;
use std::time::SystemTime;

use mesh_api::identity::IssuedCertificate;
use mesh_cluster::api_server::Rate;
use mesh_core::deny_list::DenyList;
use mesh_core::identity::{Identity, machine, service_account};
use parking_lot::RwLock;
use rcgen::PublicKeyData;
use tokio::sync::watch;
use tokio::time::Instant;

use self::issuer::Purpose;
use self::limits::CallerLimits;
use self::tokens::machine::JoinRequest;
use self::tokens::{Subject, UnverifiedToken};

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
    tokens::machine::Machines,
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
    machines: watch::Receiver<Arc<Machines>>,
    denied: DeniedRx,
    limits: CallerLimits,
    // Written on rotation, read for every certificate.
    issuer: RwLock<Option<Arc<Issuer>>>,
}

/// The identities that get no certificate; `None` while that is unknown.
pub type DeniedRx = watch::Receiver<Option<Arc<DenyList>>>;

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

/// An issued certificate and the account that requested it; `None` for the one of a machine.
#[derive(Clone, Debug)]
pub struct GrantedCertificate {
    pub issued: IssuedCertificate,
    pub authenticated: Option<AuthenticatedAccount>,
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
    #[error("{0} requests too many certificates; the limit is a few dozen per second")]
    RateLimited(String),
    #[error("{identity} is denied (ConfigMap linkerd-denied-identities of the control plane)")]
    Denied {
        identity: String,
        account: Option<AuthenticatedAccount>,
    },
    #[error("the list of denied identities cannot be read from the API server")]
    UnknownDenied,
    #[error("the certificate could not be issued")]
    Issue(#[source] IssueError),
}

impl CertificateAuthority {
    /// `rate` applies to each account.
    pub fn new(
        names: IdentitySuffix,
        tokens: TokenVerifier,
        machines: watch::Receiver<Arc<Machines>>,
        denied: DeniedRx,
        rate: Rate,
    ) -> Self {
        Self {
            names,
            tokens,
            machines,
            denied,
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
        let authenticated = self.authenticate(&request, &key, &issuer, now).await?;
        let authenticated = self.check_not_denied(request.identity, authenticated)?;
        let purpose = match authenticated {
            Some(_) => Purpose::Peer,
            None => Purpose::Tokens,
        };
        let issued = issuer
            .issue(request.identity, &key, purpose, now)
            .map_err(CertifyError::Issue)?;
        Ok(GrantedCertificate {
            issued,
            authenticated,
        })
    }

    /// Refuses a denied identity, after it was authenticated: others do not learn who is denied.
    fn check_not_denied(
        &self,
        identity: &str,
        account: Option<AuthenticatedAccount>,
    ) -> Result<Option<AuthenticatedAccount>, CertifyError> {
        let list = self.denied.borrow().clone();
        let list = list.ok_or(CertifyError::UnknownDenied)?;
        let is_denied = Identity::parse(identity).is_ok_and(|id| list.denies(&id));
        if is_denied {
            return Err(CertifyError::Denied {
                identity: identity.to_owned(),
                account,
            });
        }
        Ok(account)
    }

    /// Returns the account whose identity is requested, and `None` if it is the one of a machine,
    /// which only gets a certificate for its own key.
    async fn authenticate(
        &self,
        request: &Request<'_>,
        key: &impl PublicKeyData,
        issuer: &Issuer,
        now: SystemTime,
    ) -> Result<Option<AuthenticatedAccount>, CertifyError> {
        let key = key.subject_public_key_info();
        let machines = self.machines.borrow().clone();
        if let Some(join) = JoinRequest::read(request.token) {
            self.admit(request, &Subject::Machine(join.machine().to_owned()))?;
            join.verify(&machines, &key, now)
                .map_err(CertifyError::Token)?;
            return Ok(None);
        }
        let token = UnverifiedToken::read(request.token).map_err(CertifyError::Token)?;
        if token.is_of_machine() {
            let subject = token.claimed_subject().map_err(CertifyError::Token)?;
            self.admit(request, &subject)?;
            let identity_of = |name: &str| self.names.machine(name);
            token
                .verify_machine(&machines, issuer, identity_of, &key, now)
                .map_err(CertifyError::Token)?;
            return Ok(match subject {
                Subject::Machine(_) => None,
                Subject::Account(account) => Some(AuthenticatedAccount { account, uid: None }),
            });
        }
        let claimed = token.claimed_account().map_err(CertifyError::Token)?;
        self.admit(request, &Subject::Account(claimed))?;
        let authenticated = self
            .tokens
            .review(&token, now)
            .await
            .map_err(CertifyError::Token)?;
        // The account in the token was only a claim; this one is authenticated.
        let subject = Subject::Account(authenticated.account.clone());
        self.check_identity(request, &subject)?;
        Ok(Some(authenticated))
    }

    /// Checks what the token claims: cheap, before it is verified.
    fn admit(&self, request: &Request<'_>, claimed: &Subject) -> Result<(), CertifyError> {
        self.check_identity(request, claimed)?;
        if self.limits.admit(request.identity, Instant::now()) {
            Ok(())
        } else {
            Err(CertifyError::RateLimited(request.identity.to_owned()))
        }
    }

    fn check_identity(&self, request: &Request<'_>, subject: &Subject) -> Result<(), CertifyError> {
        let actual = match subject {
            Subject::Account(account) => self.names.account(account),
            Subject::Machine(name) => self.names.machine(name),
        };
        if actual == request.identity {
            return Ok(());
        }
        Err(CertifyError::IdentityMismatch {
            requested: request.identity.to_owned(),
            actual,
        })
    }
}

impl IdentitySuffix {
    fn account(&self, account: &Account) -> String {
        service_account(
            &account.name,
            &account.namespace,
            &self.control_namespace,
            &self.trust_domain,
        )
    }

    fn machine(&self, name: &str) -> String {
        machine(name, &self.control_namespace, &self.trust_domain)
    }
}

#[cfg(test)]
mod tests;
