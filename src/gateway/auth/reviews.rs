//! TokenReview and SubjectAccessReview at the API server. No cache, no decision.

use super::{AUDIENCE, Caller, ReviewError, Reviews, Right};
use crate::domain::identity::{SessionKey, Subject};
use futures::future::BoxFuture;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use std::time::Duration;

/// The API group of Sessions.
const GROUP: &str = "awaken.dev";
/// How long one review may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Asks the API server.
#[derive(Clone)]
pub struct ApiReviews {
    client: Client,
}

impl ApiReviews {
    /// Asks through this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

async fn limited<T>(
    review: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ReviewError> {
    match tokio::time::timeout(LIMIT, review).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(ReviewError(error.to_string())),
        Err(_) => Err(ReviewError(format!("no answer within {} s", LIMIT.as_secs()))),
    }
}

impl Reviews for ApiReviews {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, ReviewError>> {
        Box::pin(async move {
            let spec = TokenReviewSpec {
                token: token.to_owned(),
                audiences: Some(vec![AUDIENCE.to_owned()]),
            };
            let review = TokenReview { spec, ..TokenReview::default() };
            let api: Api<TokenReview> = Api::all(self.client.clone());
            let params = PostParams::default();
            let status = limited(api.create(&params, &review)).await?.status.unwrap_or_default();
            let for_us = status.audiences.unwrap_or_default().iter().any(|a| a == AUDIENCE);
            if status.authenticated != Some(true) || !for_us {
                return Ok(None);
            }
            let user = status.user.unwrap_or_default();
            let subject = Subject {
                user: user.username.unwrap_or_default(),
                uid: user.uid.unwrap_or_default(),
                groups: user.groups.unwrap_or_default(),
            };
            let named = !subject.user.is_empty();
            Ok(named.then(|| Caller::new(subject, user.extra.unwrap_or_default())))
        })
    }

    fn access<'a>(
        &'a self,
        caller: &'a Caller,
        right: Right,
        session: &'a SessionKey,
    ) -> BoxFuture<'a, Result<bool, ReviewError>> {
        Box::pin(async move {
            let (verb, subresource) = right.verb();
            let attributes = ResourceAttributes {
                group: Some(GROUP.to_owned()),
                resource: Some("sessions".to_owned()),
                subresource: subresource.map(str::to_owned),
                verb: Some(verb.to_owned()),
                namespace: Some(session.namespace.clone()),
                name: Some(session.name.clone()).filter(|name| !name.is_empty()),
                ..ResourceAttributes::default()
            };
            let spec = SubjectAccessReviewSpec {
                user: Some(caller.subject.user.clone()),
                uid: Some(caller.subject.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(caller.subject.groups.clone()),
                extra: Some(caller.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
            let status = limited(api.create(&PostParams::default(), &review)).await?.status;
            Ok(status.is_some_and(|s| s.allowed && s.denied != Some(true)))
        })
    }
}
