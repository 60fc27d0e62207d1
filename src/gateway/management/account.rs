//! The account that management tools act under: every request to the API server carries its name,
//! so its own rights decide. Reviews of that account are asked as the gateway itself.

use super::problem::Problem;
use crate::domain::{identity::SessionKey, reason::Reason};
use http::{HeaderName, HeaderValue, Request};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams, client::Body};

/// The header that names whom a request is made as.
const IMPERSONATE: HeaderName = HeaderName::from_static("impersonate-user");

/// Why an account cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--mcp-management-account {0:?} is no service account: write system:serviceaccount:NAMESPACE:NAME"
)]
pub struct AccountError(pub String);

/// A service account by its user name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    user: String,
    namespace: String,
    header: HeaderValue,
}

impl std::str::FromStr for Account {
    type Err = AccountError;

    fn from_str(user: &str) -> Result<Self, Self::Err> {
        let wrong = || AccountError(user.to_owned());
        let rest = user.strip_prefix("system:serviceaccount:").ok_or_else(wrong)?;
        let (namespace, name) = rest.split_once(':').ok_or_else(wrong)?;
        if !super::names::is_label(namespace) || !super::names::is_subdomain(name) {
            return Err(wrong());
        }
        let header = HeaderValue::from_str(user).map_err(|_| wrong())?;
        Ok(Self { user: user.to_owned(), namespace: namespace.to_owned(), header })
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.user)
    }
}

impl Account {
    /// The groups that the API server gives to every service account of that namespace.
    pub fn groups(&self) -> Vec<String> {
        vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{}", self.namespace),
            "system:authenticated".to_owned(),
        ]
    }

    /// A client whose every request is made as this account. No group is named: the API server
    /// adds the groups of a service account itself, and so the gateway needs no right to
    /// impersonate groups.
    pub fn client(&self, own: &Client) -> Client {
        let (own, header) = (own.clone(), self.header.clone());
        let service = tower::service_fn(move |mut request: Request<Body>| {
            let own = own.clone();
            request.headers_mut().insert(IMPERSONATE, header.clone());
            async move { own.send(request).await }
        });
        Client::new(service, "default")
    }

    /// Whether the account may read the trace of a Session.
    ///
    /// # Errors
    /// When the review cannot be made.
    pub async fn may_read_trace(&self, own: &Client, key: &SessionKey) -> Result<(), Problem> {
        let attributes = ResourceAttributes {
            group: Some(crate::api::GROUP.to_owned()),
            resource: Some("sessions".to_owned()),
            subresource: Some("trace".to_owned()),
            verb: Some("get".to_owned()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(self.user.clone()),
            groups: Some(self.groups()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let api: Api<SubjectAccessReview> = Api::all(own.clone());
        let params = PostParams::default();
        let status =
            super::cluster::read("the review of the account", api.create(&params, &review))
                .await?
                .status;
        if status.is_some_and(|s| s.allowed && s.denied != Some(true)) {
            return Ok(());
        }
        Err(Problem::new(
            Reason::Forbidden,
            format!("{self} may not `get sessions/trace` of {key} in the API group awaken.dev."),
        )
        .next("Ask whoever runs the installation to give the account that right."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_service_accounts_are_taken() {
        let account: Account = "system:serviceaccount:awaken-system:awaken-mcp".parse().unwrap();
        assert_eq!(account.groups()[1], "system:serviceaccounts:awaken-system");
        for wrong in [
            "",
            "admin",
            "system:masters",
            "system:serviceaccount:awaken-mcp",
            "system:serviceaccount::x",
            "system:serviceaccount:a:",
            "system:serviceaccount:a:b:c",
            "system:serviceaccount:A:b",
            "system:serviceaccount:a:b\n",
        ] {
            assert!(wrong.parse::<Account>().is_err(), "{wrong:?}");
        }
    }
}
