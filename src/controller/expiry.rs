//! Whether the time of a user's Session is over, and what is said of it. Pure.

use super::seen::Problem;
use crate::{
    api::{Session, agent::SessionSettings},
    domain::{
        reason::Reason,
        usage::{Term, term},
    },
};
use jiff::Timestamp;
use kube::ResourceExt;

/// Whether a Session's time is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Not as things are.
    Open,
    /// Then, if nothing happens.
    Until(Timestamp),
    /// Now, and why.
    Over(Problem),
}

/// Judges a user's Session. Only what the gateway says counts that the Session has now.
pub fn expiry(settings: &SessionSettings, session: &Session, now: Timestamp) -> Expiry {
    let status = session.status.as_ref();
    let host = status.and_then(|s| s.host.as_ref());
    let activity = status.and_then(|s| s.activity.as_ref());
    let activity = activity
        .filter(|a| host.is_some_and(|h| (&h.incarnation, h.epoch) == (&a.incarnation, a.epoch)));
    let created = session.creation_timestamp().map(|t| t.0);
    let lifetime = (created, settings.max_lifetime.map(Into::into));
    let idle = (activity, settings.idle_timeout.map(Into::into));
    match term(lifetime, idle, now) {
        Term::Open => Expiry::Open,
        Term::Until(at) => Expiry::Until(at),
        Term::Idle(since) => {
            let cause = format!("No call was made in the Session since {since:.0}.");
            Expiry::Over(Problem::new(Reason::SessionIdle, cause))
        }
        Term::Outlived => {
            let limit = settings.max_lifetime.map(|l| format!("{l:?}")).unwrap_or_default();
            let cause = format!("The Session has existed for maxLifetime, {limit}.");
            Expiry::Over(Problem::new(Reason::SessionOutlived, cause))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::of_its_host("i1", 4, true)]
    #[case::of_an_earlier_start("i0", 4, false)]
    #[case::of_an_earlier_epoch("i1", 3, false)]
    fn only_its_host_says_that_it_is_idle(
        #[case] incarnation: &str,
        #[case] epoch: i64,
        #[case] counts: bool,
    ) {
        let settings = json!({"mode": "OnDemand", "idleTimeout": "5m"});
        let session: Session = serde_json::from_value(json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
            "metadata": {"name": "job-1", "namespace": "team-a"},
            "spec": {"agentRef": {"name": "coder"}},
            "status": {
                "host": {"gateway": "gw", "incarnation": "i1", "epoch": 4},
                "activity": {
                    "incarnation": incarnation, "epoch": epoch,
                    "idleSince": "2026-01-01T00:00:00Z", "at": "2026-01-01T00:05:00Z",
                },
            },
        }))
        .unwrap();
        let settings = serde_json::from_value(settings).unwrap();
        let said = expiry(&settings, &session, "2026-01-01T00:05:00Z".parse().unwrap());
        let Expiry::Over(problem) = said else {
            return assert_eq!((said, counts), (Expiry::Open, false));
        };
        assert!(counts);
        assert_eq!(problem.reason, Reason::SessionIdle);
        assert!(problem.message.contains("2026-01-01T00:00:00Z"), "{}", problem.message);
    }
}
