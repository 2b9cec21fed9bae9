//! Tokens that an API server issued, reviewed by it.
//!
//! A review always names our audience. Without one the API server would accept any token of the
//! cluster, such as one that a pod was given to talk to somebody else and that this somebody kept.

use std::time::Duration;

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};

use super::{AUDIENCE, Proved, Token, TokenError, account};
use crate::cluster::{Backoff, Pace, explain};

/// Asks an API server.
#[derive(Clone)]
pub struct Reviews {
    reviews: Api<TokenReview>,
    access: Api<SelfSubjectAccessReview>,
    pace: Pace,
}

/// Reviews would be refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this ServiceAccount may not create tokenreviews.authentication.k8s.io, without which no workload can prove who it is (is the ClusterRole of the identity service installed, and bound?)"
)]
pub struct AccessError;

/// Proxies wait 10 s and longer; an answer after that is for nobody.
const DEADLINE: Duration = Duration::from_secs(8);

/// How long a request may wait for its turn before it is sent away to come back.
const LONGEST_WAIT: Duration = Duration::from_secs(4);

impl Reviews {
    pub fn new(client: &Client, pace: Pace) -> Self {
        Self {
            reviews: Api::all(client.clone()),
            access: Api::all(client.clone()),
            pace,
        }
    }

    /// Asks whether reviews are allowed, for as long as it takes an API server to answer.
    pub async fn prove_access(&self) -> Result<(), AccessError> {
        let attributes = ResourceAttributes {
            group: Some("authentication.k8s.io".to_owned()),
            resource: Some("tokenreviews".to_owned()),
            verb: Some("create".to_owned()),
            ..ResourceAttributes::default()
        };
        let question = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let mut backoff = Backoff::for_api_server();
        loop {
            match self.access.create(&PostParams::default(), &question).await {
                Ok(answer) => {
                    let allowed = answer.status.is_some_and(|status| status.allowed);
                    return if allowed { Ok(()) } else { Err(AccessError) };
                }
                Err(error) => {
                    let error = explain(&error);
                    tracing::warn!(
                        error,
                        "Cannot ask the API server whether it will review tokens; asking again"
                    );
                    backoff.wait().await;
                }
            }
        }
    }

    pub(super) async fn review(&self, token: &Token<'_>) -> Result<Proved, TokenError> {
        // What says itself that it is not for us need not be asked about.
        token.claims.check_audience()?;
        token.claimed()?;
        if !self.pace.turn_within(LONGEST_WAIT).await {
            return Err(TokenError::Busy);
        }
        let question = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.text.to_owned()),
                audiences: Some(vec![AUDIENCE.to_owned()]),
            },
            ..TokenReview::default()
        };
        let params = PostParams::default();
        let asking = self.reviews.create(&params, &question);
        let answer = match tokio::time::timeout(DEADLINE, asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(TokenError::NotReviewed(explain(&error))),
            Err(_elapsed) => {
                let error = format!("no answer within {} s", DEADLINE.as_secs());
                return Err(TokenError::NotReviewed(error));
            }
        };
        proved(answer.status.unwrap_or_default())
    }
}

/// What a review proves.
fn proved(status: TokenReviewStatus) -> Result<Proved, TokenError> {
    if let Some(error) = status.error.filter(|error| !error.is_empty()) {
        return Err(TokenError::Rejected(error));
    }
    if status.authenticated != Some(true) {
        return Err(TokenError::NotAuthenticated);
    }
    // An authenticator that knows nothing of audiences accepts any token and names none.
    let audiences = status.audiences.unwrap_or_default();
    if !audiences.iter().any(|audience| audience == AUDIENCE) {
        return Err(TokenError::Audience);
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.unwrap_or_default();
    let account = account(&name).ok_or(TokenError::Subject(name))?;
    Ok(Proved {
        account,
        uid: user.uid.filter(|uid| !uid.is_empty()),
    })
}

impl std::fmt::Debug for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviews").finish_non_exhaustive()
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
    fn what_a_review_proves() {
        let proof = proved(good()).unwrap();
        assert_eq!(
            (&*proof.account.namespace, &*proof.account.name),
            ("shop", "web")
        );
        assert_eq!(proof.uid.as_deref(), Some("u-1"));

        let refused = |change: fn(&mut TokenReviewStatus)| {
            let mut status = good();
            change(&mut status);
            proved(status).unwrap_err()
        };
        assert_eq!(
            refused(|status| status.error = Some("token has expired".to_owned())),
            TokenError::Rejected("token has expired".to_owned())
        );
        for change in [
            (|status| status.authenticated = Some(false)) as fn(&mut TokenReviewStatus),
            |status| status.authenticated = None,
            |status| *status = TokenReviewStatus::default(),
        ] {
            assert_eq!(refused(change), TokenError::NotAuthenticated);
        }
        for change in [
            (|status| status.audiences = None) as fn(&mut TokenReviewStatus),
            |status| status.audiences = Some(vec![]),
            |status| status.audiences = Some(vec!["https://kubernetes.default.svc".to_owned()]),
        ] {
            assert_eq!(refused(change), TokenError::Audience);
        }
        let user = refused(|status| {
            let user = status.user.get_or_insert_default();
            user.username = Some("system:node:n1".to_owned());
        });
        assert_eq!(user, TokenError::Subject("system:node:n1".to_owned()));
    }
}
