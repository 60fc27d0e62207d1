//! The two SSE streams: the one that ends with an answer, and the one that stays for notices.

use super::{Service, pending::Pending, progress::Progress, respond, session::Listening};
use crate::mcp::{
    legacy::Revision,
    wire::{self, Id},
};
use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");
const OPEN: Bytes = Bytes::from_static(b": open\n\n");
const LIST_CHANGED: &str = "notifications/tools/list_changed";

/// A stream that ends with the answer of a call; its progress goes before.
pub(super) fn answer(
    (pending, progress): (Pending, Option<Progress>),
    id: Id,
    ended: CancellationToken,
    keep_alive: Duration,
) -> Body {
    let prime = pending.in_flight().map(|f| f.session()).and_then(|session| {
        // older clients take an event without data for a message
        let primes = session.revision() >= Revision::V2025_11_25;
        primes.then(|| Bytes::from(format!("id: {}-0\ndata:\n\n", session.next_stream())))
    });
    events((Some(pending), progress, prime), move |(pending, mut progress, prime)| {
        let (id, ended) = (id.clone(), ended.clone());
        async move {
            if prime.is_some() {
                return prime.map(|p| (p, (pending, progress, None)));
            }
            let mut pending = pending?;
            tokio::select! {
                biased;
                answer = &mut pending => {
                    let message = wire::response(Some(&id), &answer?);
                    Some((respond::event(&message), (None, None, None)))
                }
                () = ended.cancelled() => None,
                notice = next(progress.as_mut()) => Some((notice, (Some(pending), progress, None))),
                () = tokio::time::sleep(keep_alive) => {
                    Some((KEEP_ALIVE, (Some(pending), progress, None)))
                }
            }
        }
    })
}

async fn next(progress: Option<&mut Progress>) -> Bytes {
    match progress {
        Some(progress) => progress.next().await,
        None => std::future::pending().await,
    }
}

/// The stream of a GET: a notice whenever the list that the client knows is no longer the list.
pub(super) fn notices(
    listening: Listening,
    service: Arc<dyn Service>,
    keep_alive: Duration,
) -> Body {
    let (changes, ended) = (service.changes(), service.ended());
    let fresh = true;
    events((listening, service, changes, ended, fresh), move |state| async move {
        let (listening, service, mut changes, ended, fresh) = state;
        if fresh {
            listening.session().hear(|| *service.tools().digest());
            return Some((OPEN, (listening, service, changes, ended, false)));
        }
        let quiet = tokio::time::sleep(keep_alive);
        tokio::pin!(quiet);
        loop {
            changes.mark_unchanged();
            if listening.session().tell(*service.tools().digest()) {
                let notice = respond::event(&wire::notification(LIST_CHANGED, None));
                return Some((notice, (listening, service, changes, ended, false)));
            }
            tokio::select! {
                biased;
                () = listening.replaced.cancelled() => return None,
                () = listening.session().ended().cancelled() => return None,
                () = ended.cancelled() => return None,
                Ok(()) = changes.changed() => {}
                () = &mut quiet => {
                    return Some((KEEP_ALIVE, (listening, service, changes, ended, false)));
                }
            }
        }
    })
}

fn events<S, F>(state: S, next: impl FnMut(S) -> F + Send + 'static) -> Body
where
    S: Send + 'static,
    F: Future<Output = Option<(Bytes, S)>> + Send + 'static,
{
    use futures::StreamExt as _;
    Body::from_stream(stream::unfold(state, next).map(Ok::<_, Infallible>))
}
