//! `Identity`: certificates for workloads.

use std::sync::Arc;
use std::time::SystemTime;

use mesh_api::identity::to_proto;
use mesh_api::proto::identity::identity_server::Identity;
use mesh_api::proto::identity::{CertifyRequest, CertifyResponse};
use mesh_cluster::calls::{Calls, Method};
use tonic::{Code, Request, Response, Status, async_trait};

use crate::identity::{
    self, CertificateAuthority, CertifyError, EventRecorder, IssueError, TokenError,
};

#[derive(Debug)]
pub struct IdentityService {
    authority: Arc<CertificateAuthority>,
    record: EventRecorder,
    certify: Method,
}

impl IdentityService {
    pub fn new(authority: Arc<CertificateAuthority>, record: EventRecorder, calls: &Calls) -> Self {
        Self {
            authority,
            record,
            certify: calls.method("io.linkerd.proxy.identity.Identity", "Certify"),
        }
    }

    async fn certify(&self, request: &CertifyRequest) -> Result<CertifyResponse, Status> {
        let review = identity::Request {
            identity: &request.identity,
            token: &request.token,
            csr: &request.certificate_signing_request,
        };
        match self.authority.certify(review, SystemTime::now()).await {
            Ok(granted) => {
                let valid_until = jiff::Timestamp::try_from(granted.issued.valid_until).ok();
                tracing::info!(
                    identity = request.identity,
                    valid_until = valid_until.map(tracing::field::display),
                    "Issued certificate"
                );
                self.record.issued(&request.identity, &granted);
                Ok(to_proto(&granted.issued))
            }
            Err(error) => {
                let message = with_reason(&error);
                tracing::warn!(
                    identity = request.identity,
                    "Refused certificate: {message}"
                );
                if matches!(error, CertifyError::Issue(IssueError::Expired)) {
                    self.record.issuer_expired(&message);
                }
                if let CertifyError::Denied {
                    account: Some(account),
                    ..
                } = &error
                {
                    self.record.denied(account, message.clone());
                }
                Err(Status::new(code(&error), message))
            }
        }
    }
}

#[async_trait]
impl Identity for IdentityService {
    async fn certify(
        &self,
        request: Request<CertifyRequest>,
    ) -> Result<Response<CertifyResponse>, Status> {
        let response = self.certify(request.get_ref()).await;
        self.certify.count(response).map(Response::new)
    }
}

/// Returns the status codes of Linkerd's identity service.
fn code(error: &CertifyError) -> Code {
    match error {
        CertifyError::NoIssuer | CertifyError::UnknownDenied => Code::Unavailable,
        CertifyError::Denied { .. } => Code::PermissionDenied,
        CertifyError::Missing(_) => Code::InvalidArgument,
        CertifyError::Csr(error) if error.is_malformed() => Code::InvalidArgument,
        CertifyError::Csr(_) | CertifyError::IdentityMismatch { .. } => Code::FailedPrecondition,
        CertifyError::Token(TokenError::Unreadable | TokenError::Subject(_)) => {
            Code::InvalidArgument
        }
        CertifyError::Token(TokenError::Rejected(_)) => Code::InvalidArgument,
        CertifyError::Token(TokenError::NotReviewed(_)) => Code::Internal,
        CertifyError::Token(TokenError::Busy) | CertifyError::RateLimited(_) => {
            Code::ResourceExhausted
        }
        CertifyError::Token(_) => Code::FailedPrecondition,
        CertifyError::Issue(IssueError::Expired) => Code::Unknown,
        CertifyError::Issue(_) => Code::Internal,
    }
}

/// Formats an error and its source in one line, for clients.
fn with_reason(error: &CertifyError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
