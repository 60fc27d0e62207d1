//! The REST routes: a Session's trace, page by page, and in [`sets`] its own attachments. Reads the
//! journal, never writes it.

mod set;
pub(super) mod sets;
mod store;

use super::{
    answer::HttpRefusal,
    auth::Right,
    state::{Gateway, admit},
};
use crate::{
    domain::{identity::SessionKey, reason::Reason, record::Record},
    journal::Chain,
};
use axum::{
    Json,
    extract::{Query, Request},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

/// Records on one page, at most.
const MOST: usize = 1000;
/// Records on one page without `limit`.
const USUAL: usize = 100;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    /// The place after which the page begins: a `next`, or the `seq` of a record.
    after: Option<u64>,
    /// Records on the page, 1 to [`MOST`].
    limit: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Page {
    records: Vec<Record>,
    /// The `after` of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// `GET …/trace?after=&limit=`.
pub(super) async fn trace(
    gateway: &Gateway,
    key: SessionKey,
    request: Request,
) -> Result<Response, HttpRefusal> {
    let (head, _) = request.into_parts();
    let (_, view) = admit(gateway, &head.headers, Right::ReadTrace, &key).await?;
    let Query(ask) = Query::<Ask>::try_from_uri(&head.uri)
        .map_err(|error| HttpRefusal::invalid(Reason::InvalidRequest, error.body_text()))?;
    let limit = ask.limit.unwrap_or(USUAL);
    if !(1..=MOST).contains(&limit) {
        let message = format!("limit must be between 1 and {MOST}");
        return Err(HttpRefusal::invalid(Reason::InvalidRequest, message));
    }
    let chain = Chain::Session(view.uid.clone());
    let records =
        gateway.read.page(&chain, ask.after.unwrap_or(0), limit).await.map_err(|error| {
            tracing::error!(%error, "the trace cannot be read");
            HttpRefusal::internal(Reason::JournalUnavailable, error.to_string())
        })?;
    let full = records.len() == limit;
    let next = records.last().filter(|_| full).map(|record| record.seq.to_string());
    Ok(Json(Page { records, next }).into_response())
}
