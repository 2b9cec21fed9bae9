//! Tokens of an API server, which reviews them.
//!
//! A review always has the audience. Without it the API server would accept any token of the
//! cluster, such as one that a pod has sent to another service and that this service has stored.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use mesh_cluster::api_server::{Backoff, RateLimiter, explain};

use super::{AUDIENCE, AuthenticatedAccount, TokenError, UnverifiedToken, account};

/// Sends token reviews to an API server.
#[derive(Clone)]
pub struct TokenReviewer {
    reviews: Api<TokenReview>,
    access: Api<SelfSubjectAccessReview>,
    limiter: RateLimiter,
}

/// The ServiceAccount lacks the permission for reviews.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this ServiceAccount cannot create tokenreviews.authentication.k8s.io, which are required to authenticate workloads; check that the ClusterRole of the identity service is installed and bound"
)]
pub struct AccessError;

/// Proxies wait at least 10 s for a response.
const DEADLINE: Duration = Duration::from_secs(8);

/// How long a request may wait for the rate limit before it is rejected.
const LONGEST_WAIT: Duration = Duration::from_secs(4);

impl TokenReviewer {
    pub fn new(client: &Client, limiter: RateLimiter) -> Self {
        Self {
            reviews: Api::all(client.clone()),
            access: Api::all(client.clone()),
            limiter,
        }
    }

    /// Checks the permission for reviews. Retries until the API server responds.
    pub async fn check_access(&self) -> Result<(), AccessError> {
        let attributes = ResourceAttributes {
            group: Some("authentication.k8s.io".to_owned()),
            resource: Some("tokenreviews".to_owned()),
            verb: Some("create".to_owned()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let mut backoff = Backoff::for_api_server();
        loop {
            match self.access.create(&PostParams::default(), &review).await {
                Ok(reviewed) => {
                    let allowed = reviewed.status.is_some_and(|status| status.allowed);
                    return if allowed { Ok(()) } else { Err(AccessError) };
                }
                Err(error) => {
                    let error = explain(&error);
                    tracing::warn!(
                        error,
                        "Cannot check the permission for token reviews; retrying"
                    );
                    backoff.wait().await;
                }
            }
        }
    }

    pub(super) async fn review(
        &self,
        token: &UnverifiedToken<'_>,
    ) -> Result<AuthenticatedAccount, TokenError> {
        // A token whose claims are already invalid needs no review.
        token.claims.check_audience()?;
        token.claimed_account()?;
        if !self.limiter.acquire_within(LONGEST_WAIT).await {
            return Err(TokenError::Busy);
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.text.to_owned()),
                audiences: Some(vec![AUDIENCE.to_owned()]),
            },
            ..TokenReview::default()
        };
        let params = PostParams::default();
        let response = self.reviews.create(&params, &review);
        let reviewed = match tokio::time::timeout(DEADLINE, response).await {
            Ok(Ok(reviewed)) => reviewed,
            Ok(Err(error)) => return Err(TokenError::NotReviewed(explain(&error))),
            Err(_elapsed) => {
                let error = format!("no response within {} s", DEADLINE.as_secs());
                return Err(TokenError::NotReviewed(error));
            }
        };
        authenticated_account(reviewed.status.unwrap_or_default())
    }
}

/// Returns the account of a successful review.
fn authenticated_account(status: TokenReviewStatus) -> Result<AuthenticatedAccount, TokenError> {
    if let Some(error) = status.error.filter(|error| !error.is_empty()) {
        return Err(TokenError::Rejected(error));
    }
    if status.authenticated != Some(true) {
        return Err(TokenError::NotAuthenticated);
    }
    // An authenticator without support for audiences accepts any token and returns none.
    let audiences = status.audiences.unwrap_or_default();
    if !audiences.iter().any(|audience| audience == AUDIENCE) {
        return Err(TokenError::Audience);
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.unwrap_or_default();
    let account = account(&name).ok_or(TokenError::Subject(name))?;
    Ok(AuthenticatedAccount {
        account,
        uid: user.uid.filter(|uid| !uid.is_empty()),
    })
}

impl std::fmt::Debug for TokenReviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenReviewer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::UserInfo;

    use super::*;

    fn good() -> TokenReviewStatus {
        TokenReviewStatus {
            audiences: Some(vec![AUDIENCE.to_owned()]),
            authenticated: Some(true),
            error: None,
            user: Some(UserInfo {
                username: Some("system:serviceaccount:shop:web".to_owned()),
                uid: Some("u-1".to_owned()),
                ..UserInfo::default()
            }),
        }
    }

    #[test]
    fn review_authenticates_account_with_audience() {
        let authenticated = authenticated_account(good()).unwrap();
        assert_eq!(
            (
                &*authenticated.account.namespace,
                &*authenticated.account.name
            ),
            ("shop", "web")
        );
        assert_eq!(authenticated.uid.as_deref(), Some("u-1"));

        let rejection = |change: fn(&mut TokenReviewStatus)| {
            let mut status = good();
            change(&mut status);
            authenticated_account(status).unwrap_err()
        };
        assert_eq!(
            rejection(|status| status.error = Some("token has expired".to_owned())),
            TokenError::Rejected("token has expired".to_owned())
        );
        for change in [
            (|status| status.authenticated = Some(false)) as fn(&mut TokenReviewStatus),
            |status| status.authenticated = None,
            |status| *status = TokenReviewStatus::default(),
        ] {
            assert_eq!(rejection(change), TokenError::NotAuthenticated);
        }
        for change in [
            (|status| status.audiences = None) as fn(&mut TokenReviewStatus),
            |status| status.audiences = Some(vec![]),
            |status| status.audiences = Some(vec!["https://kubernetes.default.svc".to_owned()]),
        ] {
            assert_eq!(rejection(change), TokenError::Audience);
        }
        let user = rejection(|status| {
            let user = status.user.get_or_insert_default();
            user.username = Some("system:node:n1".to_owned());
        });
        assert_eq!(user, TokenError::Subject("system:node:n1".to_owned()));
    }
}
