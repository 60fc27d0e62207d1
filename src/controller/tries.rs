//! Requests for another try that Sessions took up. An attachment of an Agent on demand is served in
//! several Sessions: each takes a request up once, and the attachment's status answers it when all
//! have. Kept in memory: after a restart an unanswered request is taken up once more.

use super::{plan::Plan, refs};
use crate::domain::identity::SessionKey;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// By Session: the last request of each attachment, by its UID.
#[derive(Debug, Default)]
pub struct Tries(Mutex<HashMap<SessionKey, HashMap<String, String>>>);

impl Tries {
    /// Takes requests out of the plan that the Session took up before; gives back the others, as
    /// UID of the attachment and request.
    pub fn fresh(&self, session: &SessionKey, plan: &mut Plan) -> Vec<(String, String)> {
        let all = self.lock();
        let taken = all.get(session);
        let mut fresh = vec![];
        for desired in plan.desired.iter_mut().filter(|d| d.retry) {
            let uid = &desired.attachment_uid;
            let of = plan.judged.iter().find(|j| j.attachment.metadata.uid.as_ref() == Some(uid));
            let asked = of.and_then(|j| refs::asked(&*j.attachment));
            let Some(asked) = asked else { continue };
            if taken.and_then(|t| t.get(uid)) == Some(asked) {
                desired.retry = false;
            } else {
                fresh.push((uid.clone(), asked.clone()));
            }
        }
        fresh
    }

    /// The Session took these up.
    pub fn take(&self, session: &SessionKey, requests: Vec<(String, String)>) {
        if !requests.is_empty() {
            self.lock().entry(session.clone()).or_default().extend(requests);
        }
    }

    /// Whether the Session took this one up.
    pub fn has(&self, session: &SessionKey, attachment_uid: &str, asked: &str) -> bool {
        self.lock().get(session).and_then(|t| t.get(attachment_uid)).is_some_and(|t| t == asked)
    }

    /// The Session is gone.
    pub fn forget(&self, session: &SessionKey) {
        self.lock().remove(session);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, HashMap<String, String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
